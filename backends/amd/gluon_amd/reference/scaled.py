"""Narrow floats with block scales (E8M0 exponents): conversions and matrix multiplication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer, returns

__all__ = [
    "dot_scaled",
    "local_load_packed_transposed",
    "scaled_downcast_fp4",
    "scaled_downcast_fp8",
    "scaled_upcast_fp4",
    "scaled_upcast_fp8",
]

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4 = np.concatenate([_FP4, -_FP4])


_DTYPES = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}


def _factor(scale: np.ndarray) -> np.ndarray:
    """2 ** (scale - 127), NaN for 255; scales that are floats stay as they are."""
    if scale.dtype.itemsize != 1 or scale.dtype.kind not in "iu":
        plain: np.ndarray = scale.astype(np.float32)
        return plain
    exponent = scale.view(np.uint8).astype(np.int32)
    power = np.ldexp(np.float32(1), exponent - 127)
    factor: np.ndarray = np.where(exponent == 255, np.float32(np.nan), power)
    return factor


def _scaled(machine: Machine, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    product = values.astype(np.float32) * _factor(scale)
    rounded: np.ndarray = product.astype(machine.result_dtype())
    return rounded


def _unpacked(raw: np.ndarray, axis: int) -> np.ndarray:
    """Return the e2m1 numbers of bytes at full extent, two for one along `axis` (the programs' counts)."""
    both = np.stack([_FP4[raw & 15], _FP4[raw >> 4]], axis=axis + 1)
    return both.reshape([n * 2 if d == axis else n for d, n in enumerate(raw.shape)])


def _packed(codes: np.ndarray, axis: int) -> np.ndarray:
    """4-bit codes, two to a byte along `axis`."""
    low = np.take(codes, range(0, codes.shape[axis], 2), axis)
    high = np.take(codes, range(1, codes.shape[axis], 2), axis)
    pairs: np.ndarray = (low | high << 4).astype(np.uint8)
    return pairs


def _full(machine: Machine, value: np.ndarray, operand: int) -> np.ndarray:
    return np.broadcast_to(value, (value.shape[0], *machine.operand_types()[operand].dims))


def scaled_upcast_fp8(
    machine: Machine, type: Any, source: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """source * 2 ** (scale - 127), as a 16-bit float."""
    return _scaled(machine, source, scale)


@returns(lambda source, scale, element, axis: scale.type.with_element(element))
def scaled_upcast_fp4(
    machine: Machine, source: np.ndarray, scale: np.ndarray, element: Any, axis: int
) -> np.ndarray:
    """Return the same for two e2m1 numbers in each byte, the low half first, along `axis`."""
    return _scaled(machine, _unpacked(_full(machine, source, 0).view(np.uint8), axis + 1), scale)


def _spread(scale: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Return the factors of blocks, one for each of `size` elements along `axis`."""
    factor = _factor(scale)
    return np.repeat(factor, size // factor.shape[axis], axis)


@returns(lambda source, scale, element, axis: source.type.with_element(element))
def scaled_downcast_fp8(
    machine: Machine, source: np.ndarray, scale: np.ndarray, element: Any, axis: int
) -> np.ndarray:
    """source / 2 ** (scale - 127), rounded to even; the scales are those of blocks along `axis`."""
    wide, scale = _full(machine, source, 0).astype(np.float32), _full(machine, scale, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = wide / _spread(scale, wide.shape[axis + 1], axis + 1)
        rounded: np.ndarray = quotient.astype(machine.result_dtype())
        return rounded


def _half(source: Any, scale: Any, axis: int) -> Any:
    """Return the recorded type of pairs of `source`'s elements along `axis`, in one byte."""
    from gluon_core.layouts import DistributedLinearLayout

    type = source.type
    shape = tuple(n // 2 if d == axis else n for d, n in enumerate(type.shape))
    bases = type.layout.to_linear(type.shape).bases
    first = [int(d == axis) for d in range(len(shape))]
    rows = {
        name: [
            [v // 2 if d == axis else v for d, v in enumerate(r)] for r in variants if r != first
        ]
        for name, variants in bases.items()
    }
    named = [rows.get(name, []) for name in ("register", "lane", "warp", "block")]
    layout = DistributedLinearLayout(named[0], named[1], named[2], named[3], list(shape))
    return replace(type, elem=scale.type.element, shape=shape, layout=layout)


@returns(lambda source, scale, axis: _half(source, scale, axis))
def scaled_downcast_fp4(
    machine: Machine, source: np.ndarray, scale: np.ndarray, axis: int
) -> np.ndarray:
    """Return the same to e2m1, two in each byte along `axis`; larger values become 6."""
    wide, scale = _full(machine, source, 0).astype(np.float32), _full(machine, scale, 1)
    wide = wide / _spread(scale, wide.shape[axis + 1], axis + 1)
    size = np.abs(wide)[..., None]
    middles = (_FP4[:7] + _FP4[1:8]) / 2
    # Ties go to the even code: above the middle for odd codes, at the middle for the next ones.
    up = np.where(np.arange(7) % 2 == 0, size > middles, size >= middles)
    codes = up.sum(-1).astype(np.uint8) | (np.signbit(wide).astype(np.uint8) << 3)
    return _packed(codes, axis + 1).view(np.int8)


def _operand(machine: Machine, value: np.ndarray, kind: str, position: int, k: int) -> np.ndarray:
    """Return a scaled operand's elements in float32, at full extent."""
    value = _full(machine, value, position)
    if kind == "E2M1":
        return _unpacked(value.view(np.uint8), k)
    if kind in _DTYPES and value.dtype.kind in "iu":
        value = value.view(_DTYPES[kind])
    return value.astype(np.float32)


@returns(lambda a, a_scale, a_kind, b, b_scale, b_kind, fast, a_k, b_k, acc: acc.type)
def dot_scaled(
    machine: Machine,
    a: np.ndarray,
    a_scale: np.ndarray,
    a_kind: Any,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_kind: Any,
    fast_math: bool,
    a_packed_along_k: bool,
    b_packed_along_k: bool,
    acc: np.ndarray,
) -> np.ndarray:
    """acc + (a * a_scale) @ (b * b_scale): a scale for each block along K, [M, blocks] and
    [N, blocks]; e2m1 is packed along K."""
    rank = len(machine.operand_types()[0].dims)
    left = _operand(machine, a, getattr(a_kind, "name", str(a_kind)), 0, rank)
    right = _operand(machine, b, getattr(b_kind, "name", str(b_kind)), 2, rank - 1)
    depth = left.shape[rank]
    left = left * _spread(_full(machine, a_scale, 1), depth, rank)
    rows = _spread(_full(machine, b_scale, 3), depth, rank)
    return machine.dot(left, right * np.swapaxes(rows, -1, -2), acc, "ieee")


def local_load_packed_transposed(machine: Machine, type: Any, buffer: SharedBuffer) -> np.ndarray:
    """Bytes of two e2m1 numbers along M or N, as bytes of two along K."""
    raw = machine.load_shared(buffer).view(np.uint8)
    packed = 1 if type.dims[0] > buffer.shape[0] else 2
    codes = np.stack([raw & 15, raw >> 4], axis=packed + 1)
    codes = codes.reshape([n * 2 if d == packed else n for d, n in enumerate(raw.shape)])
    return _packed(codes, 3 - packed).view(np.int8)
