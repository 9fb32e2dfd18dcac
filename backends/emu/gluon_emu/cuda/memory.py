"""The memory that a launch by addresses may reach: of the driver, of who stands in for a device, else that of the process."""

from __future__ import annotations

import bisect
import ctypes
from typing import Any, Iterable

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_core.simulation.host_memory import device_memory
from gluon_emu.memory import Allocation

__all__ = ["Pool", "bytes_at"]

_ALIGNMENT = 256  # of memory that the driver allocates


def bytes_at(address: int, size: int) -> np.ndarray:
    """Return bytes of this process as an array that shares them."""
    raw: Any = (ctypes.c_uint8 * size).from_address(address)
    shared: np.ndarray = np.frombuffer(raw, np.uint8)
    return shared


class Pool:
    """The memory that the driver allocated, and the other memory that kernels may reach."""

    def __init__(self) -> None:
        self._own: dict[int, Allocation] = {}

    def allocate(self, size: int) -> int:
        """Return the address of new bytes, filled with 0xff: NaN as floats."""
        room = np.full(max(size, 1) + _ALIGNMENT, 0xFF, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        data = room[start : start + max(size, 1)]
        self._own[data.ctypes.data] = Allocation("memory of cuMemAlloc", data, owner=room)
        return int(data.ctypes.data)

    def free(self, address: int) -> bool:
        """Free memory of `allocate`; return False for another address."""
        return self._own.pop(address, None) is not None

    def reached(self, words: Iterable[int]) -> list[Allocation]:
        """Return the memory that a kernel with these arguments may reach.

        A stand-in for a device knows all memory of the device. Without one, that is each mapping of the process that an argument points into:
        an access outside of an array and inside of the mapping is then not seen.
        """
        allocations = list(self._own.values())
        known = device_memory()
        if known is not None:
            return [
                *allocations,
                *(Allocation("memory of the device", d, owner=o) for d, o in known),
            ]
        mapped = _mappings()
        starts = [start for start, _, _ in mapped]
        taken = set()
        for word in words:
            place = bisect.bisect_right(starts, word) - 1
            if place >= 0 and word < mapped[place][1] and starts[place] not in taken:
                start, end, writable = mapped[place]
                taken.add(start)
                name = "a mapping of the process"
                allocations.append(Allocation(name, bytes_at(start, end - start), writable))
        return allocations


def _mappings() -> list[tuple[int, int, bool]]:
    """Return (start, end, writable) of the readable mappings of this process, those of files left out.

    Raises:
        ArgumentError: the system does not list them.
    """
    try:
        with open("/proc/self/maps") as file:
            lines = file.read().splitlines()
    except OSError:
        raise ArgumentError(
            "the memory behind an address is not known on this system",
            expected="/proc/self/maps",
            remedy="Run under the stand-in: python -m gluon_core.standin --target emu:sm_90 FILE.",
        ) from None
    mapped = []
    for line in lines:
        area, rights, *_, inode = line.split()[:5]
        if rights.startswith("r") and (inode == "0" or "w" in rights):
            start, end = (int(n, 16) for n in area.split("-"))
            mapped.append((start, end, "w" in rights))
    return mapped
