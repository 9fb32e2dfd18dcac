"""Groups of warps that are at the same instruction, and how they part and meet.

A register is an unsigned array (warps or 1, 32 or 1): what is the same in all warps, or in all lanes of
a warp, is there once. Arrays are never changed in place, so groups that part share them.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

__all__ = ["LANES", "Group", "merged", "move", "pieces", "put"]

LANES = 32


class Group:
    """Warps with the same program counter.

    Attributes:
        rows: numbers of the warps among those that are resident, ascending.
        active: (warps, 32), the threads that are here; None for all.
        values: registers by name.
        stack: where the calls return to.
        turn: how often it gave way to others while it polled.
        mask: of the current instruction, the threads that execute it; None for all.
        passed: whether a barrier let it go on; it is at the barrier's instruction still.
        polled: whether it looked, since it last jumped back, at memory that others change.
    """

    __slots__ = (
        "active", "block", "machine", "mask", "passed", "pc", "polled", "rows", "seen", "stack",
        "turn", "values",
    )  # fmt: skip

    def __init__(
        self,
        machine: Any,
        rows: np.ndarray,
        active: Optional[np.ndarray],
        values: dict[str, np.ndarray],
        pc: int,
        stack: tuple[Any, ...] = (),
        turn: int = 0,
    ):
        self.machine, self.rows, self.active, self.values = machine, rows, active, values
        self.pc, self.stack, self.turn = pc, stack, turn
        self.mask: Optional[np.ndarray] = active
        self.passed = self.polled = False
        self.seen = -1  # the machine's count of changes when it last jumped back
        self.block = machine.block_of[rows]  # of each warp, among the resident blocks

    @property
    def size(self) -> int:
        return int(self.rows.size)

    @property
    def key(self) -> tuple[int, int, int]:
        """Return its place in the order of execution, least first."""
        return self.turn, -len(self.stack), self.pc

    def threads(self) -> np.ndarray:
        """Return the number of each thread in its block."""
        return np.asarray(self.machine.thread_of[self.rows])

    def full(self, value: Any) -> np.ndarray:
        """Return a value of a register, once for each thread."""
        return np.broadcast_to(value, (self.rows.size, LANES))

    def lanes(self) -> np.ndarray:
        """Return the threads that execute the current instruction, as an array (warps, 32)."""
        if self.mask is None:
            return np.ones((self.rows.size, LANES), bool)
        return np.broadcast_to(self.mask, (self.rows.size, LANES))

    def warps(self) -> "Group":
        """Return itself: its values are by warps (see `Warps`)."""
        return self

    def apart(self, value: np.ndarray) -> np.ndarray:
        return np.broadcast_to(value, (self.rows.size, LANES))[:, None, :]

    def together(self, value: np.ndarray) -> np.ndarray:
        return np.asarray(value.reshape(self.rows.size, LANES))

    def write(self, name: str, bits: int, value: np.ndarray) -> None:
        if self.mask is not None:
            old = self.values.get(name)
            if old is None:
                old = np.zeros((1, 1), value.dtype)
            value = np.where(self.mask, value, old)
        self.values[name] = value

    def part(self, threads: np.ndarray) -> "Group":
        """Return the group of some of its threads, an array (warps, 32)."""
        rows = threads.any(1)
        values = dict(self.values)
        if not rows.all():
            if self.rows.size > 1:
                for name, value in values.items():
                    if value.shape[0] > 1:
                        values[name] = value[rows]
            threads = threads[rows]
        group = Group(
            self.machine, self.rows[rows], None if threads.all() else threads, values, self.pc,
            self.stack, self.turn,
        )  # fmt: skip
        group.passed, group.polled, group.seen = self.passed, self.polled, self.seen
        return group

    def everything(self) -> np.ndarray:
        """Return all threads of the group, as an array (warps, 32)."""
        if self.active is None:
            return np.ones((self.rows.size, LANES), bool)
        return self.active


def merged(groups: list[Group]) -> Group:
    """Return one group for several at the same instruction; their threads are different ones."""
    while len(groups) > 1:
        groups = [
            _both(*groups[i : i + 2]) if i + 1 < len(groups) else groups[i]
            for i in range(0, len(groups), 2)
        ]
    return groups[0]


def _both(a: Group, b: Group) -> Group:
    rows = np.union1d(a.rows, b.rows)
    at_a, at_b = np.searchsorted(rows, a.rows), np.searchsorted(rows, b.rows)
    overlap = rows.size < a.rows.size + b.rows.size
    values: dict[str, np.ndarray] = {}
    threads = b.everything()
    for name in a.values.keys() | b.values.keys():
        x, y = a.values.get(name), b.values.get(name)
        # One array of several groups is from before they parted: all of its rows are alike, or they
        # are those of both groups.
        if (
            x is y
            and x is not None
            and (x.shape[0] == 1 or a.rows.size == b.rows.size == rows.size)
        ):
            values[name] = x
            continue
        dtype = (x if x is not None else y).dtype  # type: ignore[union-attr]
        width = max(v.shape[1] for v in (x, y) if v is not None)
        if overlap or width == 1 and (x is None or y is None):
            width = LANES
        joined = np.zeros((rows.size, width), dtype)
        if x is not None:
            joined[at_a] = x
        if y is not None:
            if overlap:
                joined[at_b] = np.where(threads, y, joined[at_b])
            else:
                joined[at_b] = y
        values[name] = joined
    active: Optional[np.ndarray] = np.zeros((rows.size, LANES), bool)
    assert active is not None
    active[at_a] = a.everything()
    active[at_b] |= threads
    group = Group(
        a.machine,
        rows,
        None if active.all() else active,
        values,
        a.pc,
        a.stack,
        min(a.turn, b.turn),
    )
    group.passed, group.polled = a.passed, a.polled or b.polled
    return group


def move(group: Any, pairs: Any) -> None:
    """Copy variables of parameters, whose pieces live in registers named VARIABLE@OFFSET, and registers, `=NAME`."""
    put(group, pieces(group, pairs))


def pieces(group: Any, pairs: Any) -> list[tuple[str, np.ndarray]]:
    """Return the pieces of variables and the registers, under the names of their targets."""
    parts = []
    for source, target in pairs:
        if source[0] == "=" or target[0] == "=":
            value = group.values.get(source[1:] if source[0] == "=" else f"{source}@0")
            if value is not None:
                parts.append((target[1:] if target[0] == "=" else f"{target}@0", value))
            continue
        for key in [k for k in group.values if k.startswith(f"{source}@")]:
            parts.append((target + key[len(source) :], group.values[key]))
    return parts


def put(group: Any, parts: list[tuple[str, np.ndarray]]) -> None:
    for name, value in parts:
        bits = 1 if value.dtype == np.bool_ else value.dtype.itemsize * 8
        group.write(name, bits, value)
