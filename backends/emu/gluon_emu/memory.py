"""Global memory: the arrays of a launch at the addresses that they have."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

__all__ = ["Allocation", "GlobalMemory"]


@dataclass
class Allocation:
    """Bytes that a kernel may use.

    Args:
        name: of the argument, for reports.
        data: uint8, one-dimensional and contiguous.
        writable: whether stores are allowed.
        owner: keeps the memory alive.
    """

    name: str
    data: np.ndarray
    writable: bool = True
    owner: Any = None

    @property
    def start(self) -> int:
        return self.data.ctypes.data

    @property
    def end(self) -> int:
        return self.start + self.data.size


class GlobalMemory:
    """All allocations of a launch, seen as one array of words from the lowest to the highest."""

    def __init__(self, allocations: list[Allocation]):
        merged: dict[int, Allocation] = {}
        for one in allocations:
            known = merged.get(one.start)
            if one.data.size and (known is None or known.data.size < one.data.size):
                merged[one.start] = one
        self.allocations: list[Allocation] = []
        for one in sorted(merged.values(), key=lambda a: a.start):  # one may be within another
            if not self.allocations or one.end > self.allocations[-1].end:
                self.allocations.append(one)
        self._starts = [a.start for a in self.allocations]
        self.starts = np.array(self._starts, np.uint64)
        self._ends = [a.end for a in self.allocations]
        self.ends = np.array(self._ends, np.uint64)
        self.writable = np.array([a.writable for a in self.allocations], bool)
        self.low = (self._starts[0] & ~15) if self._starts else 0
        high = max((a.end for a in self.allocations), default=0)
        size = (high - self.low + 15) & ~15
        raw: Any = (
            (ctypes.c_ubyte * max(size, 1)).from_address(self.low)
            if self._starts
            else bytearray(16)
        )
        self.bytes = np.frombuffer(raw, np.uint8)
        self.words = self.bytes[: self.bytes.size & ~3].view(np.uint32)
        self.longs = self.bytes[: self.bytes.size & ~7].view(np.uint64)

    def bad(self, address: np.ndarray, size: int, mask: np.ndarray, write: bool) -> Optional[Any]:
        """Lanes whose access of `size` bytes is outside every allocation, None where none is."""
        if not self._starts:
            return mask if mask.any() else None
        low, high = int(address.min()), int(address.max())
        place = bisect_right(self._starts, low) - 1
        if place >= 0 and high + size <= self._ends[place]:
            if not write or self.allocations[place].writable:
                return None
        index = np.searchsorted(self.starts, address, "right").astype(np.int64) - 1
        inside = (index >= 0) & (address + np.uint64(size) <= self.ends[index])
        if write:
            inside &= self.writable[index]
        wrong = mask & ~inside
        return wrong if wrong.any() else None

    def holds(self, start: int, end: int, write: bool) -> bool:
        """Return whether one allocation has all bytes from `start` to `end`."""
        place = bisect_right(self._starts, start) - 1
        if place < 0 or end > self._ends[place]:
            return False
        return not write or self.allocations[place].writable

    def nearest(self, address: int, size: int) -> str:
        """Describe the place of an address."""
        if address < 4096:
            return "a null pointer"
        best, text = None, "no array is near"
        for one in self.allocations:
            if one.start <= address and address + size <= one.end:
                return f"in {one.name}, which is read-only"
            gap = one.start - address if address < one.start else address + size - one.end
            if best is None or gap < best:
                side = "before" if address < one.start else "past the end of"
                best = gap
                text = f"{gap} bytes {side} {one.name} ({one.data.size} bytes)"
        return text

    def safe(self, address: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """`address` where `mask` is true, elsewhere one that can be read."""
        base = np.uint64(self._starts[0] if self._starts else 0)
        return np.where(mask, address, base)

    # -- access; addresses have been checked -------------------------------------------------------

    def load(self, address: np.ndarray, size: int) -> list[np.ndarray]:
        """Words (uint32) from each address; of 1 or 2 bytes, one word with zeros above."""
        offset = address - np.uint64(self.low)
        if size >= 4 and not (offset & np.uint64(3)).any():
            index = (offset >> np.uint64(2)).astype(np.int64)
            return [self.words[index + i] if i else self.words[index] for i in range(size // 4)]
        index = offset.astype(np.int64)
        words = []
        for start in range(0, size, 4):
            word = self.bytes[index + start].astype(np.uint32)
            for byte in range(1, min(4, size - start)):
                word |= self.bytes[index + start + byte].astype(np.uint32) << np.uint32(8 * byte)
            words.append(word)
        return words

    def store(
        self, address: np.ndarray, size: int, values: list[np.ndarray], mask: Optional[np.ndarray]
    ) -> None:
        """Words to each address where `mask` is true; of several to one address the last stays."""
        offset = address - np.uint64(self.low)
        if mask is not None:
            offset = offset[mask]
            values = [np.broadcast_to(v, mask.shape)[mask] for v in values]
        if size >= 4 and not (offset & np.uint64(3)).any():
            index = (offset >> np.uint64(2)).astype(np.int64)
            for i, value in enumerate(values):
                self.words[index + i] = value
            return
        index = offset.astype(np.int64)
        for start, value in zip(range(0, size, 4), values):
            for byte in range(min(4, size - start)):
                self.bytes[index + start + byte] = (value >> np.uint32(8 * byte)).astype(np.uint8)
