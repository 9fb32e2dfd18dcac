"""The functions of C's math library, and some that vendors add, in float64.

A reference module names them in its `EXTERNS`. NumPy has no special functions, and the simulator needs
no SciPy. Each takes an array of any float type.
"""

from __future__ import annotations

import math
from typing import Callable, Optional

import numpy as np

__all__ = [
    "FUNCTIONS",
    "bessel_i",
    "bessel_j",
    "bessel_y",
    "each",
    "erfcinv",
    "erfcx",
    "erfinv",
    "exponent",
    "function",
    "lgamma",
    "normcdf",
    "normcdfinv",
    "tgamma",
]

_EULER = 0.57721566490153286


def each(fn: Callable[..., float]) -> Callable[..., np.ndarray]:
    """`fn` of one or more floats, for arrays."""

    def lifted(*xs: np.ndarray) -> np.ndarray:
        results = np.frompyfunc(fn, len(xs), 1)(*(x.astype(np.float64) for x in xs))
        return np.asarray(results).astype(np.float64)

    return lifted


def _bessel_j_row(x: float, count: int) -> np.ndarray:
    """J_0(x) ... J_{count-1}(x): the Fourier coefficients of exp(i x sin t)."""
    points = 1 << (int(abs(x)) + count + 40).bit_length()
    angles = 2 * np.pi * np.arange(points) / points
    return (np.fft.fft(np.exp(1j * x * np.sin(angles))) / points).real[:count]


def _hankel(order: int, x: float) -> tuple[float, float]:
    """J and Y of a large x, by Hankel's expansion."""
    p, q, term, mu = 1.0, 0.0, 1.0, 4.0 * order * order
    for k in range(1, 20):
        following = term * (mu - (2 * k - 1) ** 2) / (k * 8 * x)
        if abs(following) >= abs(term) or following == 0:
            break
        term = following
        if k % 2:
            q += term if k % 4 == 1 else -term
        else:
            p += term if k % 4 == 0 else -term
    phase, size = x - (order / 2 + 0.25) * math.pi, math.sqrt(2 / (math.pi * x))
    cosine, sine = math.cos(phase), math.sin(phase)
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def _j(order: int, x: float) -> float:
    if not math.isfinite(x):
        return math.nan if math.isnan(x) else 0.0
    if order < 0:
        return _j(-order, x) if order % 2 == 0 else -_j(-order, x)
    if x == 0:
        return float(order == 0)
    if abs(x) > max(1000.0, float(order * order)):
        value = _hankel(order, abs(x))[0]
        return -value if x < 0 and order % 2 else value
    return float(_bessel_j_row(x, order + 1)[order])


def _y(order: int, x: float) -> float:
    if math.isnan(x) or x < 0:
        return math.nan
    if order < 0:
        return _y(-order, x) if order % 2 == 0 else -_y(-order, x)
    if x == 0:
        return -math.inf
    if math.isinf(x):
        return 0.0
    if x > max(1000.0, float(order * order)):
        return _hankel(order, x)[1]
    # Neumann's series for the first two, then the recurrence, which is stable upwards.
    half = int(x) // 2 + 30
    j = _bessel_j_row(x, 2 * half + 2)
    k = np.arange(1, half + 1)
    signs = np.where(k % 2, -1.0, 1.0)
    log = math.log(x / 2) + _EULER
    last = 2 / math.pi * (log * j[0] - 2 * float((signs * j[2 * k] / k).sum()))
    series = float((signs * (2 * k + 1) * j[2 * k + 1] / (k * (k + 1))).sum())
    value = 2 / math.pi * (-float(j[0]) / x + (log - 1) * float(j[1]) - series)
    if order == 0:
        return float(last)
    for n in range(1, order):
        last, value = value, 2 * n / x * value - last
    return float(value)


def _i(order: int, x: float) -> float:
    if not math.isfinite(x):
        return math.nan if math.isnan(x) else (-math.inf if x < 0 and order % 2 else math.inf)
    if x == 0:
        return float(order == 0)
    points = 1 << (int(min(abs(x), 800.0)) + 60).bit_length()
    angles = 2 * np.pi * np.arange(points) / points
    with np.errstate(over="ignore"):
        kernel = np.exp(abs(x) * (np.cos(angles) - 1)) * np.cos(order * angles)
        value = float(np.exp(min(abs(x), 1000.0)) * (kernel.sum() / points))
    return -value if x < 0 and order % 2 else value


def bessel_j(order: int) -> Callable[..., np.ndarray]:
    """J of this order."""
    return each(lambda x: _j(order, x))


def bessel_y(order: int) -> Callable[..., np.ndarray]:
    """Y of this order."""
    return each(lambda x: _y(order, x))


def bessel_i(order: int) -> Callable[..., np.ndarray]:
    """Return the modified I of this order."""
    return each(lambda x: _i(order, x))


def _tgamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:  # a pole
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


def _erfcinv(x: float) -> float:
    if not 0 <= x <= 2:
        return math.nan
    if x > 1:
        return -_erfinv(x - 1)
    if x == 0:
        return math.inf
    low, high = 0.0, 28.0
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle) > x else (low, middle)
    return (low + high) / 2


def _erfinv(x: float) -> float:
    if not abs(x) <= 1:
        return math.nan
    if abs(x) > 0.5:
        return math.copysign(_erfcinv(1 - abs(x)), x)
    y = x * math.sqrt(math.pi) / 2
    for _ in range(6):
        y -= (math.erf(y) - x) * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return y


def _erfcx(x: float) -> float:
    if x < 10:
        return math.inf if x < -26.7 else math.exp(x * x) * math.erfc(x)
    if math.isnan(x):
        return x
    total = term = 1.0
    for k in range(1, 12):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
    return total / (x * math.sqrt(math.pi))


tgamma = each(_tgamma)
lgamma = each(_lgamma)
erfinv = each(_erfinv)
erfcinv = each(_erfcinv)
erfcx = each(_erfcx)
normcdf = each(lambda x: math.erfc(-x / math.sqrt(2)) / 2)
normcdfinv = each(lambda p: -math.sqrt(2) * _erfcinv(2 * p))


def exponent(x: np.ndarray) -> np.ndarray:
    """C's ilogb, with INT_MIN for zero and NaN and INT_MAX for infinity."""
    limits = np.iinfo(np.int32)
    others = np.where(np.isinf(x), limits.max, limits.min)
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1, others).astype(np.int32)


def _of_order(make: Callable[[int], Callable[..., np.ndarray]]) -> Callable[..., np.ndarray]:
    one = each(lambda n, x: float(make(int(n))(np.float64(x))))
    return lambda n, x: one(*np.broadcast_arrays(n, x))


# By the names that `gluon_core.plugin.reference.MATH` lists.
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "erf": each(math.erf),
    "erfc": each(math.erfc), "erfcx": erfcx, "erfinv": erfinv, "exp": np.exp,
    "exp10": lambda x: 10.0**x, "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs,
    "floor": np.floor, "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod, "hypot": np.hypot,
    "j0": bessel_j(0), "j1": bessel_j(1), "lgamma": lgamma, "log": np.log, "log10": np.log10,
    "log1p": np.log1p, "log2": np.log2, "nearbyint": np.rint, "pow": np.power, "rint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "tgamma": tgamma, "trunc": np.trunc, "y0": bessel_y(0), "y1": bessel_y(1),
    "erfcinv": erfcinv, "i0": bessel_i(0), "i1": bessel_i(1), "ilogb": exponent,
    "jn": _of_order(bessel_j), "normcdf": normcdf, "normcdfinv": normcdfinv, "yn": _of_order(bessel_y),
}  # fmt: skip


def function(name: str) -> Optional[Callable[..., np.ndarray]]:
    """Return a function computed in float64, None where there is none of that name.

    The machine rounds to the type of the call.
    """
    fn = FUNCTIONS.get(name)
    return fn and (lambda *xs: fn(*(x.astype(np.float64) for x in xs)))
