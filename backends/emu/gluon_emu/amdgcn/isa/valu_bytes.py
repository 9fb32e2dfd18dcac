"""Vector instructions on bytes: sums of differences, means, saturation.

ISA: CDNA3 12.7-12.10; RDNA3 16.7-16.12; RDNA4 16.7-16.12.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.isa.salu_float import to_integer
from gluon_emu.amdgcn.isa.table import vector

_U32, _U64 = np.uint32, np.uint64


def _bytes(value: Any) -> list[Any]:
    return [(value >> _U32(8 * i)) & _U32(0xFF) for i in range(4)]


def differences(a: Any, b: Any, masked: bool = False) -> Any:
    """Return the sum of the differences of four bytes; `masked` leaves out where `b` has 0."""
    total: Any = _U32(0)
    for x, y in zip(_bytes(a), _bytes(b)):
        apart = np.maximum(x, y) - np.minimum(x, y)
        total = total + (np.where(y == 0, _U32(0), apart) if masked else apart)
    return total


@vector("v_sad_u8", src="u32 u32 u32")
def v_sad_u8(a: Any, b: Any, c: Any) -> Any:
    """D = the sum of the differences of four bytes + S2."""
    return differences(a, b) + c


@vector("v_sad_hi_u8", src="u32 u32 u32")
def v_sad_hi_u8(a: Any, b: Any, c: Any) -> Any:
    """D = the sum of the differences of four bytes, shifted by 16, + S2."""
    return (differences(a, b) << _U32(16)) + c


@vector("v_msad_u8", src="u32 u32 u32")
def v_msad_u8(a: Any, b: Any, c: Any) -> Any:
    """D = the sum of the differences of four bytes where S1's is not 0, + S2."""
    return differences(a, b, True) + c


@vector("v_sad_u16", src="u32 u32 u32")
def v_sad_u16(a: Any, b: Any, c: Any) -> Any:
    """D = the sum of the differences of two halves + S2."""
    for shift in (_U32(0), _U32(16)):
        x, y = (a >> shift) & _U32(0xFFFF), (b >> shift) & _U32(0xFFFF)
        c = c + (np.maximum(x, y) - np.minimum(x, y))
    return c


@vector("v_lerp_u8", src="u32 u32 u32")
def v_lerp_u8(a: Any, b: Any, c: Any) -> Any:
    """D = for each byte the mean of S0's and S1's, rounded up where bit 0 of S2's is set."""
    total: Any = _U32(0)
    for i, (x, y, up) in enumerate(zip(_bytes(a), _bytes(b), _bytes(c))):
        total = total | ((x + y + (up & _U32(1))) >> _U32(1)) << _U32(8 * i)
    return total


def _four(a: Any, b: Any, c: Any, masked: bool) -> Any:
    total: Any = _U64(0)
    for i in range(4):
        window = ((a >> _U64(8 * i)) & _U64(0xFFFFFFFF)).astype(_U32)
        distance = differences(window, b, masked).astype(_U64) + (
            (c >> _U64(16 * i)) & _U64(0xFFFF)
        )
        total = total | (distance & _U64(0xFFFF)) << _U64(16 * i)
    return total


@vector("v_qsad_pk_u16_u8", dst="u64", src="u64 u32 u64")
def v_qsad_pk_u16_u8(a: Any, b: Any, c: Any) -> Any:
    """D = v_sad_u8 of S1 with four windows of S0, a byte apart, as halves."""
    return _four(a, b, c, False)


@vector("v_mqsad_pk_u16_u8", dst="u64", src="u64 u32 u64")
def v_mqsad_pk_u16_u8(a: Any, b: Any, c: Any) -> Any:
    """D = v_msad_u8 of S1 with four windows of S0, a byte apart, as halves."""
    return _four(a, b, c, True)


@vector("v_sat_pk_u8_i16", dst="u16", src="u32")
def v_sat_pk_u8_i16(a: Any) -> Any:
    """D = both halves of S0, at least 0 and at most 255, as bytes."""
    halves = [((np.asarray(a) << _U32(up)).view(np.int32) >> np.int32(16)) for up in (16, 0)]
    low, high = (np.clip(half, 0, 255).astype(np.uint16) for half in halves)
    return low | high << np.uint16(8)


@vector("v_cvt_pk_u8_f32", src="f32 u32 u32")
def v_cvt_pk_u8_f32(a: Any, b: Any, c: Any) -> Any:
    """D = S2 with its byte S1[1:0] replaced by S0, towards zero, at least 0 and at most 255."""
    shift = (b & _U32(3)) * _U32(8)
    return (c & ~(_U32(0xFF) << shift)) | to_integer(a, 0, 255, _U32) << shift


@vector("v_prng_b32", src="u32")
def v_prng_b32(a: Any) -> Any:
    """D = the next state of a linear feedback shift register."""
    return (a << _U32(1)) ^ np.where(a >> _U32(31), _U32(197), _U32(0))
