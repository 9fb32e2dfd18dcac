"""Pairs of float32 in one 64-bit register, computed with packed instructions (sm_100).

    x = float2.pack(a, axis=1)   # pairs of neighbours along dimension 1
    y = float2.fma(x, x, x)
    b = float2.unpack(y, axis=1)

Triton's own library has this up to 3.7, and `add2`, `fma2`, ... after it; here it works with all.
"""


from typing import Any

from gluon_core import language as gl
from gluon_core._aggregate import aggregate
from gluon_core._triton import JITFunction, constexpr_function, tl, tl_core, unwrap
from gluon_core.builtin import builtin
from gluon_core.errors import DtypeError, ShapeError
from gluon_core.semantic.base import describe, shape_of

__all__ = ["Float2Tensor", "fma", "full_like", "pack", "pack2", "unpack", "unpack2"]

_NAME = "gl.nvidia.blackwell.float2"


@builtin(requires=("nvidia.f32x2",), name=_NAME, instead="float32 tensors")
def _assembly(text: Any, constraints: Any, args: Any, dtype: Any, _semantic: Any = None) -> Any:
    return tl_core.inline_asm_elementwise(
        text, constraints, args, dtype, True, 1, _semantic=_semantic
    )


@builtin(requires=("nvidia.f32x2",), name=_NAME, instead="float32 tensors")
def _float32(value: Any, argument: Any, _semantic: Any = None) -> Any:
    """`value` as a tensor of float32, or an error."""
    value = _semantic.to_tensor(value)
    if value.dtype != tl.float32:
        raise DtypeError(
            "pairs are of float32",
            argument=unwrap(argument),
            expected="float32",
            got=describe(value),
        )
    return value


@builtin(requires=("nvidia.f32x2",), name=_NAME, instead="float32 tensors")
def _pairable(value: Any, axis: Any, _semantic: Any = None) -> Any:
    """The dimension `axis`, counted from the front, if `value` can be paired along it."""
    value = _semantic.require_distributed(value, "x")
    shape, axis = shape_of(value), unwrap(axis)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise ShapeError("no such dimension", argument="axis", expected=f"of {shape}", got=axis)
    if shape[axis] % 2:
        raise ShapeError("an odd number cannot be paired", argument="x", got=shape)
    return gl.constexpr(axis % len(shape))


@constexpr_function
def _halves(shape: Any, axis: int) -> Any:
    return [*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :]]


@constexpr_function
def _doubled(shape: Any, axis: int) -> Any:
    return [*shape[:axis], shape[axis] * 2, *shape[axis + 1 :]]


@constexpr_function
def _pair_last(rank: int, axis: int) -> Any:
    """The order that brings dimension `axis + 1` of `rank + 1` to the end."""
    return [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]


@constexpr_function
def _pair_back(rank: int, axis: int) -> Any:
    return [*range(axis + 1), rank, *range(axis + 1, rank)]


@constexpr_function
def _wrapped(rank: int, axis: int) -> Any:
    return axis % rank


@JITFunction
def _add_f32x2(a, b):
    return _assembly(
        """
        add.f32x2 $0, $1, $2;
        """,
        "=l,l,l",
        [a, b],
        gl.int64,
    )


@JITFunction
def _sub_f32x2(a, b):
    return _assembly(
        """
        sub.f32x2 $0, $1, $2;
        """,
        "=l,l,l",
        [a, b],
        gl.int64,
    )


@JITFunction
def _mul_f32x2(a, b):
    return _assembly(
        """
        mul.f32x2 $0, $1, $2;
        """,
        "=l,l,l",
        [a, b],
        gl.int64,
    )


@JITFunction
def _fma_f32x2(a, b, c):
    return _assembly(
        """
        fma.rn.f32x2 $0, $1, $2, $3;
        """,
        "=l,l,l,l",
        [a, b, c],
        gl.int64,
    )


@aggregate
class Float2Tensor:
    """A tensor of pairs of float32: the first of a pair in the low half of an int64.

    `+`, `-` and `*` work on pairs elementwise. Make one with `pack` or `pack2`.
    """

    value: gl.tensor

    @constexpr_function
    def __init__(self, value: gl.tensor):
        self.value = value

    @JITFunction
    def __add__(self, rhs):
        return Float2Tensor(_add_f32x2(self.value, rhs.value))

    @JITFunction
    def __sub__(self, rhs):
        return Float2Tensor(_sub_f32x2(self.value, rhs.value))

    @JITFunction
    def __mul__(self, rhs):
        return Float2Tensor(_mul_f32x2(self.value, rhs.value))

    @JITFunction
    def sum(self, axis: gl.constexpr):
        """The pairs added up along `axis`; a `Float2Tensor` of one dimension less."""
        return Float2Tensor(gl.reduce(self.value, axis, _add_f32x2))


@JITFunction
def pack2(x0, x1):
    """Pairs of the elements of two float32 tensors of one shape and layout."""
    value = _assembly(
        """
        mov.b64 $0, { $1, $2 };
        """,
        "=l,r,r",
        [_float32(x0, "x0"), _float32(x1, "x1")],
        gl.int64,
    )
    return Float2Tensor(value)


@JITFunction
def unpack2(x):
    """The first elements of the pairs, and the second: two float32 tensors."""
    return _assembly(
        """
        mov.b64 { $0, $1 }, $2;
        """,
        "=r,=r,l",
        [x.value],
        [gl.float32, gl.float32],
    )


@JITFunction
def pack(x, axis: gl.constexpr):
    """Pairs of neighbours along `axis`, which a thread must hold both.

    Args:
        x: a float32 tensor.
        axis: compile-time dimension of even extent.
    """
    at: gl.constexpr = _pairable(x, axis)
    halves = x.reshape(_halves(x.shape, at))
    x0, x1 = halves.permute(_pair_last(len(x.shape), at)).split()
    return pack2(x0, x1)


@JITFunction
def unpack(x, axis: gl.constexpr):
    """What `pack` packed: a float32 tensor whose dimension `axis` has both of each pair."""
    shape: gl.constexpr = x.value.shape
    at: gl.constexpr = _wrapped(len(shape), axis)
    x0, x1 = unpack2(x)
    joined = gl.join(x0, x1).permute(_pair_back(len(shape), at))
    return joined.reshape(_doubled(shape, at))


@JITFunction
def full_like(x, fill_value):
    """Pairs of `fill_value`, a float32 scalar, in the shape and layout of `x`."""
    fill = _float32(fill_value, "fill_value")
    one = gl.full_like(x.value, fill, dtype=gl.float32)
    return pack2(one, one)


@JITFunction
def fma(a, b, c):
    """`a * b + c` of pairs, each rounded once."""
    return Float2Tensor(_fma_f32x2(a.value, b.value, c.value))
