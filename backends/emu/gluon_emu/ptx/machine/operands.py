"""The shared memory that `wgmma` still reads: nobody may write there before the wait (PTX ISA 9.7.15.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gluon_emu.errors import MissingWaitError

__all__ = ["Operands"]


@dataclass
class _Read:
    """The bytes that a product read, (warpgroups, ...).

    Args:
        rows: the first warp of each warpgroup.
        number: how many groups each had committed.
        index: elements of the shared memory of all blocks.
        place: index of the instruction.
    """

    rows: np.ndarray
    number: np.ndarray
    index: np.ndarray
    values: np.ndarray
    place: int

    def some(self, chosen: np.ndarray) -> "_Read":
        rows, number = self.rows[chosen], self.number[chosen]
        return _Read(rows, number, self.index[chosen], self.values[chosen], self.place)


class Operands:
    """The operands of products that nobody has waited for."""

    def __init__(self, machine: Any):
        self.machine = machine
        self.committed = np.zeros(machine.block_of.size, np.int64)
        self.reads: list[_Read] = []

    def read(self, group: Any, index: np.ndarray, values: np.ndarray) -> None:
        rows = group.rows[::4]
        self.reads.append(_Read(rows, self.committed[rows], index, values, group.pc))

    def commit(self, group: Any) -> None:
        self.committed[group.rows] += 1

    def wait(self, group: Any, newest: int) -> None:
        """Compare the operands of all groups but the newest ones with the memory.

        Raises:
            MissingWaitError: something wrote where a product may still have been reading.
        """
        last = np.zeros(self.committed.size, np.int64)
        last[group.rows] = self.committed[group.rows] - newest
        left = []
        for read in self.reads:
            over = read.number < last[read.rows]
            if over.any():
                self._compare(group, read if over.all() else read.some(over))
            if not over.all():
                left.append(read.some(~over))
        self.reads = left

    def _compare(self, group: Any, read: _Read) -> None:
        size, memory = read.values.dtype.itemsize, self.machine.memory
        changed = memory.view("shared", size)[read.index] != read.values
        if not changed.any():
            return
        first = tuple(np.argwhere(changed)[0])
        product = self.machine.steps[read.place].source
        byte = int(read.index[first]) * size % memory.stride
        row = int(np.searchsorted(group.rows, read.rows[first[0]]))
        raise self.machine.report(
            MissingWaitError,
            f"byte {byte:#x} of the block's shared memory was written while the product of line {product.line} of the "
            "PTX might still read it",
            self.machine.steps[group.pc],
            group,
            (row, 0),
            "Wait with `wgmma.wait_group` before anything writes the operands; `--check` names the write.",
        )
