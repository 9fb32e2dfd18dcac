"""Barriers in shared memory: arrivals, bytes, phases, and the missing arrivals of a wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Protocol

import numpy as np

from gluon_sim.errors import BarrierError
from gluon_sim.sanitizer import agents
from gluon_sim.sanitizer.advice import barrier_call
from gluon_sim.sanitizer.agents import Clock
from gluon_sim.sanitizer.blocks import Blocks
from gluon_sim.sanitizer.observed import Buffer, View
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.origins import unawaited, users_of
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.words import buffer_name, expression

__all__ = ["Barriers", "Batch", "Places", "Task"]

Places = tuple[np.ndarray, np.ndarray]  # batch rows, and the slot of each


class Batch(agents.Batch, Protocol):
    """Programs that run together.

    Attributes:
        blocks: the vector clocks of the blocks of their clusters; None without such checks.
    """

    @property
    def blocks(self) -> Optional[Blocks]: ...


class Task(agents.Task, Protocol):
    """A thread of control over a batch."""

    @property
    def batch(self) -> Batch: ...


class Barriers:
    """The barriers that live in one shared buffer: per program and 8-byte slot.

    A barrier counts `pending` arrivals (and bytes still to come) down; at zero the phase flips and
    the count starts again. A wait for parity p passes once the phase with parity p has completed.
    An arrival releases the agent's clock; a passed wait acquires it.
    """

    def __init__(self, rows: int, size: int, strict: bool = True, name: str = "its buffer"):
        shape = (rows, max(1, size // 8))
        self.rows = rows
        self.name = name
        self.remedy = ""  # of a wrong use, from the building block that they are part of
        self.strict = strict  # whether to report violations of the protocol
        self.count = np.zeros(shape, np.int64)
        self.pending = np.zeros(shape, np.int64)
        self.bytes = np.zeros(shape, np.int64)
        self.phase = np.zeros(shape, np.int64)
        self.dead = np.zeros(shape, bool)
        # Bytes of the current phase: announced, and come. By slot: at which lines.
        self.due = np.zeros(shape, np.int64)
        self.come = np.zeros(shape, np.int64)
        self.announced: dict[int, set[int]] = {}
        self.brought: dict[int, set[int]] = {}
        # By slot: the clocks released by arrivals so far, and by completed phases.
        self.coming: dict[int, Clock] = {}
        self.over: dict[int, Clock] = {}
        # The same of the blocks of a cluster, whose barriers these are: for each block the one whose
        # barrier it uses, and the clocks they publish.
        self.leads: Optional[np.ndarray] = None
        self.published: dict[int, np.ndarray] = {}
        self.known: dict[int, np.ndarray] = {}
        # By slot: (task, op) of those who arrived, the last of each.
        self.arrived: dict[int, dict[tuple[str, Op], None]] = {}
        self.others: set[str] = set()  # ops that use barriers, and do not arrive
        # By slot and task: line and parity of its last wait.
        self.waited: dict[tuple[int, str], tuple[int, int]] = {}
        # By slot and agent: its last wait. By slot: waits that may miss their phase.
        self.passes: dict[int, dict[int, _Pass]] = {}
        self.doubts: dict[int, list[_Pass]] = {}

    def init(self, places: Places, count: int) -> None:
        live = self.count[places] != 0
        if live.any() and self.strict:
            raise BarrierError(
                "a barrier in use is initialized again",
                report="barrier.initialised",
                remedy="Invalidate it first, before its memory serves anything else.",
            )
        coming = self.dead[places] & (self.bytes[places] > 0)
        if coming.any() and self.strict:
            raise BarrierError(
                "a barrier is initialized again, but was invalidated before all of its copies had arrived",
                report="barrier.initialised",
                expected="no bytes to come",
                got=f"{int(self.bytes[places][coming][0])} bytes",
                remedy="Wait for its phase before you invalidate it: late copies complete the new barrier.",
            )
        self.count[places] = count
        self.pending[places] = count
        self.bytes[places] = self.due[places] = self.come[places] = 0
        self.phase[places] = 0
        self.dead[places] = False
        for slot in _distinct(places[1]):
            self.passes.pop(slot, None)

    def invalidate(self, places: Places) -> None:
        self.check(places, "invalidate")
        self.finish(places)
        self.count[places] = 0
        self.dead[places] = True

    def check(self, places: Places, action: str) -> None:
        bad = self.count[places] == 0
        if bad.any() and self.strict:
            if self.dead[places][bad].any():
                raise BarrierError(
                    f"{action} on a barrier that was invalidated",
                    report="barrier.invalidated",
                    remedy="Invalidate a barrier after its last use, or initialize it again.",
                )
            raise BarrierError(
                f"{action} on a barrier that is not initialized",
                report="barrier.uninitialised",
                remedy="Initialize it first, and do not use it after it was invalidated.",
            )

    def arrive(
        self, places: Places, count: int, task: Optional[Task] = None, everywhere: bool = False
    ) -> None:
        self.check(places, "arrive")
        if (self.pending[places] < count).any() and self.strict:
            raise BarrierError(
                "more arrivals at a barrier than its phase expects",
                report="barrier.arrivals",
                expected=f"at most {int(self.pending[places].min())}",
                got=count,
                remedy=self._too_early(int(places[1][0]), task),
            )
        self.pending[places] -= count
        over = (self.bytes[places] < 0) & (self.pending[places] == 0)
        if over.any() and self.strict:
            raise BarrierError(
                "more bytes came to a barrier than its phase expects: "
                + self._traffic(places, over, task),
                report="barrier.bytes",
                expected=0,
                got=-int(self.bytes[places][over][0]),
                remedy="Expect the bytes of all copies of a phase, before its last arrival.",
            )
        self._release(places, task, everywhere)
        if self.doubts:
            self._without(places, count, task)
        self._turn(places)

    def raised(self, places: Places, count: int) -> None:
        """Expect `count` more arrivals in this phase."""
        self.check(places, "arrive")
        self.pending[places] += count

    def expect(self, places: Places, size: int, task: Optional[Task] = None) -> None:
        """`size` more bytes belong to this phase."""
        self.check(places, "expect")
        self.bytes[places] += size
        self.due[places] += size
        self._note(self.announced, places, task)

    def complete(self, places: Places, size: int, task: Optional[Task] = None) -> None:
        """`size` bytes have come."""
        self.check(places, "complete")
        self.bytes[places] -= size
        self.come[places] += size
        self._note(self.brought, places, task)
        over = (self.bytes[places] < 0) & (self.pending[places] == 0)
        if over.any() and self.strict:
            raise BarrierError(
                "more bytes came to a barrier than its phase expects: "
                + self._traffic(places, over, task),
                report="barrier.bytes",
                expected=f"{int(self.bytes[places][over][0]) + size} more",
                got=size,
                remedy="Expect the bytes of all copies of a phase, in the phase they complete.",
            )
        self._release(places, task)
        self._turn(places)

    @staticmethod
    def _note(lines: dict[int, set[int]], places: Places, task: Optional[Task]) -> None:
        """Remember the line of the op that has to do with bytes."""
        if task is not None:
            for slot in _distinct(places[1]):
                lines.setdefault(slot, set()).add(task.op.loc.line)

    def _traffic(self, places: Places, which: np.ndarray, task: Optional[Task]) -> str:
        """Return the bytes of the first of some barriers, in words."""
        first = int(np.argmax(which))
        row, slot = int(places[0][first]), int(places[1][first])
        program = f" in program {task.batch.program(row)}" if task is not None else ""
        return (
            f"phase {int(self.phase[row, slot])} of the barrier at byte {slot * 8} of {self.name}"
            f"{program}{self._bytes(row, slot)}"
        )

    def _bytes(self, row: int, slot: int) -> str:
        """Return how many bytes the current phase expects, and how many have come; at which lines."""
        places = [
            f" (line {', '.join(map(str, sorted(lines[slot])))})" if lines.get(slot) else ""
            for lines in (self.announced, self.brought)
        ]
        return (
            f" expects {int(self.due[row, slot])} bytes{places[0]}, "
            f"{int(self.come[row, slot])} have come{places[1]}"
        )

    def _release(self, places: Places, task: Optional[Task], everywhere: bool = False) -> None:
        if task is None:
            return
        agent = task.agent
        if self.leads is not None and task.batch.blocks is not None:
            published = task.batch.blocks.publish(task, self.leads, everywhere)
            for slot in _distinct(places[1]):
                self.published[slot] = np.maximum(self.published.get(slot, 0), published)
        for slot in _distinct(places[1]):
            self.arrived.setdefault(slot, {})[task.name, task.op] = None
            if agent is not None:
                rows = places[0][places[1] == slot]
                whole = None if len(rows) == self.rows else rows
                self.coming.setdefault(slot, Clock()).join(agent.known, whole, self.rows)

    def _turn(self, places: Places) -> None:
        left = self.bytes[places] if self.strict else np.maximum(self.bytes[places], 0)
        done = (self.pending[places] <= 0) & (left == 0)
        if self.passes and done.any():
            self._may_be_missed((places[0][done], places[1][done]))
        self.phase[places] += done
        self.pending[places] = np.where(done, self.count[places], self.pending[places])
        self.due[places] = np.where(done, 0, self.due[places])
        self.come[places] = np.where(done, 0, self.come[places])
        if done.any() and self.coming:
            for slot in _distinct(places[1][done]):
                if slot in self.published:
                    self.known[slot] = self.published[slot]
                coming = self.coming.get(slot)
                if coming is not None:
                    rows = places[0][done & (places[1] == slot)]
                    whole = None if len(rows) == self.rows else rows
                    self.over.setdefault(slot, Clock()).join(coming, whole, self.rows)

    def _may_be_missed(self, places: Places) -> None:
        """Note waits that may come after the end of the phase that ends now, the next one after theirs.

        No arrival of this phase happens after such a wait. A late wait sees the parity of the phase after its own and blocks until
        that one ends, too, which takes as many further arrivals that do not depend on the wait.
        """
        for slot in _distinct(places[1]):
            rows = places[0][places[1] == slot]
            seen = self.coming[slot].seen if slot in self.coming else np.zeros((2, 1, 1), np.int64)
            for one in self.passes.get(slot, {}).values():
                late = np.isin(one.rows, rows) & (self.phase[one.rows, slot] == one.phase + 1)
                late &= ~one.known(seen, self.rows)
                if late.any():
                    self.doubts.setdefault(slot, []).append(one.part(late))

    def _without(self, places: Places, count: int, task: Optional[Task]) -> None:
        """Count arrivals that come although a wait that may miss its phase has not passed."""
        for slot in _distinct(places[1]):
            rows = places[0][places[1] == slot]
            for one in self.doubts.pop(slot, []):
                apart = np.isin(one.rows, rows)
                if task is not None and task.agent is not None:
                    apart &= ~one.known(task.agent.known.seen, self.rows)
                one.without[apart] += count
                left = one.without < self.count[one.rows, slot]
                if left.any():
                    self.doubts.setdefault(slot, []).append(one.part(left))

    def _error(self, slot: int, one: _Pass) -> BarrierError:
        line = one.op.loc.line
        return BarrierError(
            f"the wait of {one.name} for {self._of(slot)} may come after two phases are over: nothing makes the arrivals "
            "of the second come after it, and then it waits for a phase that never ends",
            report="barrier.missed",
            remedy=f"{self.history(slot)} Let those who arrive for the next phase wait until {one.name} has passed "
            f"line {line} and has arrived at another barrier.".lstrip(),
            span=span_of(one.op.loc),
        )

    def _of(self, slot: int) -> str:
        return (
            f"the barrier {self.name}"
            if self.count.shape[1] == 1
            else f"the barrier at byte {slot * 8} of {self.name}"
        )

    def finish(self, places: Optional[Places] = None) -> None:
        """Report waits that nothing holds before the end of the next phase: no phase comes that would release them.

        Args:
            places: the barriers whose last phase is over; None for all.
        """
        slots = list(self.doubts) if places is None else _distinct(places[1])
        for slot in slots:
            for one in self.doubts.pop(slot, []):
                if self.strict and (places is None or np.isin(one.rows, places[0]).any()):
                    raise self._error(slot, one)

    def passed(self, places: Places, parity: np.ndarray) -> np.ndarray:
        """Per program: has the phase with this parity completed?"""
        over: np.ndarray = (self.phase[places] & 1) != (parity & 1)
        return over

    def acquire(self, places: Places, task: Task) -> None:
        """Acquire the clocks released by arrivals at completed phases."""
        blocks = task.batch.blocks
        if blocks is not None and self.leads is not None:
            for slot in _distinct(places[1]):
                if slot in self.known:
                    blocks.learn(self.known[slot], self.leads)
        if task.agent is None:
            return
        for slot in _distinct(places[1]):
            over = self.over.get(slot)
            rows = places[0][places[1] == slot]
            if over is not None:
                whole = None if len(rows) == self.rows else rows
                task.agent.known.join(over, whole, self.rows)
            self.passes.setdefault(slot, {})[task.agent.slot] = _Pass(
                task.name,
                task.op,
                task.agent.slot,
                task.agent.clock,
                rows,
                self.phase[rows, slot] - 1,
                np.zeros(len(rows), np.int64),
            )

    def _too_early(self, slot: int, task: Optional[Task]) -> Optional[str]:
        """Return the missing wait of an arrival that came before the last phase was over."""
        text = self.history(slot)
        if self.remedy:
            return f"{text} {self.remedy}".lstrip()
        if task is None:
            return text or None
        line = task.op.loc.line
        idle = _idle(task)
        if idle:
            return f"{text} {idle}: wait for it before line {line}.{_put(task)}".lstrip()
        return (
            f"{text} Before line {line} comes again, {task.name} must wait until the phase is over, or "
            "until those who wait for it have arrived at a barrier of their own."
        ).lstrip()

    def history(self, slot: int) -> str:
        """Return the tasks that have arrived at a barrier so far."""
        known = [f"{name} at line {op.loc.line}" for name, op in self.arrived.get(slot, {})]
        return f"So far {', '.join(known[:6])} arrived." if known else ""

    def scene(self, task: Task, buffer: Buffer, row: int, slot: int, parity: int) -> dict[str, Any]:
        """Return the missing arrivals of a wait for this barrier."""
        before = list(self.arrived.get(slot, {}))
        reached = {id(op) for _, op in before}
        alloc = buffer.alloc
        users = users_of(task.machine.program.program, alloc) if alloc is not None else []
        others = self.others | {task.op.name}
        candidates = {
            op.loc.line for op in users if id(op) not in reached and op.name not in others
        }
        completed = int(self.phase[row, slot])
        # The arriving task ran ahead of this wait by two phases or more: nothing held it back.
        idle = _idle(task) if completed > 1 else ""
        lines = sorted({op.loc.line for _, op in before})
        remedy = (
            f"{idle}: wait for it before line {lines[0]}.{_put(task)}" if idle and lines else ""
        )
        if self.bytes[row, slot] < 0 and not self.announced.get(slot):
            brought = ", ".join(map(str, sorted(self.brought.get(slot, ()))))
            remedy = (
                f"Nobody expects the bytes that line {brought} brings to the barrier {buffer.name}: "
                "expect them before, in the same phase."
            )
        return {
            "remedy": remedy,
            "advice": self.remedy,
            "program": task.batch.program(row),
            "slot": slot,
            "phase": parity,
            "pending": int(self.pending[row, slot]),
            "count": int(self.count[row, slot]),
            "used": len(users) > 1,
            "size": int(self.bytes[row, slot]),
            "arrived": tuple(lines),
            "candidates": tuple(sorted(candidates)),
            "where": _place_of(task, buffer, slot),
            "completed": completed,
            "bytes": self._bytes(row, slot) if self.announced.get(slot) else "",
        }

    def unused(self, places: Places) -> None:
        """Refuse memory in which barriers are still alive."""
        slots = places[1] < self.count.shape[1]
        if self.strict and (self.count[places[0][slots], places[1][slots]] != 0).any():
            raise BarrierError(
                "memory of a barrier is used again while the barrier is in use",
                report="barrier.reused",
                remedy="Invalidate the barrier first.",
            )

    def spared(self, view: View, rows: Rows) -> None:
        """Refuse data over a barrier that is in use."""
        if not self.strict or not self.count.any():
            return
        slots = np.unique(view.table // 8)
        places = slots[None, :] + (view.base // 8)[:, None]
        if (self.count[rows.index[:, None], places] != 0).any():
            raise BarrierError(
                "data is written over a barrier that is in use",
                report="barrier.overwritten",
                remedy="Invalidate the barrier first.",
            )


@dataclass(frozen=True)
class _Pass:
    """The last wait of an agent at a barrier.

    Args:
        agent, clock: its slot, and its clock then.
        rows: the programs that waited.
        phase: of each, the phase that was over.
        without: of each, the arrivals after the end of the next phase that did not come after this wait.
    """

    name: str
    op: Op
    agent: int
    clock: int
    rows: np.ndarray
    phase: np.ndarray
    without: np.ndarray

    def part(self, which: np.ndarray) -> "_Pass":
        arrays = (self.rows[which], self.phase[which], self.without[which])
        return _Pass(self.name, self.op, self.agent, self.clock, *arrays)

    def known(self, seen: np.ndarray, rows: int) -> np.ndarray:
        """Return for each program if the wait comes before everything that has these clocks."""
        if seen.shape[2] <= self.agent:
            return np.zeros(len(self.rows), bool)
        clocks = np.broadcast_to(seen[0, :, self.agent], rows)[self.rows]
        return np.asarray(clocks >= self.clock)


def _place_of(task: Task, buffer: Buffer, slot: int) -> str:
    """Return the words for a barrier of a buffer, by the expression of the op that runs."""
    part = expression(task.machine.program.program, task.op, buffer.alloc)
    if part:
        return f"the barrier `{part}` (byte {slot * 8} of {buffer.name})"
    return (
        f"the barrier {buffer.name}"
        if buffer.size <= 16 and not slot
        else (f"the barrier at byte {slot * 8} of {buffer.name}")
    )


def _put(task: Task) -> str:
    """Return the remedy: the wait to put there, for the first barrier for which nobody waits."""
    alloc, arrives = unawaited(task.machine.program.program)[0]
    call = barrier_call(task, arrives[0], alloc)
    return f" Put `{call}` there." if call else ""


def _idle(task: Task) -> str:
    """Which barriers see arrivals and no wait, in words; empty where there is none."""
    known = [
        f"the barrier {buffer_name(alloc)}, at which line "
        f"{', '.join(map(str, sorted({op.loc.line for op in arrives})))} arrives"
        for alloc, arrives in unawaited(task.machine.program.program)[:2]
    ]
    return f"Nobody waits for {' nor for '.join(known)}" if known else ""


def _distinct(slots: np.ndarray) -> list[int]:
    """Return the slots of an access by several programs, which are nearly always one."""
    first = int(slots[0])
    return [first] if (slots == first).all() else np.unique(slots).tolist()
