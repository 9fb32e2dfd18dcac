"""Packed arithmetic (sm_100, sm_107) and pairs of float32 in inline assembly, PTX ISA 9.7.3 to 9.7.5."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import ml_dtypes
import numpy as np

from gluon_core.plugin.reference import Machine

__all__ = ["PACKED_ASM", "packed_arith"]


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b in float64, rounded to odd, so that a later rounding to fewer bits is the only one."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    # Toward the exact value: away from zero where the error has the total's sign.
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd: np.ndarray = np.where(inexact, bits + step, bits).view(np.float64)
    return odd


def _odd32(x: np.ndarray) -> np.ndarray:
    """float64 to float32, rounded to odd."""
    near = x.astype(np.float32)
    error = x - near.astype(np.float64)
    bits = near.view(np.int32)
    inexact = (error != 0) & np.isfinite(near) & np.isfinite(x) & ((bits & 1) == 0)
    step = np.where((error > 0) == (x > 0), 1, -1).astype(np.int32)
    return np.where(inexact, bits + step, bits).view(np.float32)


def _rounded(x: np.ndarray, dtype: np.dtype, toward_zero: bool) -> np.ndarray:
    """float64 (exact, or rounded to odd) to the result's type."""
    if toward_zero:
        return _truncated(x, dtype)
    if dtype.kind == "f" and dtype.char in "efd":
        return x.astype(dtype)
    return saturated(_odd32(x), dtype) if dtype.itemsize == 1 else _odd32(x).astype(dtype)


def saturated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 to fp8; values that are too large become the largest, as `.satfinite` does."""
    most = float(ml_dtypes.finfo(dtype).max)
    narrow: np.ndarray = np.clip(x, -most, most).astype(dtype)
    return narrow


def _truncated(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    near = x.astype(dtype) if dtype == np.float16 else _odd32(x).astype(dtype)
    wide = near.astype(np.float64)
    too_far = np.isfinite(x) & (np.abs(wide) > np.abs(x))
    bits = near.view(np.uint16)
    return np.where(too_far, bits - 1, bits).astype(np.uint16).view(dtype)


def _flushed(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Subnormal numbers as zeros of their sign."""
    tiny = float(np.finfo(dtype).smallest_normal)
    return np.where(np.abs(x) < tiny, np.copysign(np.zeros_like(x), x), x)


_KINDS: dict[str, Callable[..., np.ndarray]] = {
    "add": lambda a, b: _sum(a, b),
    "sub": lambda a, b: _sum(a, -b),
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: _sum(a * b, c),
}


_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _codes(raw: np.ndarray, own: Sequence[int], dims: Sequence[int]) -> np.ndarray:
    """Return the e2m1 numbers of bytes, the low half first, along the dimension that the result has
    twice."""
    axis = next(d for d, (half, size) in enumerate(zip(own, dims)) if half != size) + 1
    both = np.stack([raw & 15, np.right_shift(raw.view(np.uint8), 4)], axis=axis + 1) & 15
    both = np.broadcast_to(both, (raw.shape[0], *_doubled(own, axis - 1)))
    numbers: np.ndarray = np.where(both & 8, -_FP4[both & 7], _FP4[both & 7])
    return numbers.reshape((raw.shape[0], *dims))


def _doubled(own: Sequence[int], axis: int) -> list[int]:
    """`own` with a dimension of two after `axis`."""
    return [*own[: axis + 1], 2, *own[axis + 1 :]]


def packed_arith(
    machine: Machine, type: Any, kind: str, operands: Sequence[np.ndarray]
) -> np.ndarray:
    """Compute one operation on neighbouring elements, rounded once to the result's type; bytes are fp4.

    To nearest even; from float32 operands to a 16-bit result toward zero, and for fp16 with
    subnormal numbers flushed, as the instruction does (`.rz`, `.rz.ftz`).
    """
    dtype = machine.result_dtype()
    operands = [
        _codes(o, own.dims, type.dims) if o.dtype.kind in "iu" else o
        for o, own in zip(operands, machine.operand_types())
    ]
    if kind in ("min", "max"):
        pick = np.fmin if kind == "min" else np.fmax
        return pick(*(o.astype(np.float32) for o in operands)).astype(dtype)
    narrows = dtype.itemsize == 2 and all(o.dtype == np.float32 for o in operands)
    wide = [o.astype(np.float64) for o in operands]
    if narrows and dtype == np.float16:
        wide = [_flushed(w, np.float32) for w in wide]
    out = _rounded(_KINDS[kind](*wide), dtype, narrows)
    if narrows and dtype == np.float16:
        out = _flushed(out, np.float16)
    return out


# ---- pairs of float32 in one int64, the first in the low half --------------------------------


def _pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    low, high = np.broadcast_arrays(low, high)
    halves = np.stack([low, high], axis=-1).astype(np.float32)
    return np.ascontiguousarray(halves).view(np.int64)[..., 0]


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    both = np.ascontiguousarray(x).view(np.float32).reshape(*x.shape, 2)
    return both[..., 0], both[..., 1]


def _on_pairs(kind: str) -> Callable[..., np.ndarray]:
    run = _KINDS[kind]

    def model(*pairs: np.ndarray) -> np.ndarray:
        split = [_halves(p) for p in pairs]
        low, high = (
            run(*(s[side].astype(np.float64) for s in split)).astype(np.float32)
            for side in range(2)
        )
        return _pair(low, high)

    return model


_PAIRS: dict[str, Callable[..., Any]] = {
    "add.f32x2 $0, $1, $2;": _on_pairs("add"),
    "sub.f32x2 $0, $1, $2;": _on_pairs("sub"),
    "mul.f32x2 $0, $1, $2;": _on_pairs("mul"),
    "fma.rn.f32x2 $0, $1, $2, $3;": _on_pairs("fma"),
    "mov.b64 $0, { $1, $2 };": _pair,
    "mov.b64 { $0, $1 }, $2;": _halves,
}


def _as_model(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda machine, *operands: run(*operands)


# Keyed by the assembly's text, stripped.
PACKED_ASM = {text: _as_model(run) for text, run in _PAIRS.items()}
