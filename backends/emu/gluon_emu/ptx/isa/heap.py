"""Memory from the heap, as `malloc` and `free` of CUDA's runtime give it."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.errors import TrapError
from gluon_emu.ptx.isa.table import Step
from gluon_emu.ptx.machine.code import HEAP_BYTES

__all__ = ["HEAP", "Heap"]


class Heap:
    """Pieces of the heap: those in use by address, and free ones by size."""

    def __init__(self, start: int):
        self.next, self.end = -(-start // 16) * 16, start + HEAP_BYTES
        self.used: dict[int, int] = {}
        self.free: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        """Return the address of `size` bytes; 0 where there are none."""
        size = max(16, -(-size // 16) * 16)
        listed = self.free.get(size)
        if listed:
            address = listed.pop()
        elif self.next + size <= self.end:
            address, self.next = self.next, self.next + size
        else:
            return 0
        self.used[address] = size
        return address

    def give(self, address: int) -> None:
        if address:
            size = self.used.pop(address, None)
            if size is None:
                raise TrapError(f"`free` of {address:#x}, which `malloc` did not return")
            self.free.setdefault(size, []).append(address)


def _arguments(group: Any, name: str) -> np.ndarray:
    value = group.values.get(f"{name}@0", np.zeros((1, 1), np.uint64))
    return np.asarray(group.full(value))


def _malloc(call: Any, results: list[str], arguments: list[str]) -> Step:
    def run(group: Any) -> None:
        heap, lanes = group.machine.launch.heap, group.lanes()
        addresses = np.zeros(lanes.shape, np.uint64)
        sizes = _arguments(group, arguments[0])
        for row, lane in np.argwhere(lanes):
            addresses[row, lane] = heap.take(int(sizes[row, lane]))
        for name in results:
            group.write(f"{name}@0", 64, addresses)

    return run


def _free(call: Any, results: list[str], arguments: list[str]) -> Step:
    def run(group: Any) -> None:
        lanes, addresses = group.lanes(), _arguments(group, arguments[0])
        for row, lane in np.argwhere(lanes):
            try:
                group.machine.launch.heap.give(int(addresses[row, lane]))
            except TrapError as error:
                error.place = (int(row), int(lane))  # type: ignore[attr-defined]
                raise

    return run


# Name -> arguments, results, and what makes a step of a call.
HEAP: dict[str, tuple[int, int, Callable[[Any, list[str], list[str]], Step]]] = {
    "malloc": (1, 1, _malloc), "free": (1, 0, _free),
    # `new` and `delete`, of single objects and of arrays
    "_Znwm": (1, 1, _malloc), "_Znam": (1, 1, _malloc), "_ZdlPv": (1, 0, _free), "_ZdaPv": (1, 0, _free),
}  # fmt: skip
