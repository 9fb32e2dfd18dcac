"""Arithmetic on two float32 at a time (sm_100), on tensors whose elements are 64-bit pairs, which others store as well.

    pairs = float2.pack(x, axis=1)         # neighbours along dimension 1
    pairs = float2.fma(pairs, pairs, pairs)
    x = float2.unpack(pairs, axis=1)

Triton's own library has this up to 3.7, and `add2`, `fma2`, ... after it; here it works with all.
"""

from typing import Any

from gluon_core import errors
from gluon_core.plugin.ops import builtin, constexpr_function, semantic_layer, tl, traced, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Operand
from gluon_core.values.aggregate import aggregate

__all__ = ["Float2Tensor", "fma", "full_like", "pack", "pack2", "unpack", "unpack2"]

_REQUIRES = ("nvidia.f32x2",)
_MOVED = ("nvidia.ldmatrix",)  # by `mov`, which all of NVIDIA's have
_INSTEAD = "float32 tensors"
_SPACE = "gl.nvidia.blackwell.float2"


def _instruction(
    semantic: SemanticLayer, text: str, registers: str, operands: list[Any], results: Any
) -> Any:
    """Apply one instruction to each element of `operands`."""
    return tl.inline_asm_elementwise(
        text, registers, operands, results, True, 1, _semantic=semantic
    )


def _compute(semantic: SemanticLayer, opcode: str, operands: list[Any]) -> Any:
    """`opcode` (PTX 9.7.3, `.f32x2`) on tensors of pairs."""
    places = ", ".join(f"${place}" for place in range(len(operands) + 1))
    registers = ",".join(["=l"] + ["l"] * len(operands))
    return _instruction(semantic, f"{opcode}.f32x2 {places};", registers, operands, tl.int64)


def _pairs(value: Any, argument: str) -> Any:
    """Return the tensor inside a `Float2Tensor`."""
    if not isinstance(value, Float2Tensor):
        raise errors.DtypeError(
            "not pairs of float32",
            argument=argument,
            expected="a Float2Tensor",
            got=semantic_layer().describe(value),
            remedy="Make one with float2.pack or float2.full_like.",
        )
    return value.value


def _singles(semantic: SemanticLayer, value: Any, argument: str) -> Any:
    """Return a tensor of float32."""
    value = semantic.to_tensor(value)
    if value.dtype != tl.float32:
        errors.refuse(
            errors.DtypeError(
                "pairs are of float32",
                argument=argument,
                expected="float32",
                got=semantic.describe(value),
            )
        )
    return value


@builtin(requires=_REQUIRES, instead=_INSTEAD, name="Float2Tensor")
def _combine(opcode: Const[str], one: "Float2Tensor", other: "Float2Tensor") -> "Float2Tensor":
    operands = [_pairs(one, "the left operand"), _pairs(other, "the right operand")]
    return Float2Tensor(_compute(semantic_layer(), unwrap(opcode), operands))


@builtin(requires=_REQUIRES, instead=_INSTEAD, name="Float2Tensor.sum")
def _plus(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    result: tl.tensor = _compute(semantic_layer(), "add", [one, other])
    return result


@traced
def _total(one: "tl.tensor", other: "tl.tensor") -> "tl.tensor":
    return _plus(one, other)


@aggregate
class Float2Tensor:
    """A tensor of pairs of float32: the first of a pair in the low half of an int64.

    `+`, `-` and `*` work on pairs elementwise. Make one with `pack` or `pack2`.
    """

    value: tl.tensor

    @constexpr_function
    def __init__(self, value: tl.tensor) -> None:
        self.value = value

    @traced
    def __mul__(self, other: "Float2Tensor") -> "Float2Tensor":
        return _combine("mul", self, other)

    @traced
    def __sub__(self, other: "Float2Tensor") -> "Float2Tensor":
        return _combine("sub", self, other)

    @traced
    def __add__(self, other: "Float2Tensor") -> "Float2Tensor":
        return _combine("add", self, other)

    @traced
    def sum(self, axis: tl.constexpr) -> "Float2Tensor":
        """Return the pairs added up along `axis`; a `Float2Tensor` of one dimension less."""
        return Float2Tensor(self.value.reduce(axis, _total))


@builtin(requires=_REQUIRES, instead=_INSTEAD, name=f"{_SPACE}.fma")
def fma(a: "Float2Tensor", b: "Float2Tensor", c: "Float2Tensor") -> "Float2Tensor":
    """Return `a * b + c` of pairs, each rounded once.

    Args:
        a, b, c: each a `Float2Tensor`, of one shape and layout.

    Returns:
        A `Float2Tensor`.

    Raises:
        DtypeError: an operand is no `Float2Tensor`.

    ISA: PTX 9.7.3, fma.rn.f32x2.
    """
    operands = [_pairs(value, name) for name, value in (("a", a), ("b", b), ("c", c))]
    return Float2Tensor(_compute(semantic_layer(), "fma.rn", operands))


@builtin(requires=_MOVED, instead=_INSTEAD, name=f"{_SPACE}.full_like")
def full_like(x: "Float2Tensor", fill_value: Operand) -> "Float2Tensor":
    """Pairs of one number, in the shape and layout of other pairs.

    Args:
        x: a `Float2Tensor`.
        fill_value: a float32 scalar.

    Returns:
        A `Float2Tensor`.

    Raises:
        DtypeError: no `Float2Tensor`, or a number of another dtype.

    ISA: PTX 9.7.9, mov.b64.
    """
    semantic = semantic_layer()
    like = _pairs(x, "x")
    fill = _singles(semantic, fill_value, "fill_value")
    same = semantic.full(like.shape, fill, tl.float32, like.type.layout)
    return pack2(same, same)


@builtin(requires=_MOVED, instead=_INSTEAD, name=f"{_SPACE}.pack")
def pack(x: tl.tensor, axis: Const[int]) -> "Float2Tensor":
    """Pairs of neighbours along `axis`, which a thread must hold both.

    Args:
        x: a float32 tensor.
        axis: compile-time dimension of even extent.

    Returns:
        A `Float2Tensor` of `x`'s shape with half of `axis`.

    Raises:
        DtypeError: another dtype.
        ShapeError: no such dimension, or an odd extent.

    ISA: PTX 9.7.9, mov.b64.
    """
    semantic = semantic_layer()
    x = _singles(semantic, semantic.require_distributed(x, "x"), "x")
    shape = semantic.shape_of(x)
    axis = semantic.wrap_axis(axis, len(shape))
    if shape[axis] % 2:
        raise errors.ShapeError("an odd number cannot be paired", argument="x", got=shape)
    apart = semantic.reshape(x, shape[:axis] + [shape[axis] // 2, 2] + shape[axis + 1 :])
    others = [dim for dim in range(len(shape) + 1) if dim != axis + 1]
    first, second = semantic.split(semantic.permute(apart, [*others, axis + 1]))
    return pack2(first, second)


@builtin(requires=_MOVED, instead=_INSTEAD, name=f"{_SPACE}.pack2")
def pack2(x0: tl.tensor, x1: tl.tensor) -> "Float2Tensor":
    """Pairs of the elements of two tensors.

    Args:
        x0: float32 tensor, the first of each pair.
        x1: the second, of the same shape and layout.

    Returns:
        A `Float2Tensor` of that shape.

    Raises:
        DtypeError: another dtype.

    ISA: PTX 9.7.9, mov.b64.
    """
    semantic = semantic_layer()
    both = [_singles(semantic, x0, "x0"), _singles(semantic, x1, "x1")]
    return Float2Tensor(_instruction(semantic, "mov.b64 $0, { $1, $2 };", "=l,r,r", both, tl.int64))


@builtin(requires=_MOVED, instead=_INSTEAD, name=f"{_SPACE}.unpack")
def unpack(x: "Float2Tensor", axis: Const[int]) -> tl.tensor:
    """Unpack the result of `pack`: a float32 tensor whose dimension `axis` has both of each pair.

    Args:
        x: a `Float2Tensor`.
        axis: compile-time dimension along which `pack` paired.

    Returns:
        A float32 tensor of `x`'s shape with twice of `axis`.

    Raises:
        DtypeError: not a `Float2Tensor`.
        ShapeError: no such dimension.

    ISA: PTX 9.7.9, mov.b64.
    """
    semantic = semantic_layer()
    shape = semantic.shape_of(_pairs(x, "x"))
    axis = semantic.wrap_axis(axis, len(shape))
    joined = semantic.join(*unpack2(x))
    dims = list(range(len(shape)))
    interleaved = semantic.permute(joined, [*dims[: axis + 1], len(shape), *dims[axis + 1 :]])
    return semantic.reshape(interleaved, shape[:axis] + [2 * shape[axis]] + shape[axis + 1 :])


@builtin(requires=_MOVED, instead=_INSTEAD, name=f"{_SPACE}.unpack2")
def unpack2(x: "Float2Tensor") -> tuple[tl.tensor, tl.tensor]:
    """Return the first elements of the pairs, and the second.

    Args:
        x: a `Float2Tensor`.

    Returns:
        Two float32 tensors of its shape.

    Raises:
        DtypeError: not a `Float2Tensor`.

    ISA: PTX 9.7.9, mov.b64.
    """
    both = (tl.float32, tl.float32)
    text = "mov.b64 { $0, $1 }, $2;"
    result: tuple[tl.tensor, tl.tensor] = _instruction(
        semantic_layer(), text, "=r,=r,l", [_pairs(x, "x")], both
    )
    return result
