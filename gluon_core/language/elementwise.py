"""Element-wise ops: arithmetic, comparisons, mathematics, casts, selection.

Each op works on tensors and scalars, broadcasts its operands, and needs equal layouts.
"""

from __future__ import annotations

from typing import Any, Optional, Protocol, Sequence, Union

from gluon_core import _triton
from gluon_core._triton import constexpr, tensor, tl, tl_core, tl_math, tl_tuple, unwrap
from gluon_core.errors import ArgumentError, DtypeError
from gluon_core.features import FDIV_APPROX, FDIV_PROMOTES
from gluon_core.language._library import library
from gluon_core.plugin.ops import builtin, code_generator, semantic_layer
from gluon_core.plugin.typing import Const, Dtype, KernelFunction, Operand, Scalar, Values
from gluon_core.semantic import layer
from gluon_core.values.tensors import describe

__all__ = [
    "abs",
    "add",
    "cast",
    "cdiv",
    "ceil",
    "clamp",
    "cos",
    "div_rn",
    "erf",
    "exp",
    "exp2",
    "expect_zero",
    "fdiv",
    "floor",
    "fma",
    "inline_asm_elementwise",
    "log",
    "log2",
    "map_elementwise",
    "maximum",
    "minimum",
    "mul",
    "rsqrt",
    "sin",
    "sqrt",
    "sqrt_rn",
    "sub",
    "umulhi",
    "where",
]

# `propagate_nan` of Triton's: the result for an operand that is NaN.
PropagateNan = Union[tl.PropagateNan, constexpr]
_NUMBER = tl.PropagateNan.NONE


@builtin
def add(x: Operand, y: Operand, sanitize_overflow: Const[bool] = True) -> tensor:
    """`x + y`.

    Integers wrap. With overflow sanitization on and `sanitize_overflow` true, a debug build asserts
    that they do not.
    """
    return tl_core.add(x, y, sanitize_overflow, _semantic=semantic_layer())


@builtin
def sub(x: Operand, y: Operand, sanitize_overflow: Const[bool] = True) -> tensor:
    """`x - y`; see `add` for overflow."""
    return tl_core.sub(x, y, sanitize_overflow, _semantic=semantic_layer())


@builtin
def mul(x: Operand, y: Operand, sanitize_overflow: Const[bool] = True) -> tensor:
    """`x * y`; see `add` for overflow."""
    return tl_core.mul(x, y, sanitize_overflow, _semantic=semantic_layer())


@builtin
def minimum(x: Operand, y: Operand, propagate_nan: PropagateNan = _NUMBER) -> tensor:
    """Return the smaller of `x` and `y`; of NaN and a number the number, or NaN with
    `propagate_nan=triton.language.PropagateNan.ALL`."""
    return tl_core.minimum(x, y, propagate_nan, _semantic=semantic_layer())


@builtin
def maximum(x: Operand, y: Operand, propagate_nan: PropagateNan = _NUMBER) -> tensor:
    """Return the larger of `x` and `y`; of NaN and a number the number, or NaN with
    `propagate_nan=triton.language.PropagateNan.ALL`."""
    return tl_core.maximum(x, y, propagate_nan, _semantic=semantic_layer())


@builtin
def clamp(x: Operand, min: Operand, max: Operand, propagate_nan: PropagateNan = _NUMBER) -> tensor:
    """`x` limited to `[min, max]`; floating dtypes."""
    return tl_core.clamp(x, min, max, propagate_nan, _semantic=semantic_layer())


@builtin
def cast(
    input: Operand,
    dtype: Dtype,
    fp_downcast_rounding: Optional[Const[str]] = None,
    bitcast: Const[bool] = False,
) -> tensor:
    """`input` with elements of `dtype`.

    Args:
        fp_downcast_rounding: "rtne" (default) or "rtz", where a float gets narrower.
        bitcast: keep the bits; needs equal widths.
    """
    return tl_core.cast(input, dtype, fp_downcast_rounding, bitcast, _semantic=semantic_layer())


@builtin
def map_elementwise(scalar_fn: KernelFunction, *args: tensor, pack: Const[int] = 1) -> Any:
    """Apply `scalar_fn`, a `@gluon.jit` function of scalars, to `pack` elements of each tensor at a
    time. Return its results: one tensor or a tuple."""
    return tl_core.map_elementwise(
        scalar_fn, *args, pack=pack, _semantic=semantic_layer(), _generator=code_generator()
    )


def _is_floating(value: Any) -> bool:
    return value.dtype.is_floating() if isinstance(value, tl.tensor) else isinstance(value, float)


def _of_floats(name: str, *operands: Operand) -> Any:
    """Check and emit a mathematical function: at least one operand must be floating, numbers included."""
    plain = [unwrap(operand) for operand in operands]
    if not any(map(_is_floating, plain)):
        got = ", ".join(map(describe, plain))
        raise DtypeError(
            f"{name} needs a floating dtype",
            argument="x",
            got=got,
            remedy="Convert it: x.to(gl.float32)."
            if all(isinstance(value, (tl.tensor, int)) for value in plain)
            else None,
        )
    return getattr(tl_math, name)(*operands, _semantic=semantic_layer())


@builtin
def abs(x: Operand) -> tensor:
    """Absolute value."""
    value = unwrap(x)
    if isinstance(value, tensor) and value.dtype == tl.float8e4b15:
        layer().refuse_narrow("the absolute value", value)
    return tl_math.abs(x, _semantic=semantic_layer())


class _Function(Protocol):
    def __call__(self, x: Operand) -> tensor:
        """Apply a mathematical function to each element."""


def _function(name: str, doc: str) -> _Function:
    """Return the op of a mathematical function of floats, documented."""

    def op(x: Operand) -> tensor:
        return _of_floats(name, x)

    op.__doc__ = doc
    return builtin(name=f"gl.{name}")(op)


ceil = _function("ceil", "Round up to an integral float.")
floor = _function("floor", "Round down to an integral float.")
cos = _function("cos", "Cosine of radians; float32, float64.")
sin = _function("sin", "Sine of radians; float32, float64.")
exp = _function("exp", "e to the x; float32, float64.")
exp2 = _function("exp2", "2 to the x; float32, float64.")
log = _function("log", "Natural logarithm; float32, float64.")
log2 = _function("log2", "Logarithm to base 2; float32, float64.")
erf = _function("erf", "Error function; float32, float64.")
sqrt = _function("sqrt", "Square root, possibly approximate; float32, float64.")
sqrt_rn = _function("sqrt_rn", "Square root rounded to nearest even; float32.")
rsqrt = _function("rsqrt", "One over the square root; float32, float64.")


@builtin
def div_rn(x: Operand, y: Operand) -> tensor:
    """`x / y` rounded to nearest even; float32."""
    return _of_floats("div_rn", x, y)


@builtin
def fma(x: Operand, y: Operand, z: Operand) -> tensor:
    """`x * y + z` with one rounding."""
    layer().refuse_narrow("fma", unwrap(x), unwrap(y), unwrap(z))
    return _of_floats("fma", x, y, z)


@library(tl.cdiv, host=lambda x, div: -(-x // div))
def cdiv(x: Operand, div: Operand) -> Any:
    """`x` divided by `div`, rounded up; integers. A compile-time value of compile-time values. Host
    code, such as a grid, may call it, too."""
    ...


@builtin
def umulhi(x: Operand, y: Operand) -> tensor:
    """Return the upper half of the double-width unsigned product; 32 and 64 bits."""
    for argument, value in (("x", unwrap(x)), ("y", unwrap(y))):
        if _is_floating(value):
            raise DtypeError("must be integers", argument=argument, got=describe(value))
    return tl_math.umulhi(x, y, _semantic=semantic_layer())


@builtin
def where(condition: Operand, x: Operand, y: Operand) -> tensor:
    """`x` where `condition` (int1) is true, else `y`; both sides are evaluated."""
    x, y = unwrap(x), unwrap(y)
    kinds = [value.type.scalar if isinstance(value, tl.tensor) else None for value in (x, y)]
    if any(kind is not None and kind.is_ptr() for kind in kinds) and kinds[0] != kinds[1]:
        got = " and ".join(str(kind or value) for kind, value in zip(kinds, (x, y)))
        raise DtypeError("both sides must point to one dtype", argument="y", got=got)
    return tl_core.where(condition, x, y, _semantic=semantic_layer())


@builtin
def inline_asm_elementwise(
    asm: Const[str],
    constraints: Const[str],
    args: Values,
    dtype: Union[Dtype, Sequence[Dtype], tl_tuple],
    is_pure: Const[bool],
    pack: Const[int],
) -> Any:
    """Inline assembly run on `pack` elements (32-bit registers hold several narrow ones) of each of
    `args`.

    A thread takes its elements in the order of its registers. PTX runs on the simulator; for its
    registers and global memory see "Inline assembly" in docs/simulator.md.

    Args:
        asm: the text, with `$0`, `$1`, ... for operands, outputs first; `$$` is a dollar sign.
        constraints: those of LLVM for the target, such as `"=r,r"`, a register for each operand.
        args: tensors or scalars, broadcast to one shape.
        dtype: one dtype or a tuple of them, one result each.
        is_pure: lets the compiler move or drop it.
        pack: elements per thread and run, a power of two.

    Raises:
        ArgumentError, DtypeError: the arguments are not of these kinds.
    """
    for argument, value in (("asm", asm), ("constraints", constraints)):
        if not isinstance(unwrap(value), str):
            raise ArgumentError("must be a string", argument=argument, got=repr(unwrap(value)))
    count = unwrap(pack)
    if not isinstance(count, int) or count < 1 or count & (count - 1):
        raise ArgumentError("must be a power of two", argument="pack", got=repr(count))
    kinds = unwrap(dtype)
    if isinstance(kinds, (tuple, list, tl_tuple)):
        kinds = tuple(map(unwrap, kinds))  # written in a kernel, a tuple's entries are constexprs
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not isinstance(kind, tl.dtype):
            raise DtypeError("not a dtype", argument="dtype", got=repr(kind))
    layer().packed_asm(asm, constraints, args, kinds, count)
    return tl_core.inline_asm_elementwise(
        asm, constraints, args, kinds, is_pure, pack, _semantic=semantic_layer()
    )


@builtin
def fdiv(
    x: Operand, y: Operand, ieee_rounding: Const[bool] = False, approx: Const[bool] = False
) -> tensor:
    """`x / y` of floats. `ieee_rounding` rounds to nearest even; `approx` (Triton 3.9) is the fastest."""
    here, extra = semantic_layer(), {}
    if not _triton.has(FDIV_PROMOTES):
        a, b = here.to_tensor(x), here.to_tensor(y)
        if not a.dtype.is_floating() or not b.dtype.is_floating():
            raise DtypeError("fdiv divides floats", argument="x", got=f"{a.dtype} and {b.dtype}")
        x, y = tl_core.binary_op_type_legalization(a, b, here)
    if unwrap(approx):
        _triton.require(FDIV_APPROX, "gl.fdiv(approx=True)")
        extra["approx"] = approx
    return tl_math.fdiv(x, y, ieee_rounding=ieee_rounding, _semantic=here, **extra)


@builtin
def expect_zero(x: tensor, mask: Scalar[bool]) -> tensor:
    """`x`, of which the author says that it is zero where `mask` is true; `debug=True` asserts it."""
    return layer().expect_zero(x, mask)
