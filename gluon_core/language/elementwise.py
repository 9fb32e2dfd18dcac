"""Element-wise ops: arithmetic, comparisons, mathematics, casts, selection.

Each op works on tensors and scalars, broadcasts its operands, and needs equal layouts.
"""

from __future__ import annotations

from typing import Any

from gluon_core import _triton
from gluon_core._triton import tl, tl_core, tl_math, unwrap
from gluon_core.builtin import adopt, builtin
from gluon_core.errors import DtypeError

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
where = adopt(
    tl_core.where, "`x` where `condition` (int1) is true, else `y`; both sides are evaluated."
)
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
inline_asm_elementwise = adopt(
    tl_core.inline_asm_elementwise,
    "Inline assembly run on `pack` elements (32-bit registers hold several narrow ones) of each of "
    "`args`. `constraints` are LLVM's: outputs (`=r`) first. `dtype` is one dtype or a tuple of "
    "them, one result each. `is_pure` lets the compiler move or drop it.",
)

abs = adopt(tl_math.abs, "Absolute value.")
ceil = adopt(tl_math.ceil, "Round up to an integral float.")
floor = adopt(tl_math.floor, "Round down to an integral float.")
cos = adopt(tl_math.cos, "Cosine of radians; float32, float64.")
sin = adopt(tl_math.sin, "Sine of radians; float32, float64.")
exp = adopt(tl_math.exp, "e to the x; float32, float64.")
exp2 = adopt(tl_math.exp2, "2 to the x; float32, float64.")
log = adopt(tl_math.log, "Natural logarithm; float32, float64.")
log2 = adopt(tl_math.log2, "Logarithm to base 2; float32, float64.")
erf = adopt(tl_math.erf, "Error function; float32, float64.")
sqrt = adopt(tl_math.sqrt, "Square root, possibly approximate; float32, float64.")
sqrt_rn = adopt(tl_math.sqrt_rn, "Square root rounded to nearest even; float32.")
rsqrt = adopt(tl_math.rsqrt, "One over the square root; float32, float64.")
div_rn = adopt(tl_math.div_rn, "`x / y` rounded to nearest even; float32.")
fma = adopt(tl_math.fma, "`x * y + z` with one rounding.")
umulhi = adopt(tl_math.umulhi, "The upper half of the double-width unsigned product; 32 and 64 bits.")
cdiv = tl.cdiv


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


