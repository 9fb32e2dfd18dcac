"""Tasks: a thread of control over a batch of programs, with the services for models."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Protocol, Sequence, TextIO, Union

import numpy as np

from gluon_sim.errors import BarrierError
from gluon_sim.executor.batch import Batch
from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.executor.frame import Frame, select
from gluon_sim.executor.models import Models
from gluon_sim.executor.products import matmul
from gluon_sim.memory import flight
from gluon_sim.memory.atomics import RMW
from gluon_sim.memory.barriers import Barriers, Places
from gluon_sim.memory.flight import Queue
from gluon_sim.memory.global_memory import GlobalMemory
from gluon_sim.memory.guided import Guided
from gluon_sim.memory.promise import Promise, promise, settled
from gluon_sim.memory.scene import in_words
from gluon_sim.memory.scheduler import Scheduler
from gluon_sim.memory.shared import SharedBuffer, SharedView
from gluon_sim.memory.tensor_memory import copies_of, in_tensor_memory
from gluon_sim.memory.turns import Turns, Wait
from gluon_sim.sanitizer.addresses import initialised, not_before
from gluon_sim.sanitizer.agents import GENERIC, Agent, Agents
from gluon_sim.sanitizer.blocks import leaders
from gluon_sim.sanitizer.clusters import meet
from gluon_sim.sanitizer.proxies import History, missing_fence, report_added_fence
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.source import in_library
from gluon_sim.tracing.types import MemDescType, PointerType, Type
from gluon_sim.tracing.uses import is_used

__all__ = ["Machine", "Task"]


class Machine(flight.Machine, Protocol):
    """The launch that a task is part of; see `gluon_sim.executor.machine`.

    Attributes:
        ticks: of its clock.
        hurried: whether something may happen between ops.
    """

    ticks: int

    @property
    def memory(self) -> GlobalMemory: ...

    @property
    def program(self) -> CompiledProgram: ...

    @property
    def models(self) -> Models: ...

    @property
    def grid(self) -> tuple[int, int, int]: ...

    @property
    def num_warps(self) -> int: ...

    @property
    def guided(self) -> Optional[Guided]: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def output(self) -> Optional[TextIO]: ...

    @property
    def hurried(self) -> bool: ...

    def claim(self) -> Optional[tuple[int, int, int]]:
        """Take a program that has not started; None where none is left."""
        ...

    def interrupt(self, task: Task) -> Turns[None]:
        """Check the time between ops, and let the schedule choose."""
        ...

    def allocate(self, task: Task, size: int) -> SharedBuffer: ...


class Task:
    """One thread of control over a batch: the kernel's own, or a partition's.

    Handlers and reference models get it as their first argument; see `gluon_core.plugin.reference`.
    """

    def __init__(self, machine: Machine, batch: Batch, name: str):
        self.machine = machine
        self.batch = batch
        self.name = name
        # Nobody asks before the first call.
        self.frame: Frame = None  # type: ignore[assignment]
        self.op: Op = None  # type: ignore[assignment]
        self.agent: Optional[Agent] = None  # only once there is somebody else in the program
        self.queues: dict[str, Queue] = {}
        self.calls: list[Op] = []  # that led to its function
        self.history = History()  # a compiler's knowledge of earlier accesses
        self.given: Sequence[Any] = ()  # the arguments of the op that runs
        self.portable = False  # whether a portable op is about to issue work
        self.num_warps = machine.num_warps
        self.first_warp = 0  # index of its first warp in a block
        # When its threads last waited for each other, for those who watch threads.
        self.since = machine.tracking.tick() if machine.tracking is not None else 0
        self.together = self.since  # when its blocks may have done so
        self.joined = 0, 0  # the same, for the order of programs: the time, and its agent's clock

    # ---- services for models ------------------------------------------------------------------

    @property
    def memory(self) -> GlobalMemory:
        return self.machine.memory

    @property
    def rows(self) -> Rows:
        return self.frame.rows

    @property
    def programs(self) -> int:
        """Return how many programs run together: the extent of the leading axis."""
        return self.frame.rows.count

    @property
    def target(self) -> Any:
        return self.machine.target

    @property
    def specialized(self) -> bool:
        return self.machine.program.specialized

    def program_id(self, position: int) -> tuple[int, int, int]:
        """Return the program id (x, y, z) behind a position of the leading axis."""
        row = self.frame.rows.index[position if self.frame.rows.count > 1 else 0]
        x, y, z = self.batch.ids
        return int(x[row]), int(y[row]), int(z[row])

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.machine.grid

    @property
    def blocks(self) -> int:
        return self.machine.num_ctas

    @property
    def all_warps(self) -> int:
        return self.machine.num_warps + self.machine.program.worker_warps

    @property
    def shared_bytes(self) -> int:
        return self.machine.program.shared_bytes

    def ticks(self, passed: int = 0) -> int:
        """Return a clock that moves when it is looked at."""
        self.machine.ticks += 32 + passed
        return self.machine.ticks

    def home(self, op: Optional[Op] = None) -> Op:
        """Return an op of this task, by default the one that runs, or where the kernel calls the library
        function that it is part of."""
        op = self.op if op is None else op
        for call in reversed(self.calls):
            if not in_library(op.loc.file):
                break
            op = call
        return op

    def claim(self) -> Optional[tuple[int, int, int]]:
        """Take a program that has not started; None where none is left."""
        return self.machine.claim()

    def full(self, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return a value at its full extent, (programs, *shape), as a read-only view."""
        return np.broadcast_to(value, (self.programs, *shape))

    def load_global(
        self,
        addresses: np.ndarray,
        type: Union[np.dtype, Type],
        mask: Optional[np.ndarray] = None,
        other: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        dtype = type if isinstance(type, np.dtype) else numpy_dtype(type)
        self._moves(mask)
        return self.memory.load(self, self.op.name, addresses, dtype, mask, other)

    def store_global(
        self, addresses: np.ndarray, values: np.ndarray, mask: Optional[np.ndarray] = None
    ) -> None:
        self._moves(mask)
        self.memory.store(self, self.op.name, addresses, values, mask)

    def _moves(self, mask: Optional[np.ndarray]) -> None:
        flight = self.agent.flight if self.agent is not None else None
        if flight is not None and (mask is None or flight.barrier is not None or np.any(mask)):
            flight.moved = True

    def atomic_global(
        self,
        kind: str,
        addresses: np.ndarray,
        values: np.ndarray,
        mask: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        """Apply one read-modify-write per element, lower programs first; return the old values."""
        update, in_place = RMW[kind]
        if kind == "fadd" and values.dtype.char in "efd":
            in_place = np.add
        if in_place is not None and (is_used(self.op) or self.op.attrs.get("effects")):
            in_place = None  # the op, or text whose effects are not known, uses the old values
        shape = np.broadcast_shapes(addresses.shape[1:], values.shape[1:])
        addresses = np.broadcast_to(addresses, (self.programs, *shape))
        name = f"atomic_{kind}"
        return self.memory.atomic(
            self, name, addresses, mask, values.dtype, update, (values,), in_place
        )

    def refuse_before(
        self, argument: str, place: Sequence[np.ndarray], message: str, remedy: str
    ) -> None:
        not_before(self, argument, place, message, remedy)

    def compare_and_swap(
        self,
        addresses: np.ndarray,
        compare: np.ndarray,
        values: np.ndarray,
        mask: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        """Put `values` where memory holds `compare`; return the old values."""

        def update(old: np.ndarray, compare: np.ndarray, value: np.ndarray) -> np.ndarray:
            return np.where(old == compare, value, old)

        return self.memory.atomic(
            self, "atomic_cas", addresses, mask, values.dtype, update, (compare, values)
        )

    def load_shared(
        self, view: SharedView, mask: Optional[np.ndarray] = None, copied: bool = False
    ) -> np.ndarray:
        if self.agent is not None or self.batch.blocks is not None:
            self.touch_shared("read", view, mask)
        if view.buffer.unwritten is not None:
            missing = view.missing(self.rows)
            initialised(
                self,
                self.op.called,
                view.buffer,
                missing if mask is None else missing & mask,
                copied,
            )
        return view.load(self.rows)

    def touch_shared(self, kind: str, view: SharedView, mask: Optional[np.ndarray] = None) -> None:
        """Tell race detection of an access."""
        view.reach()
        tracking = self.machine.tracking
        if tracking is not None and self.agent is not None:
            tracking.shared(self, kind, view, mask)
            if self.machine.lifetimes is not None:
                self.machine.lifetimes.touched(self, view)
        if self.batch.blocks is not None:
            meet(self, self.batch.blocks, kind, view)

    def allocate_buffer(self, type: MemDescType, value: Optional[np.ndarray] = None) -> SharedView:
        """Return a new buffer of a recorded type, holding `value` if one is given."""
        buffer = self.machine.allocate(self, SharedView.bytes_needed(type))
        view = SharedView.allocated(buffer, type, self.op)
        if value is not None:
            self.store_shared(view, value)
        return view

    def slice_buffer(
        self, view: SharedView, type: MemDescType, offsets: Sequence[int]
    ) -> SharedView:
        """Return the part of a view at compile-time offsets."""
        return view.part(type, offsets)

    def store_shared(
        self, view: SharedView, values: np.ndarray, mask: Optional[np.ndarray] = None
    ) -> None:
        self._store_shared(view, values, mask)
        if in_tensor_memory(view.type):
            for distance in copies_of(view.type.layout, view.type.shape, view.buffer.pitch):
                base = view.base + distance
                copy = SharedView(view.buffer, view.type, base, view.table, view.outside)
                self._store_shared(copy, values, mask)

    def _store_shared(
        self, view: SharedView, values: np.ndarray, mask: Optional[np.ndarray] = None
    ) -> None:
        if self.agent is not None or self.batch.blocks is not None:
            self.touch_shared("write", view, mask)
        if self.agent is not None:
            if self.agent.flight is not None and not view.buffer.pitch:
                self.agent.flight.filled = True
        if view.buffer.barriers is not None:
            view.buffer.barriers.spared(view, self.rows)
        self.memory.version += 1
        view.store(self.rows, values, mask)
        if view.buffer.unwritten is not None:
            view.written(self.rows, mask)

    def pointee(self, operand: int) -> np.dtype:
        """Return the element type behind the pointers of the op's operand."""
        element = list(self.op.operands())[operand].type.element
        assert isinstance(element, PointerType)
        return numpy_dtype(element.pointee)

    def operand_types(self) -> list[Type]:
        return [v.type for v in self.op.operands()]

    def result_dtype(self, index: int = 0) -> np.dtype:
        return numpy_dtype(self.op.results[index].type)

    def dot(
        self, a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any = None
    ) -> np.ndarray:
        return matmul(a, b, acc, precision)

    # Asynchronous work: issued to a queue, bundled into groups, waited for by count.

    def active(self) -> Agent:
        """Return this task as an agent; from the first call on, accesses of its program are watched."""
        if self.agent is None:
            if self.batch.agents is None:
                self.batch.agents = Agents(self.batch.count)
            self.agent = self.batch.agents.first(self.name)
        return self.agent

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
            self.batch.queues.append(queue)
        return queue

    def issue(
        self,
        queue: str,
        perform: Callable[[], Any],
        signal: Optional[Callable[[], Any]] = None,
        *,
        barrier: Optional[SharedView] = None,
        after: bool = False,
        proxy: str = GENERIC,
        read: Optional[Callable[[], Any]] = None,
        where: Optional[np.ndarray] = None,
        fills: Optional[Promise] = None,
        remote: bool = False,
    ) -> None:
        """Start work: `perform()` moves the data, then `signal()` tells whoever waits."""
        flight = self.machine.flights.issue(
            self, queue, perform, signal, barrier, after, proxy, read, where, remote
        )
        if fills is not None and flight is not None:
            fills.flights = (flight,)

    @staticmethod
    def select(value: Any, where: Any) -> Any:
        """Return an operand of those programs for which `where` holds."""
        if where is None or value is None:
            return value
        live = np.asarray(where).reshape(-1)
        return value if live.size == 1 or live.all() else select(value, np.flatnonzero(live))

    def promise(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return a result of the op, (programs, *shape), that work in flight fills."""
        return promise((self.programs, *shape), dtype)

    def settled(self, value: np.ndarray) -> np.ndarray:
        """Return the elements of a promise, if the work is known to be over; else the promise."""
        return settled(value)

    def commit(self, queue: str) -> None:
        """Close the current group of a queue."""
        self.machine.flights.commit(self, queue)

    def wait_groups(self, queue: str, pending: int, reads: bool = False) -> None:
        """Until at most `pending` of the closed groups are unfinished."""
        self.machine.flights.wait_groups(self, queue, pending, reads)

    def fence(self) -> None:
        """Make the knowledge of this task visible to the asynchronous proxies."""
        if self.agent is not None:
            self.agent.fence()
            self.history.fenced()

    def implied_fence(
        self,
        buffers: Sequence[Any],
        known: Sequence[str],
        writes: bool = False,
        newer: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Add the fence that the compiler adds before an op, if it knows that one is missing; a portable op
        asks for it all the same."""
        if self.portable:
            return
        tracking = self.machine.tracking
        views = [b for b in buffers if isinstance(b, SharedView) and not b.buffer.pitch]
        earlier = missing_fence(tracking, self.history, self.agent, views, known, writes)
        if earlier is None:
            return
        always = [whose for whose in known if whose not in (newer or {})]
        if newer and self.machine.settings.fences != "ignore":
            if not missing_fence(tracking, self.history, self.agent, views, always, writes):
                adds = [
                    releases
                    for whose, releases in newer.items()
                    if missing_fence(tracking, self.history, self.agent, views, [whose], writes)
                ]
                report_added_fence(self, earlier, adds[0] if adds else "a newer Triton")
        self.fence()

    # Barriers in shared memory.

    def _barrier(
        self, view: SharedView, where: Optional[np.ndarray] = None
    ) -> tuple[Barriers, Places]:
        view.reach(where)
        buffer = view.buffer
        if buffer.barriers is None:
            strict = self.machine.settings.barriers
            buffer.barriers = Barriers(buffer.data.shape[0], buffer.size, strict, buffer.name)
            buffer.barriers.remedy = buffer.remedy
            self.batch.barriers.append(buffer.barriers)
            if self.batch.blocks is not None:
                buffer.barriers.leads = leaders(view.type.layout, self.batch.blocks.count)
        slot = (view.base + int(view.table.min())) // 8
        return buffer.barriers, (self.rows.index, np.broadcast_to(slot, self.rows.count))

    def _where(self, places: Places, where: Optional[np.ndarray]) -> Optional[Places]:
        """Only the programs for which `where` (a predicate per program) holds; None for none."""
        if where is None:
            return places
        live = np.broadcast_to(np.asarray(where).reshape(-1), places[0].shape)
        if live.all():
            return places
        return (places[0][live], places[1][live]) if live.any() else None

    def barrier_init(self, view: SharedView, count: int) -> None:
        barriers, places = self._barrier(view)
        earlier = view.buffer.earlier
        if earlier is not None and earlier.barriers is not None:
            earlier.barriers.unused(places)  # the same memory, in the last round of a loop
        barriers.others.add(self.op.name)
        self._told("other", view, barriers, places)
        barriers.init(places, int(count))
        if getattr(view.type.layout, "cga_layout", None):
            self.batch.unannounced[view.buffer] = False

    def barrier_invalidate(self, view: SharedView) -> None:
        barriers, places = self._barrier(view)
        barriers.others.add(self.op.name)
        if self.agent is not None:
            self.machine.flights.last_signals(view, self.agent)
        self._told("other", view, barriers, places)
        barriers.invalidate(places)

    def barrier_arrive(
        self, view: SharedView, count: int = 1, where: Optional[np.ndarray] = None,
        everywhere: bool = False,
    ) -> None:  # fmt: skip
        barriers, places = self._barrier(view, where)
        live = self._where(places, where)
        if live is not None:
            self.active()
            self._told("arrive", view, barriers, live)
            barriers.arrive(live, int(count), self, everywhere)
            self._phase_flipped(view, barriers, live)
            self._released()

    def barrier_raise(self, view: SharedView, count: int) -> None:
        barriers, places = self._barrier(view)
        self._told("other", view, barriers, places)
        barriers.raised(places, int(count))

    def barrier_expect(
        self, view: SharedView, size: int, where: Optional[np.ndarray] = None
    ) -> None:
        barriers, places = self._barrier(view, where)
        live = self._where(places, where)
        if live is not None:
            self._told("expect", view, barriers, live)
            barriers.expect(live, int(size), self)

    def barrier_complete(
        self, view: SharedView, size: int, where: Optional[np.ndarray] = None
    ) -> None:
        barriers, places = self._barrier(view, where)
        live = self._where(places, where)
        if live is not None:
            self.active()
            self._told("bytes", view, barriers, live)
            barriers.complete(live, int(size), self)
            self._phase_flipped(view, barriers, live)
            self._released()

    def _told(
        self, kind: str, view: SharedView, barriers: Barriers, places: Places, parity: int = 0
    ) -> None:
        guided = self.machine.guided
        if guided is not None:
            guided.barrier(self, kind, view.buffer, barriers, places, parity & 1)

    def _phase_flipped(self, view: SharedView, barriers: Barriers, places: Places) -> None:
        if self.machine.guided is not None:
            self.machine.guided.phase_flipped(view.buffer, barriers, places)

    def _released(self) -> None:
        # Work in flight has one clock: it is over when it signals.
        if self.agent is not None and self.agent.flight is None:
            self.agent.tick()

    def barrier_remote(self, view: SharedView) -> None:
        """Other blocks of the cluster signal at this barrier."""
        if self.machine.settings.barriers and view.buffer in self.batch.unannounced:
            raise BarrierError(
                "a block of the cluster may signal at this barrier before it is initialized",
                report="barrier.uninitialised",
                remedy="After the initialization and before this all blocks pass a cluster barrier "
                "(a relaxed one after a fence for the initialization).",
            )

    def cluster_release(self) -> None:
        """Publish the initializations so far to tasks that pass a cluster barrier after this."""
        self.batch.unannounced = dict.fromkeys(self.batch.unannounced, True)
        if self.batch.blocks is not None:
            self.batch.blocks.release()

    def cluster_acquire(self) -> None:
        """Let all blocks acquire the earlier releases: all have come."""
        left = self.batch.unannounced
        self.batch.unannounced = {b: False for b, released in left.items() if not released}
        if self.batch.blocks is not None:
            self.batch.blocks.acquire()

    def barrier_phase(self, view: SharedView) -> np.ndarray:
        """Return the parity of the phase each program's barrier is in, int32 (programs,)."""
        barriers, places = self._barrier(view)
        self._told("other", view, barriers, places)
        return (barriers.phase[places] & 1).astype(np.int32)

    def barrier_wait(
        self, view: SharedView, parity: np.ndarray, where: Optional[np.ndarray] = None
    ) -> Turns[None]:
        """`yield from` this: goes on once the phase with this parity has completed."""
        barriers, places = self._barrier(view, where)
        live = self._where(places, where)
        if live is None:
            return
        barriers.check(live, "wait")
        parity = np.broadcast_to(np.asarray(parity).reshape(-1).astype(np.int64), places[0].shape)
        if live is not places:
            parity = parity[np.isin(places[0], live[0])]

        def ready() -> bool:
            return bool(barriers.passed(live, parity).all())

        def scene() -> dict[str, Any]:
            late = ~barriers.passed(live, parity)
            first = int(np.argmax(late))
            row, slot = int(live[0][first]), int(live[1][first])
            return barriers.scene(self, view.buffer, row, slot, int(parity[first]))

        def describe() -> str:
            return in_words(scene())

        if not ready():
            self._told("blocked", view, barriers, live, int(parity[0]))
            yield Wait(ready, describe, self.op.loc, buffer=view.buffer, scene=scene)
        self._told("pass", view, barriers, live, int(parity[0]))
        barriers.waited[int(live[1][0]), self.name] = self.op.loc.line, int(parity[0]) & 1
        barriers.acquire(live, self)

    def blocked(self, ready: Callable[[], bool], describe: str) -> Wait:
        """`yield` this: goes on once `ready()`."""
        return Wait(ready, lambda: describe, self.op.loc)
