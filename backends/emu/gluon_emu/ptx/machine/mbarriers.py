"""mbarrier objects: PTX ISA 9.7.13.15.

An object is at its place in shared memory; its state is here, and the bytes there are opaque.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from gluon_emu.errors import EmulatorError, UninitialisedError
from gluon_emu.ptx.machine.group import Group

__all__ = ["Mbarrier", "Mbarriers"]

_MOST = (1 << 20) - 1
_PATIENCE = 64  # waits in a row that time out before nothing else is expected to happen


@dataclass(eq=False)
class Mbarrier:
    """An object.

    Args:
        expected: arrivals of a phase.
        pending: arrivals that are missing in this phase.
        bytes: that are missing in this phase.
        phase: how many are complete.
    """

    expected: int
    pending: int
    bytes: int = 0
    phase: int = 0


class Mbarriers:
    """The objects of the resident blocks, by their byte in all of the shared memory."""

    def __init__(self, machine: Any):
        self.machine = machine
        self.objects: dict[int, Mbarrier] = {}
        self.total: dict[int, int] = {}  # phases of all objects that were at a place
        self.waiting: dict[int, list[Group]] = {}  # id of a group -> [it]
        self.places: dict[int, np.ndarray] = {}
        self.timed_out = 0
        self.seen = -1

    def at(self, place: int) -> Mbarrier:
        one = self.objects.get(place)
        if one is None:
            offset = place % self.machine.memory.stride
            raise UninitialisedError(f"no mbarrier was initialised at {offset:#x} of shared memory")
        return one

    def init(self, place: int, count: int) -> None:
        if not 1 <= count <= _MOST:
            raise EmulatorError(f"an mbarrier for {count} arrivals, and 1 to {_MOST} are possible")
        self.objects[place] = Mbarrier(count, count)
        self.total[place] = self.total.get(place, 0) + 1
        self.machine.changes += 1

    def invalidate(self, place: int) -> None:
        self.at(place)
        del self.objects[place]

    def expect(self, place: int, count: int) -> None:
        self.at(place).bytes += count
        self.machine.changes += 1

    def complete(self, place: int, count: int) -> None:
        """Bytes came."""
        one = self.at(place)
        one.bytes -= count
        self._check(one, place)

    def arrive(self, place: int, count: int = 1, drop: bool = False, late: bool = False) -> int:
        """Arrive; return the phase before.

        Args:
            late: the arrival was not counted when the object was made (of cp.async without .noinc).
        """
        one = self.at(place)
        if count < 1 or count > one.pending:
            offset = place % self.machine.memory.stride
            raise EmulatorError(
                f"{count} arrivals at the mbarrier at {offset:#x}, which misses {one.pending} of "
                f"{one.expected} in this phase"
            )
        phase = one.phase
        if drop:
            one.expected -= count
        one.pending -= count
        self._check(one, place)
        return phase

    def _check(self, one: Mbarrier, place: int) -> None:
        self.machine.changes += 1
        if one.pending or one.bytes:
            return
        one.phase += 1
        self.total[place] += 1
        if self.machine.observer is not None:
            self.machine.observer.complete(("mbarrier", place))
        one.pending = one.expected
        if self.waiting:
            waiting = [g for groups in self.waiting.values() for g in groups]
            self.waiting, self.places = {}, {}
            self.machine.wake(*waiting)

    def wait(self, group: Group, places: np.ndarray) -> Any:
        """Keep a group until the phase of an object changes."""
        self.waiting[id(group)] = [group]
        self.places[id(group)] = places
        return self.machine.park(group)

    def time_out(self) -> bool:
        """Let waits return false, as they may; return whether any did."""
        if not self.waiting or self.timed_out > _PATIENCE:
            return False
        if self.seen != self.machine.changes:
            self.seen, self.timed_out = self.machine.changes, 0
        self.timed_out += 1
        waiting = [g for groups in self.waiting.values() for g in groups]
        self.waiting, self.places = {}, {}
        for group in waiting:
            group.passed = True
        self.machine.wake(*waiting)
        return True

    def holds(self, group: Group) -> bool:
        return id(group) in self.waiting

    def why(self, group: Group) -> str:
        places = self.places.get(id(group))
        if places is None:
            return ""
        one: Optional[Mbarrier] = self.objects.get(int(places.ravel()[0]))
        offset = int(places.ravel()[0]) % self.machine.memory.stride
        if one is None:
            return f": the mbarrier at {offset:#x} is gone"
        parts = [f"{one.pending} of {one.expected} arrivals"] if one.pending else []
        parts += [f"{one.bytes} bytes"] if one.bytes else []
        return f": the mbarrier at {offset:#x} misses {' and '.join(parts) or 'a phase'}"
