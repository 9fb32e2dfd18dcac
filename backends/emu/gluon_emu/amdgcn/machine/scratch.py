"""Scratch: memory that each lane has to itself, for spills and arrays.

Instructions for it (`scratch_`) use `Scratch`. Where LLVM has it behind a buffer (gfx90a), it is global
memory, with the words of a wave's lanes adjacent to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import AccessError
from gluon_emu.memory import Allocation

__all__ = ["Scratch", "behind_buffer", "resource"]


def behind_buffer(waves: int, lanes: int, size: int) -> Allocation:
    """Scratch of `size` bytes for each lane of so many waves, one wave behind the other."""
    words = np.full(waves * lanes * ((size + 3) // 4), 0x7FA5A5A5, np.uint32)
    return Allocation("scratch", words.view(np.uint8), True, words)


def resource(scratch: Allocation) -> tuple[int, int, int, int]:
    """Return the four words of the buffer that describes scratch.

    LLVM, "User Guide for AMDGPU Backend": Private Segment Buffer; ISA: CDNA2 9.1.8, "Buffer Resource
    Descriptor": swizzled, 64 lanes to an element, the lane added to the index.
    """
    swizzled, lane_counts, of_64 = 1 << 31, 1 << 23, 3 << 21
    base = scratch.start
    return base & 0xFFFFFFFF, base >> 32 | swizzled, scratch.data.size, lane_counts | of_64


class Scratch:
    """`size` bytes for each lane of each resident wave, bytes of a lane one after the other."""

    def __init__(self, waves: int, lanes: int, size: int, machine: Any):
        self.words = (size + 3) // 4 + 1
        self.size = size
        self.machine = machine
        self.data = np.full((waves, lanes, self.words), 0x7FA5A5A5, np.uint32)
        self._lane = np.arange(lanes)[None, :]

    def _place(self, b: Any, ins: Any, offset: Any, size: int) -> Any:
        wrong = b.exec & ((offset < 0) | (offset + size > self.size))
        if wrong.any():
            wave, lane = (int(i[0]) for i in np.nonzero(wrong))
            raise self.machine.report(
                AccessError,
                f"an access outside of scratch: {size} bytes at {int(offset[wave, lane])} of "
                f"{self.size}",
                ins,
                b,
                wave,
                lane,
            )
        return np.where(b.exec, offset, 0)

    def load(self, b: Any, ins: Any, offset: Any, size: int) -> list[Any]:
        place = self._place(b, ins, offset, size)
        word = place >> 2
        wave = b.waves[:, None]
        if size >= 4:
            return [self.data[wave, self._lane, word + i] for i in range(size // 4)]
        shift = ((place & 3) * 8).astype(np.uint32)
        mask = np.uint32((1 << 8 * size) - 1)
        return [(self.data[wave, self._lane, word] >> shift) & mask]

    def store(self, b: Any, ins: Any, offset: Any, size: int, values: list[Any]) -> None:
        place = self._place(b, ins, offset, size)
        on = b.exec
        wave = np.broadcast_to(b.waves[:, None], on.shape)[on]
        lane = np.broadcast_to(self._lane, on.shape)[on]
        word = (place >> 2)[on]
        if size >= 4:
            for i, value in enumerate(values):
                self.data[wave, lane, word + i] = value[on]
            return
        shift = ((place & 3) * 8)[on].astype(np.uint32)
        mask = np.uint32((1 << 8 * size) - 1)
        old = self.data[wave, lane, word]
        new = (values[0][on] & mask) << shift
        self.data[wave, lane, word] = (old & ~(mask << shift)) | new
