"""The values of one call of a function, for the programs of a batch that are in it.

Every value carries a leading axis, one entry per program of the batch, or 1 where all programs
share it; every further axis has the tensor's extent, or 1 where the value repeats along it. So
one NumPy call runs one op for the whole batch.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluon_sim.errors import SimulatorError
from gluon_sim.executor.compile import CompiledFunction, Slot
from gluon_sim.memory.promise import Promise, joined
from gluon_sim.memory.shared import SharedView
from gluon_sim.sanitizer.rows import Rows

__all__ = ["Frame", "merge", "select"]


def select(value: Any, positions: np.ndarray) -> Any:
    """Return the value for some of the programs it was made for."""
    if isinstance(value, np.ndarray):
        if value.shape[0] == 1:
            return value
        return value.part(positions) if isinstance(value, Promise) else value[positions]
    if hasattr(value, "select"):
        return value.select(positions)
    return value


def merge(parts: Sequence[tuple[np.ndarray, Any]], count: int) -> Any:
    """Return one value from values for disjoint positions that together are all `count`."""
    first = parts[0][1]
    if len(parts) == 1:
        return first
    if any(
        v is None for _, v in parts
    ):  # undefined there, such as a loop's variable behind the loop
        parts = [(positions, v) for positions, v in parts if v is not None]
        first = parts[0][1] if parts else None
        if not isinstance(first, np.ndarray):
            return first
    if isinstance(first, np.ndarray):
        shape = np.broadcast_shapes(*(v.shape[1:] for _, v in parts))
        out = np.zeros((count, *shape), first.dtype)
        for positions, value in parts:
            out[positions] = value.landed() if isinstance(value, Promise) else value
        return joined(parts, out)
    if isinstance(first, SharedView):
        if any(v.buffer is not first.buffer or v.table is not first.table for _, v in parts):
            raise SimulatorError("programs of one batch chose different shared buffers")
        base = np.zeros(count, np.int64)
        for positions, value in parts:
            value.reach()
            base[positions] = value.base
        return SharedView(first.buffer, first.type, base, first.table)
    if all(v is first for _, v in parts):
        return first
    if hasattr(first, "merged"):
        return first.merged(parts, count)
    raise SimulatorError(f"values of {type(first).__name__} cannot differ between programs here")


class Frame:
    """One call of a function: its values, and the programs that are in it."""

    __slots__ = ("values", "homes", "rows")

    def __init__(self, function: CompiledFunction, rows: Rows):
        self.values = list(function.start)
        self.homes: list[Optional[Rows]] = [rows] * function.size
        self.rows = rows

    def get(self, slot: int) -> Any:
        value = self.values[slot]
        home = self.homes[slot]
        if home is self.rows:
            return value
        if isinstance(value, np.ndarray) and value.shape[0] == 1:
            return value
        assert home is not None
        return select(value, np.searchsorted(home.index, self.rows.index))

    def put(self, slot: int, value: Any) -> None:
        self.values[slot] = value
        self.homes[slot] = self.rows

    def resolve(self, arg: Any) -> Any:
        if isinstance(arg, Slot):
            return self.get(arg)
        if isinstance(arg, list):
            return [self.resolve(a) for a in arg]
        return arg
