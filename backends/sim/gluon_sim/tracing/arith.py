"""Elementwise ops: name -> function of NumPy arrays that broadcast against each other."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, TypeVar

import numpy as np

from gluon_sim.tracing.dtypes import compute, finish, float32_to_odd, to_odd, unsigned

__all__ = ["ELEMENTWISE", "entering"]

F = TypeVar("F", bound=Callable[..., Any])

ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {}


def entering(table: dict[str, Callable[..., Any]]) -> Callable[..., Callable[[F], F]]:
    """Return a decorator `@into(*names)` that keeps functions in a table, under the ops that they mean."""

    def into(*names: str) -> Callable[[F], F]:
        def put(fn: F) -> F:
            for name in names:
                table[name] = fn
            return fn

        return put

    return into


_op = entering(ELEMENTWISE)


# ---- integers -------------------------------------------------------------------------------


def _signed_result(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Run `fn` on the unsigned reading of its operands; the result is kept signed again."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = fn(unsigned(a), unsigned(b))
        return out if a.dtype == np.bool_ else out.view(a.dtype)

    return run


@_op("add")
def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.logical_xor(a, b) if a.dtype == np.bool_ else np.add(a, b)
    return out


@_op("sub")
def sub(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.logical_xor(a, b) if a.dtype == np.bool_ else np.subtract(a, b)
    return out


ELEMENTWISE["mul"] = np.multiply
ELEMENTWISE["and"] = np.bitwise_and
ELEMENTWISE["or"] = np.bitwise_or
ELEMENTWISE["xor"] = np.bitwise_xor


def _divide(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, Optional[np.ndarray]]:
    """Return the quotient toward zero, the remainder, and where `b` is zero, if anywhere; the smallest over -1 wraps."""
    zero = b == 0
    some = zero.any()
    safe = np.where(zero, a.dtype.type(1), b) if some else b
    remainder = np.fmod(a, safe)
    return (a - remainder) // safe, remainder, zero if some else None


@_op("sdiv")
def sdiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Division by zero gives all ones, as GPUs do."""
    quotient, _, zero = _divide(a, b)
    return quotient if zero is None else np.where(zero, a.dtype.type(-1), quotient)


@_op("srem")
def srem(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    _, remainder, zero = _divide(a, b)
    return remainder if zero is None else np.where(zero, a, remainder)


@_op("udiv")
@_signed_result
def udiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient, _, zero = _divide(a, b)
    return quotient if zero is None else np.where(zero, np.iinfo(a.dtype).max, quotient)


@_op("urem")
@_signed_result
def urem(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    zero = b == 0
    out = a % np.where(zero, a.dtype.type(1), b)
    return np.where(zero, a, out) if zero.any() else out


def _bits(a: np.ndarray) -> int:
    return a.dtype.itemsize * 8


@_op("shl")
@_signed_result
def shl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = b >= _bits(a)
    out: np.ndarray = np.left_shift(a, np.where(wide, b.dtype.type(0), b))
    return np.where(wide, a.dtype.type(0), out) if wide.any() else out


@_op("lshr")
@_signed_result
def lshr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = b >= _bits(a)
    out: np.ndarray = np.right_shift(a, np.where(wide, b.dtype.type(0), b))
    return np.where(wide, a.dtype.type(0), out) if wide.any() else out


@_op("ashr")
def ashr(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    last = unsigned(b).dtype.type(_bits(a) - 1)
    by = np.minimum(unsigned(b), last).view(b.dtype)
    out: np.ndarray = np.right_shift(a, by)
    return out


ELEMENTWISE["minsi"] = np.minimum
ELEMENTWISE["maxsi"] = np.maximum
ELEMENTWISE["minui"] = _signed_result(np.minimum)
ELEMENTWISE["maxui"] = _signed_result(np.maximum)
ELEMENTWISE["iabs"] = np.abs


@_op("umulhi")
@_signed_result
def umulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = _bits(a)
    if bits < 64:
        wide: np.ndarray = (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(bits)
        return wide.astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & low)
    out: np.ndarray = a1 * b1 + (middle >> half) + (other >> half)
    return out


# ---- comparisons ------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    "EQ": np.equal, "NE": np.not_equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less,
}  # fmt: skip


def _computed(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda a, b: fn(compute(a), compute(b))


def _ordered(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = compute(a), compute(b)
        out: np.ndarray = fn(a, b) & (a == a) & (b == b)
        return out

    return run


def _unordered(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = compute(a), compute(b)
        out: np.ndarray = fn(a, b) | (a != a) | (b != b)
        return out

    return run


def _on_unsigned(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda a, b: fn(unsigned(a), unsigned(b))


# NumPy's comparisons are false on NaN, except !=, which is true.
for _name, _fn in _COMPARE.items():
    if _name in ("EQ", "NE"):
        ELEMENTWISE[f"icmp{_name}"] = _fn
    else:
        ELEMENTWISE[f"icmpS{_name}"] = _fn
        ELEMENTWISE[f"icmpU{_name}"] = _on_unsigned(_fn)
    ELEMENTWISE[f"fcmpO{_name}"] = (_ordered if _name == "NE" else _computed)(_fn)
    ELEMENTWISE[f"fcmpU{_name}"] = (_computed if _name == "NE" else _unordered)(_fn)


@_op("select")
def select(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, a, b)


# ---- floats ---------------------------------------------------------------------------------


def _float(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Compute in the type itself, or float32 for the types NumPy cannot compute in; round once."""

    def run(a: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        return finish(fn(compute(a), *(compute(r) for r in rest)), a.dtype)

    return run


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
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
ELEMENTWISE["erf"] = _wide(lambda x: np.asarray(_ERF(x), np.float64))


@_op("clampf")
def clampf(
    x: np.ndarray, low: np.ndarray, high: np.ndarray, propagate_nan: Any = "none"
) -> np.ndarray:
    name = str(getattr(propagate_nan, "name", propagate_nan)).lower()
    x32, low, high = compute(x), compute(low), compute(high)
    if name == "all":
        out = np.minimum(np.maximum(x32, low), high)
    else:
        out = np.fmin(np.fmax(x32, low), high)
    return finish(out, x.dtype)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    t = total - a
    return total, (a - (total - t)) + (b - t)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    split = 134217729.0  # 2**27 + 1
    high = a * b
    ah = a * split
    ah = ah - (ah - a)
    bh = b * split
    bh = bh - (bh - b)
    al, bl = a - ah, b - bh
    return high, ((ah * bh - high) + ah * bl + al * bh) + al * bl


@_op("fma")
def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded once."""
    a64, b64, c64 = np.broadcast_arrays(*(x.astype(np.float64) for x in (a, b, c)))
    plain = a64 * b64 + c64
    if a.dtype != np.float64:
        # The product is exact in float64; the sum is made safe to round again.
        total, error = _two_sum(a64 * b64, c64)
        out = to_odd(total, np.where(np.isfinite(plain), error, 0))
        if a.dtype.itemsize < 4 and a.dtype != np.float16:
            out = float32_to_odd(out)
        return finish(out, a.dtype)
    high, low = _two_product(a64, b64)
    t_high, t_low = _two_sum(c64, low)
    v_high, v_low = _two_sum(high, t_high)
    z, error = _two_sum(t_low, v_low)
    out = v_high + to_odd(z, error)
    # Splitting overflows near the ends of the range; there the plain form is as good as it gets.
    result: np.ndarray = np.where(np.isfinite(out) & np.isfinite(plain), out, plain)
    return result
