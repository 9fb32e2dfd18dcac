"""Operands of the tensor core of sm_100: descriptors, elements in shared and in tensor memory, and where sums are.

PTX ISA 9.7.16.4 (descriptors of shared memory and of instructions), 9.7.16.10.5 (data path layouts), 9.7.16.10.7 (scales).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gluon_emu.errors import AccessError, EmulatorError
from gluon_emu.ptx.isa.wgmma import offsets_of
from gluon_emu.ptx.machine.code import SHARED_START
from gluon_emu.ptx.machine.tensor import COLUMNS
from gluon_emu.ptx.numbers import decode

__all__ = [
    "Instruction",
    "descriptor_places",
    "elements",
    "in_shared",
    "scale_cells",
    "shared_bytes",
    "sum_cells",
]

# Bits 61 to 63 of a descriptor -> 1 for 32, 2 for 64, 3 for 128 bytes, 4 for 128 bytes in units of 32.
_MODES = {0: 0, 1: 4, 2: 3, 4: 2, 6: 1}
_UNITS_OF_32 = 4
# The numbers of types in instruction descriptors, by kind.
_EIGHT = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _EIGHT,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _EIGHT,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
_DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_RESULTS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
_GROUP = 16  # elements of 4 or 6 bits that share 16 bytes
_BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}


@dataclass(frozen=True)
class Instruction:
    """An instruction descriptor, decoded.

    Args:
        rows, columns, depth: M (of both blocks of a pair), N and K.
        left, right, result: types.
        across: whether elements along M, and along N, are next to each other.
        negated: whether A, and whether B, is.
        scales: the type of the scales, "" without.
        first: the byte of the first scale of A, and of B.
    """

    kind: str
    rows: int
    columns: int
    depth: int
    left: str
    right: str
    result: str
    across: tuple[bool, bool]
    negated: tuple[bool, bool]
    saturate: bool = False
    scales: str = ""
    first: tuple[int, int] = (0, 0)

    @classmethod
    @lru_cache(maxsize=256)
    def decode(cls, raw: int, kind: str) -> "Instruction":
        """Decode 32 bits.

        Raises:
            EmulatorError: a type that the kind does not have, sparse operands, or no columns.
        """
        scaled = kind.startswith("mx")

        def bit(first: int, count: int = 1) -> int:
            return raw >> first & (1 << count) - 1

        short = kind in ("mxf4", "mxf4nvf4")
        left, right = bit(7, 3), bit(10, 2 if short else 3)
        types, results = _TYPES[kind], _RESULTS.get(kind, {})
        if bit(2):
            raise EmulatorError("an instruction descriptor with the bit of sparse operands")
        if left not in types or right not in types or results and bit(4, 2) not in results:
            raise EmulatorError(
                f"an instruction descriptor {raw:#010x} with types that `.kind::{kind}` does not have"
            )
        if not bit(17, 6) or not bit(24, 5):
            raise EmulatorError(f"an instruction descriptor {raw:#010x} without rows or columns")
        if short and raw >> 31:
            raise EmulatorError("a depth of 96, which sm_100 does not have")
        return cls(
            kind, bit(24, 5) << 4, bit(17, 6) << 3, _DEPTH[kind], types[left], types[right],
            results[bit(4, 2)] if results else "f32",
            (False, False) if short else (bool(bit(15)), bool(bit(16))),
            (bool(bit(13)), bool(bit(14))),
            kind == "i8" and bool(bit(3)),
            ("ue8m0" if bit(23) else "e4m3") if scaled else "",
            (bit(29, 2), bit(4, 2)) if scaled else (0, 0),
        )  # fmt: skip


# ---- shared memory ----------------------------------------------------------------------------


def _swizzled(address: np.ndarray, mode: int) -> np.ndarray:
    if mode == _UNITS_OF_32:
        return np.asarray(address ^ (address >> 2 & 3 << 5))
    return np.asarray(address ^ (address >> 3 & ((1 << mode) - 1) << 4)) if mode else address


@lru_cache(maxsize=1024)
def _places(
    descriptor: int, extent: int, depth: int, size: int, across: bool
) -> tuple[np.ndarray, int, int]:
    """Return the byte of each element from the start of a block's shared memory, the least and the greatest."""
    mode = _MODES.get(descriptor >> 61 & 7)
    if mode is None:
        raise EmulatorError(f"a matrix descriptor {descriptor:#x} with an unknown swizzle")
    if descriptor >> 52 & 1:
        raise EmulatorError("a matrix descriptor with an absolute leading dimension is not known")
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    span = 3 if mode == _UNITS_OF_32 else mode
    offsets = offsets_of(extent, depth, size, leading, stride, span, across)
    address = _swizzled(((descriptor & 0x3FFF) << 4) + offsets, mode) & 0x3FFFF
    return address, int(address.min()), int(address.max()) + size


def descriptor_places(
    memory: Any, descriptor: int, extent: int, depth: int, size: int = 1, across: bool = False
) -> np.ndarray:
    """Return the byte of each element (extent, depth) of a matrix from the start of a block's shared memory.

    Args:
        size: bytes of an element.
        across: elements along `extent` are next to each other.

    Raises:
        AccessError: the matrix is not within shared memory.
    """
    places, low, high = _places(descriptor, extent, depth, size, across)
    if low < SHARED_START or high > memory.shared_bytes:
        raise AccessError(
            f"a matrix from {low:#x} to {high:#x} of shared memory, which is from {SHARED_START:#x} "
            f"to {memory.shared_bytes:#x}"
        )
    return places


def shared_bytes(memory: Any, block: int, places: np.ndarray) -> np.ndarray:
    return np.asarray(memory.shared[block * memory.stride + places])


def in_shared(
    memory: Any, descriptor: int, extent: int, depth: int, kind: str, packed: bool, across: bool
) -> tuple[np.ndarray, int]:
    """Return the bytes of a matrix's elements from the start of a block's shared memory, and the bytes of each.

    Args:
        packed: elements of 4 bits are two to a byte, along the depth.
    """
    if packed:
        return descriptor_places(memory, descriptor, extent, depth // 2), 1
    size = _BYTES.get(kind, 1)
    return descriptor_places(memory, descriptor, extent, depth, size, across), size


def elements(
    memory: Any, block: int, places: tuple[np.ndarray, int], kind: str, packed: bool, across: bool
) -> np.ndarray:
    """Return the elements of a matrix in a block's shared memory as float64, (extent, depth).

    Args:
        places: what `in_shared` gives.
    """
    offsets, size = places
    if packed:
        codes = shared_bytes(memory, block, offsets)
        return decode(np.stack((codes & 15, codes >> 4), -1).reshape(codes.shape[0], -1), kind)
    if kind in _BITS:
        return decode(_narrow(memory, block, offsets, kind, across), kind)
    if size > 1:
        raw = memory.view("shared", size)[(block * memory.stride + offsets) // size]
    else:
        raw = shared_bytes(memory, block, offsets)
    return numbers_of(raw, kind)


def _narrow(memory: Any, block: int, offsets: np.ndarray, kind: str, across: bool) -> np.ndarray:
    """Return codes of 4 or 6 bits, 16 of which share 16 bytes and are next to each other there."""
    if across:
        return np.ascontiguousarray(_narrow(memory, block, offsets.T, kind, False).T)
    bits = _BITS[kind]
    first = offsets[:, ::_GROUP, None]
    bit = np.arange(_GROUP) * bits
    low = shared_bytes(memory, block, first + bit // 8).astype(np.uint16)
    high = shared_bytes(memory, block, first + np.minimum(bit // 8 + 1, 15)).astype(np.uint16)
    codes = (low | high << 8) >> (bit % 8).astype(np.uint16) & np.uint16((1 << bits) - 1)
    return np.asarray(codes.astype(np.uint8).reshape(offsets.shape))


def numbers_of(raw: np.ndarray, kind: str) -> np.ndarray:
    """Return patterns as float64."""
    if kind == "s8":
        return np.asarray(raw.view(np.int8).astype(np.float64))
    if kind == "u8":
        return np.asarray(raw.astype(np.float64))
    if kind == "tf32":  # the low bits do not count
        raw = raw & np.uint32(0xFFFFE000)
    return decode(raw, kind)


# ---- tensor memory ----------------------------------------------------------------------------


@lru_cache(maxsize=256)
def sum_cells(rows: int, columns: int, paired: bool, alone: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (lane, column) of each element (rows, columns) of a block's sums.

    Args:
        rows: of one block.
        paired: of two blocks.
        alone: each warp's quarter works alone (`.ws`).

    Raises:
        EmulatorError: the unit has no such shape.
    """
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    if rows == 128:  # layouts A and D
        lane = row
    elif rows == 64 and (paired or alone):  # layouts B and E
        lane, column = row + 64 * (2 * column >= columns), column % (columns // 2)
    elif rows == 64:  # layout F
        lane = row % 16 + row // 16 * 32
    elif rows == 32 and alone:  # layout G
        lane, column = row + 32 * (4 * column // columns), column % (columns // 4)
    else:
        raise EmulatorError(f"a product of {rows} rows in a block")
    lane, column = np.broadcast_arrays(lane, column)
    return np.asarray(lane), np.asarray(column)


@lru_cache(maxsize=256)
def scale_cells(rows: int) -> np.ndarray:
    """Return the cells of the scales of each row, from the first on."""
    row = np.arange(rows)
    return np.asarray(row % 32 * COLUMNS + row // 32)
