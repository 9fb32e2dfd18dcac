"""Elementwise ops: name -> function of NumPy arrays that broadcast against each other."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

from .dtypes import compute, finish, unsigned

__all__ = ["ELEMENTWISE"]

ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {}


def _op(*names: str) -> Callable:
    def put(fn: Callable) -> Callable:
        for name in names:
            ELEMENTWISE[name] = fn
        return fn

    return put


# ---- integers -------------------------------------------------------------------------------


def _signed_result(fn: Callable) -> Callable:
    """Run `fn` on the unsigned reading of its operands; the result is kept signed again."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = fn(unsigned(a), unsigned(b))
        return out if a.dtype == np.bool_ else out.view(a.dtype)

    return run


@_op("add")
def add(a, b):
    return np.logical_xor(a, b) if a.dtype == np.bool_ else np.add(a, b)


@_op("sub")
def sub(a, b):
    return np.logical_xor(a, b) if a.dtype == np.bool_ else np.subtract(a, b)


@_op("mul")
def mul(a, b):
    return np.multiply(a, b)


ELEMENTWISE["and"] = np.bitwise_and
ELEMENTWISE["or"] = np.bitwise_or
ELEMENTWISE["xor"] = np.bitwise_xor


def _divide(a, b):
    """Toward zero. Division by zero gives all ones, as GPUs do; the smallest over -1 wraps."""
    zero = b == 0
    safe = np.where(zero, a.dtype.type(1), b)
    quotient = a // safe
    remainder = a - quotient * safe
    if a.dtype.kind == "i":
        quotient = quotient + ((remainder != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return quotient, zero, safe


@_op("sdiv")
def sdiv(a, b):
    quotient, zero, _ = _divide(a, b)
    return np.where(zero, a.dtype.type(-1), quotient) if zero.any() else quotient


@_op("srem")
def srem(a, b):
    quotient, zero, safe = _divide(a, b)
    out = a - quotient * safe
    return np.where(zero, a, out) if zero.any() else out


@_op("udiv")
@_signed_result
def udiv(a, b):
    quotient, zero, _ = _divide(a, b)
    return np.where(zero, np.iinfo(a.dtype).max, quotient) if zero.any() else quotient


@_op("urem")
@_signed_result
def urem(a, b):
    zero = b == 0
    out = a % np.where(zero, a.dtype.type(1), b)
    return np.where(zero, a, out) if zero.any() else out


def _bits(a):
    return a.dtype.itemsize * 8


@_op("shl")
@_signed_result
def shl(a, b):
    wide = b >= _bits(a)
    out = np.left_shift(a, np.where(wide, b.dtype.type(0), b))
    return np.where(wide, a.dtype.type(0), out) if wide.any() else out


@_op("lshr")
@_signed_result
def lshr(a, b):
    wide = b >= _bits(a)
    out = np.right_shift(a, np.where(wide, b.dtype.type(0), b))
    return np.where(wide, a.dtype.type(0), out) if wide.any() else out


@_op("ashr")
def ashr(a, b):
    last = unsigned(b).dtype.type(_bits(a) - 1)
    return np.right_shift(a, np.minimum(unsigned(b), last).view(b.dtype))


ELEMENTWISE["minsi"] = np.minimum
ELEMENTWISE["maxsi"] = np.maximum
ELEMENTWISE["minui"] = _signed_result(np.minimum)
ELEMENTWISE["maxui"] = _signed_result(np.maximum)
ELEMENTWISE["iabs"] = np.abs


@_op("umulhi")
@_signed_result
def umulhi(a, b):
    bits = _bits(a)
    if bits < 64:
        return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(bits)).astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half)


# ---- comparisons ------------------------------------------------------------------------------

_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less,
}  # fmt: skip


def _compare() -> None:
    for name, fn in _COMPARE.items():
        if name in ("EQ", "NE"):
            ELEMENTWISE[f"icmp{name}"] = fn
        else:
            ELEMENTWISE[f"icmpS{name}"] = fn
            ELEMENTWISE[f"icmpU{name}"] = lambda a, b, fn=fn: fn(unsigned(a), unsigned(b))

        def ordered(a, b, fn=fn):
            a, b = compute(a), compute(b)
            return fn(a, b) & (a == a) & (b == b)

        def unordered(a, b, fn=fn):
            a, b = compute(a), compute(b)
            return fn(a, b) | (a != a) | (b != b)

        plain = lambda a, b, fn=fn: fn(compute(a), compute(b))  # noqa: E731
        # NumPy's comparisons are false on NaN, except !=, which is true.
        ELEMENTWISE[f"fcmpO{name}"] = ordered if name == "NE" else plain
        ELEMENTWISE[f"fcmpU{name}"] = plain if name == "NE" else unordered


_compare()


@_op("select")
def select(condition, a, b):
    return np.where(condition, a, b)


# ---- floats ---------------------------------------------------------------------------------


def _float(fn: Callable) -> Callable:
    """Compute in the type itself, or float32 for the types NumPy cannot compute in; round once."""

    def run(a: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        return finish(fn(compute(a), *(compute(r) for r in rest)), a.dtype)

    return run


def _wide(fn: Callable) -> Callable:
    """Compute in float64 and round once: for functions whose NumPy float32 form is less exact."""

    def run(a: np.ndarray) -> np.ndarray:
        return finish(fn(a.astype(np.float64)), a.dtype)

    return run


for _name, _fn in {
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide,
    "precise_divf": np.divide, "approx_divf": np.divide, "frem": np.fmod, "fneg": np.negative,
    "fabs": np.abs, "floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt, "precise_sqrt": np.sqrt,
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos,
    "maximumf": np.maximum, "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin,
}.items():  # fmt: skip
    ELEMENTWISE[_name] = _float(_fn)
ELEMENTWISE["rsqrt"] = _wide(lambda x: 1.0 / np.sqrt(x))
_ERF = np.frompyfunc(math.erf, 1, 1)
ELEMENTWISE["erf"] = _wide(lambda x: _ERF(x).astype(np.float64))


@_op("clampf")
def clampf(x, low, high, propagate_nan="none"):
    name = str(getattr(propagate_nan, "name", propagate_nan)).lower()
    x32, low, high = compute(x), compute(low), compute(high)
    if name == "all":
        out = np.minimum(np.maximum(x32, low), high)
    else:
        out = np.fmin(np.fmax(x32, low), high)
    return finish(out, x.dtype)


def _two_sum(a, b):
    total = a + b
    t = total - a
    return total, (a - (total - t)) + (b - t)


def _two_product(a, b):
    split = 134217729.0  # 2**27 + 1
    high = a * b
    ah = a * split
    ah = ah - (ah - a)
    bh = b * split
    bh = bh - (bh - b)
    al, bl = a - ah, b - bh
    return high, ((ah * bh - high) + ah * bl + al * bh) + al * bl


@_op("fma")
def fma(a, b, c):
    """a * b + c, rounded once."""
    from .dtypes import to_odd

    a64, b64, c64 = np.broadcast_arrays(*(x.astype(np.float64) for x in (a, b, c)))
    plain = a64 * b64 + c64
    if a.dtype != np.float64:
        # The product is exact in float64; the sum is made safe to round again.
        total, error = _two_sum(a64 * b64, c64)
        out = to_odd(total, np.where(np.isfinite(plain), error, 0))
        from .dtypes import _f64_to_f32_odd

        if a.dtype.itemsize < 4 and a.dtype != np.float16:
            out = _f64_to_f32_odd(out)
        return finish(out, a.dtype)
    high, low = _two_product(a64, b64)
    t_high, t_low = _two_sum(c64, low)
    v_high, v_low = _two_sum(high, t_high)
    z, error = _two_sum(t_low, v_low)
    out = v_high + to_odd(z, error)
    # Splitting overflows near the ends of the range; there the plain form is as good as it gets.
    return np.where(np.isfinite(out) & np.isfinite(plain), out, plain)
