"""Element-wise ops: arithmetic, comparisons, mathematics, casts, selection.

Each op works on tensors and scalars, broadcasts its operands, and needs equal layouts.
"""

from __future__ import annotations

import functools
from typing import Any

from gluon_core import _triton
from gluon_core._triton import tl, tl_core, tl_math, tl_tuple, unwrap
from gluon_core.builtin import adopt, builtin
from gluon_core.errors import ArgumentError, DtypeError
from gluon_core.semantic.base import describe

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

add = adopt(
    tl_core.add,
    "`x + y`. Integers wrap; with overflow sanitization on and `sanitize_overflow` true, a debug "
    "build asserts that they do not.",
)
sub = adopt(tl_core.sub, "`x - y`; see `add` for overflow.")
mul = adopt(tl_core.mul, "`x * y`; see `add` for overflow.")
minimum = adopt(
    tl_core.minimum, "The smaller of `x` and `y`; `propagate_nan` says what a NaN operand gives."
)
maximum = adopt(
    tl_core.maximum, "The larger of `x` and `y`; `propagate_nan` says what a NaN operand gives."
)
clamp = adopt(tl_core.clamp, "`x` limited to `[min, max]`; floating dtypes.")
cast = adopt(
    tl_core.cast,
    "`input` as `dtype`. `fp_downcast_rounding` is `'rtne'` (default) or `'rtz'` where a float gets "
    "narrower; `bitcast` keeps the bits and needs equal widths.",
)
map_elementwise = adopt(
    tl_core.map_elementwise,
    "`scalar_fn`, a `@gluon.jit` function of scalars, applied to `pack` elements of each tensor at "
    "a time. Returns what it returns: one tensor or a tuple.",
)


def _is_floating(value: Any) -> bool:
    return value.dtype.is_floating() if isinstance(value, tl.tensor) else isinstance(value, float)


def _of_floats(fn: Any, doc: str) -> Any:
    """A mathematical function: at least one operand must be floating, numbers included."""

    @functools.wraps(fn)
    def op(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        operands = [unwrap(arg) for arg in (*args, *kwargs.values())]
        if operands and not any(map(_is_floating, operands)):
            got = ", ".join(map(describe, operands))
            raise DtypeError(f"{fn.__name__} needs a floating dtype", argument="x", got=got)
        return fn(*args, **kwargs, _semantic=_semantic)

    return adopt(op, doc)


abs = adopt(tl_math.abs, "Absolute value.")
ceil = _of_floats(tl_math.ceil, "Round up to an integral float.")
floor = _of_floats(tl_math.floor, "Round down to an integral float.")
cos = _of_floats(tl_math.cos, "Cosine of radians; float32, float64.")
sin = _of_floats(tl_math.sin, "Sine of radians; float32, float64.")
exp = _of_floats(tl_math.exp, "e to the x; float32, float64.")
exp2 = _of_floats(tl_math.exp2, "2 to the x; float32, float64.")
log = _of_floats(tl_math.log, "Natural logarithm; float32, float64.")
log2 = _of_floats(tl_math.log2, "Logarithm to base 2; float32, float64.")
erf = _of_floats(tl_math.erf, "Error function; float32, float64.")
sqrt = _of_floats(tl_math.sqrt, "Square root, possibly approximate; float32, float64.")
sqrt_rn = _of_floats(tl_math.sqrt_rn, "Square root rounded to nearest even; float32.")
rsqrt = _of_floats(tl_math.rsqrt, "One over the square root; float32, float64.")
div_rn = _of_floats(tl_math.div_rn, "`x / y` rounded to nearest even; float32.")
fma = _of_floats(tl_math.fma, "`x * y + z` with one rounding.")
cdiv = tl.cdiv


@builtin
def umulhi(x: Any, y: Any, _semantic: Any = None) -> Any:
    """The upper half of the double-width unsigned product; 32 and 64 bits."""
    for argument, value in (("x", unwrap(x)), ("y", unwrap(y))):
        if _is_floating(value):
            raise DtypeError("must be integers", argument=argument, got=describe(value))
    return tl_math.umulhi(x, y, _semantic=_semantic)


@builtin
def where(condition: Any, x: Any, y: Any, _semantic: Any = None) -> Any:
    """`x` where `condition` (int1) is true, else `y`; both sides are evaluated."""
    x, y = unwrap(x), unwrap(y)
    kinds = [value.type.scalar if isinstance(value, tl.tensor) else None for value in (x, y)]
    if any(kind is not None and kind.is_ptr() for kind in kinds) and kinds[0] != kinds[1]:
        got = " and ".join(str(kind or value) for kind, value in zip(kinds, (x, y)))
        raise DtypeError("both sides must point to one dtype", argument="y", got=got)
    return tl_core.where(condition, x, y, _semantic=_semantic)


@builtin
def inline_asm_elementwise(
    asm: Any,
    constraints: Any,
    args: Any,
    dtype: Any,
    is_pure: Any,
    pack: Any,
    _semantic: Any = None,
) -> Any:
    """Inline assembly run on `pack` elements (32-bit registers hold several narrow ones) of each of
    `args`.

    Args:
        asm: the text, with `$0`, `$1`, ... for operands, outputs first.
        constraints: LLVM's, such as `"=r,r"`.
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
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or count & (count - 1):
        raise ArgumentError("must be a power of two", argument="pack", got=repr(count))
    kinds = unwrap(dtype)
    for kind in kinds if isinstance(kinds, (tuple, tl_tuple)) else (kinds,):
        if not isinstance(unwrap(kind), tl.dtype):
            raise DtypeError("not a dtype", argument="dtype", got=repr(unwrap(kind)))
    return tl_core.inline_asm_elementwise(
        asm, constraints, args, dtype, is_pure, pack, _semantic=_semantic
    )


@builtin
def fdiv(
    x: Any, y: Any, ieee_rounding: Any = False, approx: Any = False, _semantic: Any = None
) -> Any:
    """`x / y` of floats. `ieee_rounding` rounds to nearest even; `approx` (Triton 3.9) is the fastest."""
    extra = {}
    if not _triton.at_least(3, 9):
        x, y = _semantic.to_tensor(x), _semantic.to_tensor(y)
        if x.dtype.is_floating() and y.dtype.is_floating():
            x, y = tl_core.binary_op_type_legalization(x, y, _semantic)
        else:
            raise DtypeError("fdiv divides floats", argument="x", got=f"{x.dtype} and {y.dtype}")
    if unwrap(approx):
        _triton.require((3, 9), "gl.fdiv(approx=True)")
        extra["approx"] = approx
    return tl_math.fdiv(x, y, ieee_rounding=ieee_rounding, _semantic=_semantic, **extra)


@builtin
def expect_zero(x: Any, mask: Any, _semantic: Any = None) -> Any:
    """`x`, of which the author says that it is zero where `mask` is true; `debug=True` asserts it."""
    return _semantic.expect_zero(x, mask)


