"""libdevice's functions of integers, of bits, and with a rounding mode in their name."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any, Callable

import numpy as np

__all__ = ["EXTERNS"]

Model = Callable[..., np.ndarray]
EXTERNS: dict[str, Model] = {}
MODES = ("rn", "rd", "ru", "rz")
FLOATS = {"f": np.float32, "d": np.float64}


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _wrapped(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _integers(fn: Callable[..., int], bits: int, unsigned: bool = False) -> Model:
    """`fn` of Python's integers, its result wrapped to so many bits."""

    def model(*xs: np.ndarray) -> np.ndarray:
        values = [_unsigned(x) if unsigned else x for x in xs]
        words = np.frompyfunc(lambda *v: _wrapped(fn(*map(int, v)), bits), len(xs), 1)(*values)
        return np.asarray(words).astype(np.dtype(f"i{bits // 8}"))

    return model


def _reversed(bits: int) -> Callable[[int], int]:
    return lambda x: int(f"{x:0{bits}b}"[::-1], 2)


def _byte_perm(x: int, y: int, selector: int) -> int:
    both = (y << 32) | x
    word = 0
    for i in range(4):
        word |= (both >> (8 * ((selector >> (4 * i)) & 7)) & 0xFF) << (8 * i)
    return word


def _signed24(x: int) -> int:
    return _wrapped(x, 24)


for _bits, _suffix in ((32, ""), (64, "ll")):
    EXTERNS[f"__nv_brev{_suffix}"] = _integers(_reversed(_bits), _bits, True)
    EXTERNS[f"__nv_clz{_suffix}"] = _integers(lambda x, bits=_bits: bits - x.bit_length(), 32, True)
    EXTERNS[f"__nv_ffs{_suffix}"] = _integers(lambda x: (x & -x).bit_length(), 32, True)
    EXTERNS[f"__nv_popc{_suffix}"] = _integers(lambda x: bin(x).count("1"), 32, True)
for _name, _bits in (("mulhi", 32), ("mul64hi", 64)):
    EXTERNS[f"__nv_{_name}"] = _integers(lambda x, y, b=_bits: (x * y) >> b, _bits)
    EXTERNS[f"__nv_u{_name}"] = _integers(lambda x, y, b=_bits: (x * y) >> b, _bits, True)
for _prefix, _of in (("", False), ("u", True)):
    EXTERNS[f"__nv_{_prefix}hadd"] = _integers(lambda x, y: (x + y) >> 1, 32, _of)
    EXTERNS[f"__nv_{_prefix}rhadd"] = _integers(lambda x, y: (x + y + 1) >> 1, 32, _of)
EXTERNS["__nv_mul24"] = _integers(lambda x, y: _signed24(x) * _signed24(y), 32)
EXTERNS["__nv_umul24"] = _integers(lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF), 32, True)
EXTERNS["__nv_sad"] = _integers(lambda x, y, z: abs(x - y) + z, 32)
EXTERNS["__nv_usad"] = _integers(lambda x, y, z: abs(x - y) + z, 32, True)
EXTERNS["__nv_byte_perm"] = _integers(_byte_perm, 32, True)


# -- bits ----------------------------------------------------------------------------------------


def _bits_as(source: Any, result: Any) -> Model:
    return lambda x: np.ascontiguousarray(x.astype(source)).view(result)


def _hiloint2double(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    both = (high.astype(np.int64) << 32) | _unsigned(low.astype(np.int32)).astype(np.int64)
    return np.ascontiguousarray(both).view(np.float64)


def _words(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.astype(np.float64)).view(np.int64)


def _rcp64h(x: np.ndarray) -> np.ndarray:
    """Return the reciprocal of the number with these upper 32 bits; its own lower 32 are zero."""
    with np.errstate(all="ignore"):
        reciprocals = 1 / (_words(x) >> 32 << 32).view(np.float64)
    return (_words(reciprocals) >> 32 << 32).view(np.float64)


EXTERNS |= {
    "__nv_double_as_longlong": _bits_as(np.float64, np.int64),
    "__nv_longlong_as_double": _bits_as(np.int64, np.float64),
    "__nv_float_as_int": _bits_as(np.float32, np.int32),
    "__nv_float_as_uint": _bits_as(np.float32, np.int32),
    "__nv_int_as_float": _bits_as(np.int32, np.float32),
    "__nv_uint_as_float": _bits_as(np.int32, np.float32),
    "__nv_double2hiint": lambda x: (_words(x) >> 32).astype(np.int32),
    "__nv_double2loint": lambda x: _words(x).astype(np.int32),
    "__nv_hiloint2double": _hiloint2double,
    "__nv_rcp64h": _rcp64h,
}


# -- rounding modes ------------------------------------------------------------------------------


def _round(near: Any, above: Callable[[Fraction], bool], mode: str, dtype: Any, sign: bool) -> Any:
    """Return the float of `dtype` next to an exact value in the direction of `mode`.

    Args:
        near: a float close to the value.
        above: whether a number is greater than the exact value.
        sign: whether the value is negative.
    """
    with np.errstate(over="ignore"):
        return _rounded(near, above, mode, dtype, sign)


def _rounded(
    near: Any, above: Callable[[Fraction], bool], mode: str, dtype: Any, sign: bool
) -> Any:
    info = np.finfo(dtype)
    low = np.clip(dtype(near), info.min, info.max)
    while np.isfinite(low) and above(Fraction(float(low))):
        low = np.nextafter(low, dtype(-np.inf))
    high = np.nextafter(low, dtype(np.inf))
    while np.isfinite(high) and not above(Fraction(float(high))):
        low, high = high, np.nextafter(high, dtype(np.inf))
    step = Fraction(float(info.max)) - Fraction(float(np.nextafter(info.max, dtype(0))))
    exact_low = Fraction(float(low)) if np.isfinite(low) else Fraction(float(info.min)) - step
    exact_high = Fraction(float(high)) if np.isfinite(high) else Fraction(float(info.max)) + step
    tiny = Fraction(1, 1 << 2400)
    if np.isfinite(low) and above(exact_low + tiny):  # it is exact
        return dtype(-0.0) if low == 0 and sign else low
    if mode == "rz":
        mode = "ru" if sign else "rd"
    if mode == "rn":
        middle = (exact_low + exact_high) / 2
        if above(middle):
            mode = "rd"
        elif not above(middle + tiny):
            mode = "ru"
        else:  # a tie goes to the even one
            kind = np.int32 if dtype is np.float32 else np.int64
            mode = "ru" if low.view(kind) & 1 else "rd"
    picked = low if mode == "rd" else high
    return dtype(-0.0) if picked == 0 and sign else picked


def _arithmetic(fn: Callable[..., Any], mode: str, dtype: Any) -> Model:
    """Compute finite floats exactly and round once; compute others as NumPy does."""

    def one(*xs: Any) -> Any:
        xs = tuple(dtype(x) for x in xs)
        with np.errstate(all="ignore"):
            near = fn(*xs)
        if not all(map(np.isfinite, xs)):
            return near
        try:
            exact = fn(*(Fraction(float(x)) for x in xs))
        except ZeroDivisionError:
            return near
        if exact == 0:  # downwards a sum of which a term is negative, or -0, is -0
            terms = {operator.add: xs, operator.sub: (xs[0], -xs[-1])}.get(fn, ())
            if fn is _fma:
                terms = np.copysign(1, xs[0]) * np.copysign(1, xs[1]), xs[2]
            return dtype(-0.0) if mode == "rd" and any(map(np.signbit, terms)) else near
        return _round(_near(exact), lambda y: y > exact, mode, dtype, exact < 0)

    return _elementwise(one, dtype)


def _near(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _elementwise(one: Callable[..., Any], dtype: Any) -> Model:
    def model(*xs: np.ndarray) -> np.ndarray:
        return np.asarray(np.frompyfunc(one, len(xs), 1)(*xs)).astype(dtype)

    return model


def _divide(x: Any, y: Any) -> Any:
    return x / y


def _reciprocal(x: Any) -> Any:
    return (Fraction(1) if isinstance(x, Fraction) else type(x)(1)) / x


def _fma(x: Any, y: Any, z: Any) -> Any:
    if isinstance(x, Fraction):
        return x * y + z
    if np.isinf(z) and np.isfinite(x) and np.isfinite(y):  # however large the product is
        return z
    return type(x)(np.float64(x) * np.float64(y) + np.float64(z))


def _root(mode: str, dtype: Any, inverse: bool = False) -> Model:
    def one(x: Any) -> Any:
        x = dtype(x)
        with np.errstate(all="ignore"):
            near = dtype(1) / np.sqrt(x) if inverse else np.sqrt(x)
        if not np.isfinite(near) or x == 0 or np.isinf(x):
            return near
        exact = 1 / Fraction(float(x)) if inverse else Fraction(float(x))
        return _round(near, lambda y: y > 0 and y * y > exact, mode, dtype, False)

    return _elementwise(one, dtype)


def _converted(mode: str, dtype: Any, unsigned: bool = False) -> Model:
    """Return a number as a float of `dtype`."""

    def one(x: Any) -> Any:
        if isinstance(x, float) and not math.isfinite(x):
            return dtype(x)
        exact = Fraction(x)
        if exact == 0:
            return dtype(x)
        return _round(_near(exact), lambda y: y > exact, mode, dtype, exact < 0)

    def model(x: np.ndarray) -> np.ndarray:
        values = _unsigned(x) if unsigned else x
        plain = float if x.dtype.kind == "f" else int
        return np.asarray(np.frompyfunc(lambda v: one(plain(v)), 1, 1)(values)).astype(dtype)

    return model


_WHOLE: dict[str, Callable[[float], int]] = {
    "rn": round, "rd": math.floor, "ru": math.ceil, "rz": math.trunc
}  # fmt: skip


def to_integer(mode: str, bits: int, unsigned: bool, wide: bool) -> Model:
    """Return a float as an integer: rounded, then the nearest that there is.

    Args:
        wide: of a float64, whose NaN becomes the highest bit; that of a float32 becomes 0, but in
            64 bits.
    """
    lowest = 0 if unsigned else -(1 << (bits - 1))
    highest = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
    nan = 1 << (bits - 1) if wide or bits == 64 else 0

    def one(x: Any) -> int:
        if math.isnan(x):
            return _wrapped(nan, bits)
        if math.isinf(x):
            return _wrapped(highest if x > 0 else lowest, bits)
        return _wrapped(min(max(_WHOLE[mode](float(x)), lowest), highest), bits)

    return lambda x: np.asarray(np.frompyfunc(one, 1, 1)(x)).astype(np.dtype(f"i{bits // 8}"))


_BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": _divide}
_INTEGERS = {"int": (32, False), "uint": (32, True), "ll": (64, False), "ull": (64, True)}
for _mode in MODES:
    for _letter, _dtype in FLOATS.items():
        for _name, _fn in _BINARY.items():
            EXTERNS[f"__nv_{_letter}{_name}_{_mode}"] = _arithmetic(_fn, _mode, _dtype)
        EXTERNS[f"__nv_{_letter}rcp_{_mode}"] = _arithmetic(_reciprocal, _mode, _dtype)
        EXTERNS[f"__nv_{_letter}sqrt_{_mode}"] = _root(_mode, _dtype)
    EXTERNS[f"__nv_fmaf_{_mode}"] = _arithmetic(_fma, _mode, np.float32)
    EXTERNS[f"__nv_fma_{_mode}"] = _arithmetic(_fma, _mode, np.float64)
    EXTERNS[f"__nv_double2float_{_mode}"] = _converted(_mode, np.float32)
    for _name, (_bits, _of) in _INTEGERS.items():
        EXTERNS[f"__nv_{_name}2float_{_mode}"] = _converted(_mode, np.float32, _of)
        EXTERNS[f"__nv_{_name}2double_{_mode}"] = _converted(_mode, np.float64, _of)
        EXTERNS[f"__nv_float2{_name}_{_mode}"] = to_integer(_mode, _bits, _of, False)
        EXTERNS[f"__nv_double2{_name}_{_mode}"] = to_integer(_mode, _bits, _of, True)
EXTERNS["__nv_fmaf"], EXTERNS["__nv_fma"] = EXTERNS["__nv_fmaf_rn"], EXTERNS["__nv_fma_rn"]
EXTERNS["__nv_frsqrt_rn"] = _root("rn", np.float32, inverse=True)
