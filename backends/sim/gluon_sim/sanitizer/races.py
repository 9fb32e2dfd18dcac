"""Race detection: the last accesses to each element, and whether they happen before the current one.

A shadow holds, per element of a buffer, the number of an *epoch*: an access by an agent at a clock.
For shared memory one shadow row serves all programs of a batch while they do the same. For global
memory it also holds the program, and programs are ordered only by acquiring and releasing atomics
(`program_order`). Allocations that the kernel never writes have no shadow.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional, Protocol, Union

import numpy as np

from gluon_sim.errors import Access, RaceError, related, tolerate
from gluon_sim.sanitizer.advice import arrive_and_wait, fence
from gluon_sim.sanitizer.agents import GENERIC, Agent, Epoch, Task
from gluon_sim.sanitizer.earlier import Earlier
from gluon_sim.sanitizer.epochs import Epochs
from gluon_sim.sanitizer.observed import Buffer, View
from gluon_sim.sanitizer.program_order import ProgramOrder
from gluon_sim.sanitizer.threads import Met
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.words import BufferName, between, expression, threads_barrier

__all__ = [
    "GlobalShadow", "ShadowedBuffer", "ShadowedView", "SharedShadow", "access_of", "byte_of", "report_threads",
]  # fmt: skip

Program = tuple[int, int, int]  # (x, y, z)
# For an access: whether it is by the rest of the threads, or which elements are; its epochs.
Rest = Union[bool, np.ndarray]
Numbers = Union[int, np.ndarray]


class SharedShadow:
    """The shadow of one shared buffer; elements of `grain` bytes."""

    def __init__(self, epochs: Epochs, rows: int, size: int, grain: int, proxied: bool = True):
        self.epochs = epochs
        self.rows = rows
        self.proxied = proxied  # whether it takes fences to be seen through another proxy
        self.free = not (proxied and epochs.strict)  # reads need none
        self.grain = grain
        self.writes = np.zeros((1, size // grain), np.int32)
        self.reads: dict[int, np.ndarray] = {}

    def _refine(self, grain: int) -> None:
        ratio = self.grain // grain
        self.writes = np.repeat(self.writes, ratio, axis=1)
        self.reads = {s: np.repeat(r, ratio, axis=1) for s, r in self.reads.items()}
        self.grain = grain

    def _split(self) -> None:
        if self.writes.shape[0] == 1 and self.rows > 1:
            self.writes = np.repeat(self.writes, self.rows, axis=0)
            self.reads = {s: np.repeat(r, self.rows, axis=0) for s, r in self.reads.items()}

    def touch_span(self, task: Task, kind: str, span: slice, size: int) -> bool:
        """Record an access of all rows to the bytes of a span; return False where `touch` must report a race."""
        if size < self.grain:
            self._refine(size)
        run = (slice(None), slice(span.start // self.grain, span.stop // self.grain))
        rows = None if self.writes.shape[0] == 1 else np.arange(self.rows)[:, None]
        agent, ordered = task.agent, self.epochs.ordered
        assert agent is not None
        if not ordered(agent, self.writes[run], rows, not self.proxied).all():
            return False
        kept = self.writes
        if kind == "read":
            if agent.slot not in self.reads:
                self.reads[agent.slot] = np.zeros_like(self.writes)
            kept = self.reads[agent.slot]
        else:
            for slot, read in self.reads.items():
                if slot != agent.slot and not ordered(agent, read[run], rows, self.free).all():
                    return False
        kept[run] = self.epochs.of(task, kind)
        return True

    def touch(
        self,
        task: Task,
        kind: str,
        index: np.ndarray,
        rows: Optional[np.ndarray],
        size: int,
        name: str,
    ) -> None:
        """Record an access to elements `index` of `size` bytes.

        Args:
            rows: batch rows that broadcast with `index`; None where all rows do the same.
        """
        if size < self.grain:
            self._refine(size)
        if size > self.grain:
            ratio = size // self.grain
            index = (index[..., None] * ratio + np.arange(ratio)).reshape(*index.shape[:-1], -1)
            if rows is not None and np.ndim(rows) and rows.shape[-1] != 1:
                rows = np.repeat(rows, ratio, axis=-1)
        if rows is not None:
            self._split()
        shadow_rows: Any = 0 if self.writes.shape[0] == 1 else rows
        if shadow_rows is None:
            shadow_rows = rows = np.arange(self.rows)[:, None]
            index = np.atleast_2d(index)
        agent = task.agent
        assert agent is not None
        ids = self.writes[shadow_rows, index]
        self._check(task, agent, kind, ids, rows, index, name)
        if kind != "read":
            for slot, read in self.reads.items():
                if slot != agent.slot:
                    self._check(
                        task, agent, kind, read[shadow_rows, index], rows, index, name, True
                    )
            self.writes[shadow_rows, index] = self.epochs.of(task, kind)
        else:
            mine = self.reads.get(agent.slot)
            if mine is None:
                mine = self.reads[agent.slot] = np.zeros_like(self.writes)
            mine[shadow_rows, index] = self.epochs.of(task, kind)

    def _check(
        self, task: Task, agent: Agent, kind: str, ids: np.ndarray, rows: Optional[np.ndarray],
        index: np.ndarray, name: str, reads: bool = False,
    ) -> None:  # fmt: skip
        fine = self.epochs.ordered(agent, ids, rows, self.free if reads else not self.proxied)
        if fine.all():
            return
        fine = np.broadcast_to(fine, ids.shape)
        first = np.unravel_index(int(np.argmin(fine)), fine.shape)
        earlier = self.epochs.all[int(ids[first])]
        where = np.broadcast_to(index, ids.shape)[first]
        row = 0 if rows is None else int(np.broadcast_to(rows, ids.shape)[first])
        program = task.batch.program(row)
        assert earlier is not None
        report(task, kind, earlier, program, program, int(where) * self.grain, name, False)


class ShadowedBuffer(Buffer, Protocol):
    """A buffer with room for its shadow."""

    shadow: Optional[SharedShadow]


class ShadowedView(View, Protocol):
    """A view of such a buffer."""

    @property
    def buffer(self) -> ShadowedBuffer: ...


NOBODY = -1


class GlobalShadow:
    """The shadow of one allocation that the kernel writes; elements of `grain` bytes.

    A reader or updater is a program p, or -2 - p where there were others before.
    """

    def __init__(
        self, epochs: Epochs, order: ProgramOrder, nbytes: int, grain: int, ordering: bool = True
    ):
        self.epochs = epochs
        self.order = order
        self.ordering = ordering  # whether anything in the kernel can order its programs
        self.earlier = Earlier()
        self.grain = grain
        self.size = nbytes // grain
        self.accessor: dict[str, np.ndarray] = {}
        self.ids: dict[str, np.ndarray] = {}

    def _refine(self, grain: int) -> None:
        ratio = self.grain // grain
        self.accessor = {k: np.repeat(v, ratio) for k, v in self.accessor.items()}
        self.ids = {k: np.repeat(v, ratio) for k, v in self.ids.items()}
        self.earlier.refine(ratio)
        self.size *= ratio
        self.grain = grain

    def _kept(self, kind: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the arrays of the last accessors of a kind, and of their epochs."""
        accessors = self.accessor.get(kind)
        if accessors is None:
            accessors = self.accessor[kind] = np.full(self.size, NOBODY, np.int32)
            self.ids[kind] = np.zeros(self.size, np.uint16)
        ids = self.ids[kind]
        if number > 0xFFFF and ids.dtype == np.uint16:
            ids = self.ids[kind] = ids.astype(np.int32)
        return accessors, ids

    def _numbers(self, task: Task, kind: str, rest: Rest) -> Numbers:
        """Return the epochs of an access by the acting thread, and by the rest of them."""
        of, time = self.epochs.of, self.order.time
        if isinstance(rest, bool):
            return of(task, kind, time, rest)
        return np.where(rest, of(task, kind, time, True), of(task, kind, time))

    def fresh(
        self, task: Task, kind: str, first: int, index: np.ndarray, programs: np.ndarray, size: int,
        rest: Rest = False,
    ) -> bool:  # fmt: skip
        """Note a write of a run that nobody has touched; false where somebody has."""
        if kind != "write" or size != self.grain:
            return False
        run = slice(first, first + index.size)
        if any((accessors[run] != NOBODY).any() for accessors in self.accessor.values()):
            return False
        number = self._numbers(task, kind, rest)
        accessors, ids = self._kept(kind, int(np.max(number)))
        accessors[run].reshape(index.shape)[...] = programs
        ids[run] = number if isinstance(number, int) else number.reshape(-1)
        return True

    def touch(
        self,
        task: Task,
        kind: str,
        index: np.ndarray,
        programs: np.ndarray,
        size: int,
        name: str,
        shared: bool,
        rest: Rest = False,
    ) -> None:
        """Record an access to elements `index` of `size` bytes by `programs`, which broadcasts.

        Args:
            kind: "read", "write" or "update" (atomic).
            shared: several programs of the batch make this access as one.
            rest: which of them are by threads other than the one that makes the task's atomics.
        """
        if size < self.grain:
            self._refine(size)
        if size > self.grain:
            ratio = size // self.grain
            index = index[..., None] * ratio + np.arange(ratio)
            programs = programs[..., None]
            rest = rest if isinstance(rest, bool) else rest[..., None]
        if not isinstance(rest, bool):
            rest = np.broadcast_to(rest, index.shape)
        for other in _CONFLICTS[kind]:
            accessors = self.accessor.get(other)
            if accessors is not None:
                self._check(task, kind, other, accessors, index, programs, name)
            self._check_earlier(task, kind, other, index, programs, name)
        number = self._numbers(task, kind, rest)
        accessors, ids = self._kept(kind, int(np.max(number)))
        keeps = kind != "write" and (self.ordering or task.agent is not None)
        if keeps:
            self._keep(task, kind, index, programs, accessors, ids)
        ids[index] = number
        if kind == "write":
            self.earlier.forget(_CONFLICTS[kind], index)
            accessors[index] = programs
            if shared:
                self._clash(task, index, programs, name)
            elif len(programs) > 1:
                double = accessors.take(index, mode="clip") != programs
                if double.any():
                    self._clash(task, index, programs, name, double, accessors)
            return
        if programs.size == 1 and not shared:
            old = accessors[index]
            same = (old == NOBODY) | (old == programs)
            accessors[index] = programs if same.all() else np.where(same, programs, -2 - programs)
            return
        old = accessors[index]
        new = np.where((old == NOBODY) | (old == programs), programs, -2 - programs)
        if shared:
            new = np.where(new >= 0, -2 - new, new)
        accessors[index] = new
        if shared and keeps:
            others = task.batch.numbers[task.rows.index]
            others = others[others != programs.flat[0]]
            for places, one in _by_number(index, number):
                self.earlier.push_all(kind, self.size, places, others, one)
        several = accessors[index] != new
        if several.any():
            if keeps and not shared:
                double = np.isin(index, np.broadcast_to(index, several.shape)[several])
                double = np.broadcast_to(double, several.shape)
                places = np.broadcast_to(index, several.shape)[double]
                by = np.broadcast_to(programs, several.shape)[double]
                numbers = np.broadcast_to(number, several.shape)[double]
                self.earlier.push_rounds(kind, self.size, places, by, numbers)
            last = accessors[index][several]
            places = np.broadcast_to(index, several.shape)[several]
            accessors[places] = np.where(last >= 0, -2 - last, last)

    def _check(
        self, task: Task, kind: str, other: str, accessors: np.ndarray, index: np.ndarray,
        programs: np.ndarray, name: str,
    ) -> None:  # fmt: skip
        old = accessors.take(index, mode="clip")
        if task.agent is not None:
            mine = (old == programs) & (old >= 0)
            if mine.any():
                self._within(task, task.agent, kind, other, index, programs, name, mine)
        foreign = (old != programs) & (old != NOBODY)
        if not foreign.any():
            return
        places = np.flatnonzero(foreign.ravel())
        flat = np.broadcast_to(index, foreign.shape).ravel()[places]
        now = np.broadcast_to(programs, foreign.shape).ravel()[places].astype(np.int64)
        before = old.ravel()[places].astype(np.int64)
        before = np.where(before < 0, -2 - before, before)
        ids = self.ids[other][flat].astype(np.int64)
        bad = ~self.order.ordered(task, self.epochs, before, ids, now)
        if self.order.orders:  # then this is the last of several, and it is the same program
            bad &= before != now
        if bad.any():
            self._report(task, kind, int(np.argmax(bad)), flat, ids, before, now, name)

    def _report(
        self, task: Task, kind: str, position: int, places: np.ndarray, ids: np.ndarray,
        before: np.ndarray, now: np.ndarray, name: str,
    ) -> None:  # fmt: skip
        """Report the access at `position` among the epochs `ids` as unordered."""
        one = slice(position, position + 1)
        earlier = self.epochs.all[int(ids[position])]
        assert earlier is not None
        remedy = None
        order, mine, theirs = self.order, int(now[position]), int(before[position])
        if mine != theirs and order.ordered(
            task, self.epochs, before[one], ids[one], now[one], acting=True
        ):
            remedy = (
                f"Put {threads_barrier(earlier.op)} between line {earlier.op.loc.line} and the atomic that releases: "
                "one thread makes it, and it does not order the earlier accesses of the others."
            )
        elif mine != theirs and order.met(theirs, mine):
            remedy = (
                "A release and an acquire count for the partition that makes them, and for what it "
                f"has waited for: let {earlier.task} be done with line {earlier.op.loc.line} before "
                f"the release, and {task.name} begin with line {task.op.loc.line} after the acquire, "
                "by a barrier that one arrives at and the other waits for."
            )
        elif mine != theirs and order.lacks():
            remedy = _PROGRAMS + order.lacks()
        report(
            task, kind, earlier, order.program(mine),
            order.program(theirs) if theirs != mine else None, int(places[position]), name, True,
            remedy=remedy,
        )  # fmt: skip

    def _keep(
        self, task: Task, kind: str, index: np.ndarray, programs: np.ndarray, accessors: np.ndarray,
        ids: np.ndarray,
    ) -> None:  # fmt: skip
        """Before an access takes the place of the last: keep that one, unless it comes before."""
        old = accessors.take(index, mode="clip")
        live = old != NOBODY
        if not live.any():
            return
        decoded = np.where(old < 0, -2 - old, old)
        apart = live & (decoded != programs)
        if task.agent is not None:
            slots = self.epochs.slots[ids.take(index, mode="clip")]
            apart |= live & (slots != task.agent.slot)
        if not apart.any():
            return
        places = np.broadcast_to(index, apart.shape)[apart]
        epochs = ids[places].astype(np.int32)
        self.earlier.push(kind, self.size, places, decoded[apart], epochs)

    def _check_earlier(
        self, task: Task, kind: str, other: str, index: np.ndarray, programs: np.ndarray, name: str
    ) -> None:  # fmt: skip
        for places, now, before, epochs in self.earlier.chains(other, index, programs):
            bad = ~self.order.ordered(task, self.epochs, before, epochs, now)
            own = before == now
            bad &= ~own
            if task.agent is not None and own.any():
                rows = np.searchsorted(task.batch.numbers, now[own])
                fine = self.epochs.ordered(task.agent, epochs[own], rows)
                fine = fine | (self.epochs.clocks[epochs[own]] == 0)  # it may be one for all
                if not fine.all() and self.order.orders:
                    fine = fine | self.order.ordered(
                        task, self.epochs, before[own], epochs[own], now[own]
                    )
                bad[own] = ~fine
            if bad.any():
                position = int(np.argmax(bad))
                self._report(task, kind, position, places, epochs, before, now, name)

    def _within(
        self, task: Task, agent: Agent, kind: str, other: str, index: np.ndarray,
        programs: np.ndarray, name: str, mine: np.ndarray,
    ) -> None:  # fmt: skip
        """Check two agents of one program."""
        if kind == other == "update":
            return
        flat = np.broadcast_to(index, mine.shape)[mine]
        ids = self.ids[other][flat]
        program = np.broadcast_to(programs, mine.shape)[mine]
        rows = np.searchsorted(task.batch.numbers, program)
        fine = self.epochs.ordered(agent, ids, rows, other in ("read", "poll"))
        fine = np.broadcast_to(fine, ids.shape)
        # Accesses before there were other agents happen before all of them.
        fine = fine | (self.epochs.clocks[ids] == 0)
        if not fine.all() and self.order.orders and agent.proxy == GENERIC:
            fine = fine | self.order.ordered(task, self.epochs, program, ids, program)
        while not fine.all():
            first = int(np.argmin(fine))
            earlier = self.epochs.all[int(ids[first])]
            assert earlier is not None
            where = task.batch.program(int(rows[first]))
            mild = kind == other == "write" and _read_before(agent, earlier)
            report(task, kind, earlier, where, where, int(flat[first]), name, True, mild)
            fine = fine | (ids == ids[first])

    def _clash(
        self, task: Task, index: np.ndarray, programs: np.ndarray, name: str,
        double: Optional[np.ndarray] = None, accessors: Optional[np.ndarray] = None,
    ) -> None:  # fmt: skip
        """Several programs of a batch write one element with one op."""
        batch = task.batch
        if double is None or accessors is None:
            rows = task.rows.index[:2]
            one, two = batch.program(int(rows[0])), batch.program(int(rows[1]))
            element = int(np.ravel(index)[0])
        else:
            first = np.unravel_index(int(np.argmax(double)), double.shape)
            element = int(np.broadcast_to(index, double.shape)[first])
            mine = int(np.broadcast_to(programs, double.shape)[first])
            one = batch.program(int(np.searchsorted(batch.numbers, mine)))
            two = batch.program(int(np.searchsorted(batch.numbers, int(accessors[element]))))
        earlier = Epoch(task.op, "write", task.agent, 0, task.name)
        report(task, "write", earlier, two, one, element, name, True)


def _by_number(index: np.ndarray, number: Numbers) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the places of each epoch of an access."""
    if isinstance(number, int):
        yield index, number
        return
    for one in np.unique(number).tolist():
        yield index[np.broadcast_to(number, index.shape) == one], one


_VERB = {"read": "read", "poll": "read", "write": "write", "update": "atomic update"}
_CONFLICTS = {
    "read": ("write", "update"), "poll": ("write",), "update": ("write", "read"),
    "write": ("write", "update", "read", "poll"),
}  # fmt: skip


def _read_before(agent: Agent, earlier: Epoch) -> bool:
    """For two writes by asynchronous work: did the later one start when the earlier one was known to
    have read its source? Then hardware is known to write in that order."""
    theirs = earlier.agent.flight if earlier.agent is not None else None
    mine = agent.flight
    if mine is None or mine.source is None or theirs is None or theirs.source is None:
        return False
    return mine.queue == theirs.queue and theirs.source.known_by(agent)


def byte_of(task: Task, name: str, element: int) -> str:
    """Return the words for a byte of a buffer, with the expression by which the running op gets there."""
    if not isinstance(name, BufferName):
        return f"byte {element} of {name}"
    part = expression(task.machine.program.program, task.op, name.alloc)
    return f"{name.at(element)} (`{part}`)" if part else name.at(element)


_PROGRAMS = (
    "Nothing orders programs of a grid but atomics: let one release after its access and "
    "the other acquire before its own, or give each its own elements."
)


def report(
    task: Task, kind: str, earlier: Epoch, program: Program, other: Optional[Program], element: int,
    name: str, in_global: bool, tolerated: bool = False, remedy: Optional[str] = None,
) -> None:  # fmt: skip
    """Raise the error for two accesses without order, unless it is tolerated."""
    place = f"element {element} of `{name}`" if in_global else byte_of(task, name, element)
    now = access_of(task.op, kind, task.agent, task.name, program)
    then = access_of(earlier.op, earlier.kind, earlier.agent, earlier.task, other)
    if remedy is None and program != other:
        remedy = _PROGRAMS
    elif remedy is None:
        remedy = _missing(task, earlier)
    error = RaceError(
        f"race on {place}: the {now.describe()} and the {then.describe()} have no order",
        report="race.programs"
        if program != other
        else "race.global"
        if in_global
        else "race.shared",
        accesses=(then, now),
        place=element,
        program=program,
        remedy=remedy,
        span=span_of(task.op.loc),
    )
    error.related = related(error.span, span_of(earlier.op.loc))
    error.epoch = earlier
    if not tolerated:
        raise error
    tolerate(error, task.machine.settings.tolerated, task.memory.warned)


def report_threads(
    task: Task, kind: str, op: Op, met: Met, name: str, tolerated: bool = False
) -> None:
    """Raise the error for two threads of a partition that meet without a barrier, unless it is tolerated."""
    program = task.batch.program(int(task.rows.index[0]))
    now = access_of(task.op, kind, task.agent, task.name, program)
    then = access_of(op, met.kind, task.agent, task.name, program)
    place = between(op, task.op)
    if (op.loc.file, op.loc.line) == (task.op.loc.file, task.op.loc.line):
        place = "between the two, each in a line of its own"
    parties = "blocks of the cluster" if met.blocks else "threads of it"
    own, wide = threads_barrier(task.op), threads_barrier(task.op, cluster=True)
    remedy = (
        f"Put {wide} {place}: {own} is of one block alone."
        if met.blocks
        else f"Put {own} {place}, or let the same threads do both."
    )
    error = RaceError(
        f"race on element {met.place} of `{name}`: the {now.describe()} and the {then.describe()} are "
        f"by different {parties}, which no barrier orders",
        accesses=(then, now),
        place=met.place,
        program=program,
        remedy=remedy,
        report="race.blocks" if met.blocks else "race.threads",
        span=span_of(task.op.loc),
    )
    error.related = related(error.span, span_of(op.loc))
    if not tolerated:
        raise error
    tolerate(error, task.machine.settings.tolerated, task.memory.warned)


def access_of(
    op: Op, kind: str, agent: Optional[Agent], task: str, program: Optional[Program]
) -> Access:
    flight = agent.flight if agent is not None else None
    return Access(
        op.called,
        span_of(op.loc),
        _VERB[kind],
        program,
        flight.task.name if flight is not None else task,
        agent.proxy if agent is not None else GENERIC,
        flight.queue if flight is not None else None,
    )


def _missing(task: Task, earlier: Epoch) -> str:
    """Return the missing synchronization of the two accesses."""
    mine, theirs = task.agent, earlier.agent
    if mine is not None and mine.flight is not None and theirs is not None:
        seen = mine.known.widen(theirs.slot + 1)
        apart = mine.proxy != GENERIC and theirs.proxy == GENERIC
        if apart and (seen[0, :, theirs.slot] >= earlier.clock).all():
            return fence(task, mine.proxy, earlier.op, mine.flight.op)
    if mine is not None and mine.flight is not None and (lost := mine.flight.uncounted()):
        return lost
    if theirs is not None and theirs.flight is not None:
        if mine is None or mine.flight is None or not mine.flight.precedes(theirs.flight):
            return theirs.flight.remedy(task)
        return mine.flight.remedy(task, earlier)
    if mine is not None and mine.flight is not None and theirs is not None:
        if mine.flight.task.agent is theirs or mine.flight.task.name == earlier.task:
            return mine.flight.remedy(task, earlier)
    return arrive_and_wait(task, earlier.task, earlier.op, task.op)
