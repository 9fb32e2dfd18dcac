"""Element types in NumPy, and casts that round as the hardware does.

Integers are kept signed whatever the language says (an op that needs the unsigned reading takes a
view), `i1` is NumPy's bool, pointers are int64 addresses. fp8e4b15 has no NumPy type: its raw bytes
are kept as uint8.
"""

from __future__ import annotations

from typing import Optional

import ml_dtypes
import numpy as np

from gluon_sim.tracing.types import PointerType, ScalarType, Type

__all__ = [
    "cast_float", "compute", "finish", "float32_to_odd", "float_to_int", "int_cast", "numpy_dtype",
    "round_tf32", "to_odd", "unsigned",
]  # fmt: skip

_NUMPY: dict[str, np.dtype] = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b15": np.dtype(np.uint8),
}
_LARGEST = {
    "fp16": 65504.0,
    "bf16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
    "fp32": float(np.finfo(np.float32).max),
    "fp8e4nv": 448.0,
    "fp8e4b8": 240.0,
    "fp8e5": 57344.0,
    "fp8e5b16": 57344.0,
    "fp8e4b15": 1.75,
}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def numpy_dtype(type: Type) -> np.dtype:
    """Return the NumPy form of one element of `type`."""
    element = type.element
    if isinstance(element, PointerType):
        return _NUMPY["i64"]
    if isinstance(element, ScalarType) and element.name in _NUMPY:
        return _NUMPY[element.name]
    from gluon_sim.errors import SimulatorError

    raise SimulatorError(f"the simulator has no elements of type {element}")


def unsigned(x: np.ndarray) -> np.ndarray:
    """Return the same bits, read as unsigned integers."""
    return x if x.dtype == np.bool_ else x.view(_UNSIGNED[x.dtype.itemsize])


# ---- floats ---------------------------------------------------------------------------------


def compute(x: np.ndarray) -> np.ndarray:
    """Return a type that NumPy computes in natively: bf16 and fp8 widen to float32, exactly."""
    return x if x.dtype.kind == "f" and x.dtype.char in "efd" else x.astype(np.float32)


def finish(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Back from `compute`: round to nearest, ties to even."""
    if x.dtype == dtype:
        return x
    if dtype == _NUMPY["bf16"] and x.dtype == np.float32:
        return _to_bf16(x)
    return x.astype(dtype)


def _to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 to bf16 in a few integer passes; ml_dtypes converts one element at a time."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    out: np.ndarray = (rounded >> np.uint32(16)).astype(np.uint16)
    bad = np.isnan(x)
    if bad.any():
        sign = (bits >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
        out = np.where(bad, sign | np.uint16(0x7FC0), out)
    return out.view(_NUMPY["bf16"])


def _from_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def to_odd(high: np.ndarray, error: np.ndarray) -> np.ndarray:
    """`high` with its last bit set where `error` says it is inexact: rounding again is then safe.

    `high` (float64) is the nearest to high + error.
    """
    bits = high.view(np.int64)
    inexact = (error != 0) & np.isfinite(high) & ((bits & 1) == 0)
    away = (error > 0) == (high > 0)
    # An even last bit steps to the odd neighbour on the side of the exact value.
    step = np.where(away, 1, -1)
    step = np.where(high == 0, 0, step)
    return np.where(inexact, bits + step, bits).view(np.float64)


def float32_to_odd(x: np.ndarray) -> np.ndarray:
    """float64 to float32, the last bit set where that is inexact: rounding again is then safe."""
    near = x.astype(np.float32)
    error = x - near.astype(np.float64)
    bits = near.view(np.int32)
    inexact = (error != 0) & np.isfinite(near) & ((bits & 1) == 0)
    step = np.where((error > 0) == (x > 0), 1, -1).astype(np.int32)
    return np.where(inexact, bits + step, bits).astype(np.int32).view(np.float32)


def _decode_e4b15(x: np.ndarray) -> np.ndarray:
    """fp8e4b15: sign, 4 exponent bits with bias 15, 3 mantissa bits; no infinity, no NaN."""
    raw = x.view(np.uint8).astype(np.uint16)
    half = ((raw & 0x80) << 8) | ((raw & 0x7F) << 7)
    return half.view(np.float16).astype(np.float32)


def _encode_e4b15(x: np.ndarray, rtz: bool) -> np.ndarray:
    """To nearest, ties away from zero; at most 1.75, although 1.875 has a pattern. Both as the code
    that compilers emit, for no hardware converts to this type."""
    limit = _LARGEST["fp8e4b15"]
    x = np.clip(np.nan_to_num(x, nan=limit), -limit, limit).astype(np.float16)
    raw = x.view(np.uint16)
    body: np.ndarray = (raw & 0x7FFF).astype(np.uint32)
    body = (body if rtz else body + 0x40) >> 7
    return (((raw >> 8) & 0x80) | body).astype(np.uint8)


def cast_float(x: np.ndarray, src: str, dst: str, rounding: Optional[str] = None) -> np.ndarray:
    """Cast between float types.

    To nearest (ties to even, but fp8e4b15), or toward zero for `rounding="rtz"`. fp8 results saturate at the
    largest finite value, as the hardware's conversions do; NaN stays NaN.
    """
    if src == dst:
        return x
    rtz = rounding == "rtz"
    if src == "bf16":
        x = _from_bf16(x)
    elif src == "fp8e4b15":
        x = _decode_e4b15(x)
    elif src.startswith("fp8"):
        x = x.astype(np.float32)
    if dst == "fp8e4b15":
        return _encode_e4b15(x, rtz)
    target = _NUMPY[dst]
    if x.dtype == target:
        return x
    if x.dtype.itemsize < target.itemsize and dst in ("fp16", "fp32", "fp64"):
        return x.astype(target)
    narrow8 = dst.startswith("fp8")
    if narrow8:
        limit = _LARGEST[dst]
        x = np.where(np.isnan(x), x, np.clip(x, -limit, limit))
    if x.dtype == np.float64 and dst not in ("fp16", "fp32"):
        x = float32_to_odd(x)
    elif x.dtype == np.float16:
        x = x.astype(np.float32)
    near = finish(x, target)
    if not rtz:
        return near
    wide = near.astype(x.dtype)
    raw = near.view(_UNSIGNED[target.itemsize])
    # One step down in magnitude; from infinity that is the largest finite value.
    too_far = (np.abs(wide) > np.abs(x)) & ~np.isnan(x) & ~np.isinf(x)
    out = np.where(too_far, raw - raw.dtype.type(1), raw).astype(raw.dtype)
    if dst in ("fp8e4b8", "fp8e5b16"):
        out = np.where(too_far & (out == 0x80), raw.dtype.type(0), out)  # these have no -0
    return out.view(target)


def round_tf32(x: np.ndarray) -> np.ndarray:
    """float32 as the tensor core reads it: the low 13 mantissa bits are ignored."""
    bits: np.ndarray = np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


# ---- integers -------------------------------------------------------------------------------


def int_cast(x: np.ndarray, dtype: np.dtype, signed: bool) -> np.ndarray:
    """Truncate, sign extend or zero extend."""
    if x.dtype == np.bool_:
        x = x.view(np.int8)
        return (-x if signed else x).astype(dtype) if dtype != np.bool_ else x.view(np.bool_)
    if dtype == np.bool_:
        return (x & 1).astype(np.bool_)
    return (x if signed else unsigned(x)).astype(dtype)


def float_to_int(x: np.ndarray, dtype: np.dtype, signed: bool) -> np.ndarray:
    """Toward zero; saturates at 32 bits (64 for int64) as the conversion instructions do, NaN is 0."""
    bits = 64 if dtype.itemsize == 8 else 32
    x = np.trunc(compute(x).astype(np.float64))
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    wide = np.int64 if signed else np.uint64
    inside = (x >= low) & (x < high)
    out = np.where(inside, x, 0).astype(wide)
    if not inside.all():
        info = np.iinfo(
            {(64, True): np.int64, (64, False): np.uint64}.get(
                (bits, signed), np.int32 if signed else np.uint32
            )
        )
        out = np.where(x >= high, wide(info.max), out)
        out = np.where(x < low, wide(info.min), out)
    return out.astype(_UNSIGNED[dtype.itemsize]).view(dtype)
