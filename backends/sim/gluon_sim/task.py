"""What runs: a thread of control over a batch of programs, its values, and what models ask of it.

Every value carries a leading axis, one entry per program of the batch, or 1 where all programs
share it; every further axis has the tensor's extent, or 1 where the value repeats along it. So
one NumPy call runs one op for the whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError

from .agents import GENERIC, Agent, Agents
from .checks import initialised
from .compile import CompiledBlock, CompiledFunction, Slot, Step
from .errors import BarrierError, SimulatorError, in_library, span_of
from .flight import Queue
from .memory import GlobalMemory
from .program import Op
from .promise import Promise, promise, settled
from .shared import SharedView, derived
from .sync import Barriers, Wait, in_words
from .tensor_memory import BufferName, copies_of, in_tensor_memory, pitch_of
from .threads import passive

if TYPE_CHECKING:
    from .machine import Batch, Machine

__all__ = ["Frame", "Rows", "Task", "merge", "select"]


class Parted(Exception):
    """Programs part ways that were to stay together."""


class Rows:
    """Which programs of the batch run together: sorted positions.

    Attributes:
        together: whether none of them may part from the others.
    """

    __slots__ = ("index", "count", "whole", "together")

    def __init__(self, index: np.ndarray, whole: bool = False, together: bool = False):
        self.index = index
        self.count = len(index)
        self.whole = whole
        self.together = together

    def pick(self, positions: np.ndarray) -> "Rows":
        if self.together:
            raise Parted
        return Rows(self.index[positions])

    def where(self, mask: Any) -> "Rows":
        """Those for which a boolean per program holds."""
        live = np.broadcast_to(np.asarray(mask).reshape(-1), self.count)
        return self if live.all() else Rows(self.index[live])


def select(value: Any, positions: np.ndarray) -> Any:
    """The value for some of the programs it was made for."""
    if isinstance(value, np.ndarray):
        if value.shape[0] == 1:
            return value
        return (value.landed() if isinstance(value, Promise) else value)[positions]
    if hasattr(value, "select"):
        return value.select(positions)
    return value


def merge(parts: Sequence[tuple[np.ndarray, Any]], count: int) -> Any:
    """One value from values for disjoint positions that together are all `count`."""
    first = parts[0][1]
    if len(parts) == 1:
        return first
    if isinstance(first, np.ndarray):
        shape = np.broadcast_shapes(*(v.shape[1:] for _, v in parts))
        out = np.zeros((count, *shape), first.dtype)
        for positions, value in parts:
            out[positions] = value.landed() if isinstance(value, Promise) else value
        return out
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


class Task:
    """One thread of control over a batch: the kernel's own, or a partition's.

    Handlers and reference models get it as their first argument; see `gluon_core.reference`.
    """

    def __init__(self, machine: "Machine", batch: "Batch", name: str):
        self.machine = machine
        self.batch = batch
        self.name = name
        self.frame: Frame = None  # type: ignore[assignment]
        self.op: Op = None  # type: ignore[assignment]
        self.agent: Optional[Agent] = None  # only once there is somebody else in the program
        self.queues: dict[str, Queue] = {}
        self.num_warps = machine.num_warps
        # When its threads last waited for each other, for those who watch threads.
        self.since = machine.tracking.tick() if machine.tracking is not None else 0

    # ---- what models ask ------------------------------------------------------------------

    @property
    def memory(self) -> GlobalMemory:
        return self.machine.memory

    @property
    def rows(self) -> Rows:
        return self.frame.rows

    @property
    def programs(self) -> int:
        """How many programs run together: the extent of the leading axis."""
        return self.frame.rows.count

    @property
    def target(self) -> Any:
        return self.machine.target

    def program_id(self, position: int) -> tuple[int, int, int]:
        """The program id (x, y, z) behind a position of the leading axis."""
        row = self.frame.rows.index[position if self.frame.rows.count > 1 else 0]
        x, y, z = self.batch.ids
        return int(x[row]), int(y[row]), int(z[row])

    def claim(self) -> Optional[tuple[int, int, int]]:
        """Take a program that has not started; None where none is left."""
        return self.machine.claim()

    def full(self, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """A value at its full extent, (programs, *shape), as a read-only view."""
        return np.broadcast_to(value, (self.programs, *shape))

    def load_global(self, addresses: Any, type: Any, mask: Any = None, other: Any = None) -> Any:
        from .dtypes import numpy_dtype

        dtype = type if isinstance(type, np.dtype) else numpy_dtype(type)
        self._moves(mask)
        return self.memory.load(self, self.op.name, addresses, dtype, mask, other)

    def store_global(self, addresses: Any, values: Any, mask: Any = None) -> None:
        self._moves(mask)
        self.memory.store(self, self.op.name, addresses, values, mask)

    def _moves(self, mask: Any) -> None:
        flight = self.agent.flight if self.agent is not None else None
        if flight is not None and (mask is None or np.any(mask)):
            flight.moved = True

    def atomic_global(self, kind: Any, addresses: Any, values: Any, mask: Any = None) -> Any:
        from .ops import atomic_rmw

        return atomic_rmw(self, self.op, kind, addresses, values, mask)

    def load_shared(self, view: SharedView, mask: Any = None) -> np.ndarray:
        if self.agent is not None:
            self.touch_shared("read", view, mask)
        if view.buffer.unwritten is not None:
            missing = view.missing(self.rows)
            initialised(
                self, self.op.name, view.buffer, missing if mask is None else missing & mask
            )
        return view.load(self.rows)

    def touch_shared(self, kind: str, view: SharedView, mask: Any = None) -> None:
        """Tell race detection of an access."""
        view.reach()
        tracking = self.machine.tracking
        if tracking is not None and self.agent is not None:
            tracking.shared(self, kind, view, mask)

    def allocate_buffer(self, type: Any, value: Any = None) -> SharedView:
        """A new buffer of a recorded type, holding `value` if one is given."""
        buffer = self.machine.allocate(self, SharedView.bytes_needed(type))
        if in_tensor_memory(type):
            buffer.pitch = pitch_of(type)
            line = self.op.loc.line
            buffer.name = BufferName(f"the tensor memory of line {line}", buffer.pitch)
        view = SharedView.whole(buffer, type)
        if value is not None:
            self.store_shared(view, value)
        return view

    def slice_buffer(self, view: SharedView, type: Any, offsets: Sequence[int]) -> SharedView:
        """The part of a view at compile-time offsets."""
        shape = tuple(type.shape)
        return view.with_type(type, derived(view.table, "slice", tuple(offsets), shape))

    def store_shared(self, view: SharedView, values: Any, mask: Any = None) -> None:
        self._store_shared(view, values, mask)
        if in_tensor_memory(view.type):
            for distance in copies_of(view.type.layout, view.type.shape, view.buffer.pitch):
                base = view.base + distance
                copy = SharedView(view.buffer, view.type, base, view.table, view.outside)
                self._store_shared(copy, values, mask)

    def _store_shared(self, view: SharedView, values: Any, mask: Any = None) -> None:
        if self.agent is not None:
            self.touch_shared("write", view, mask)
        if view.buffer.barriers is not None:
            view.buffer.barriers.spared(view, self.rows)
        self.memory.version += 1
        view.store(self.rows, values, mask)
        if view.buffer.unwritten is not None:
            view.written(self.rows, mask)

    def pointee(self, operand: int) -> np.dtype:
        """The element type behind the pointers of the op's operand."""
        from .dtypes import numpy_dtype

        return numpy_dtype(list(self.op.operands())[operand].type.element.pointee)  # type: ignore[attr-defined]

    def operand_types(self) -> list:
        return [v.type for v in self.op.operands()]

    def result_dtype(self, index: int = 0) -> np.dtype:
        from .dtypes import numpy_dtype

        return numpy_dtype(self.op.results[index].type)

    def dot(self, a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any = None) -> Any:
        from .ops import matmul

        return matmul(self, a, b, acc, precision)

    # Asynchronous work: issued to a queue, bundled into groups, waited for by count.

    def active(self) -> Agent:
        """This task as an agent; from the first call on, accesses of its program are watched."""
        if self.agent is None:
            if self.batch.agents is None:
                self.batch.agents = Agents(self.batch.count)
            self.agent = self.batch.agents.first(self.name)
        return self.agent

    def queue(self, name: str) -> Queue:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = Queue(name)
            self.batch.queues.append(found)
        return found

    def issue(
        self,
        queue: str,
        perform: Any,
        signal: Any = None,
        *,
        barrier: Any = None,
        after: bool = False,
        proxy: str = GENERIC,
        read: Any = None,
        where: Any = None,
        fills: Any = None,
    ) -> None:
        """Start work: `perform()` moves the data, then `signal()` tells whoever waits."""
        flight = self.machine.flights.issue(
            self, queue, perform, signal, barrier, after, proxy, read, where
        )
        if fills is not None:
            fills.flight = flight

    def promise(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """A result of the op, (programs, *shape), that work in flight fills."""
        return promise((self.programs, *shape), dtype)

    def settled(self, value: np.ndarray) -> np.ndarray:
        """The elements of a promise, if the work is known to be over; else the promise."""
        return settled(value)

    def commit(self, queue: str) -> None:
        """Close the current group of a queue."""
        self.machine.flights.commit(self, queue)

    def wait_groups(self, queue: str, pending: int, reads: bool = False) -> None:
        """Until at most `pending` of the closed groups are unfinished."""
        self.machine.flights.wait_groups(self, queue, pending, reads)

    def fence(self) -> None:
        """What this task knows becomes visible to the asynchronous proxies."""
        if self.agent is not None:
            self.agent.fence()

    # Barriers in shared memory.

    def _barrier(self, view: SharedView, where: Any = None) -> tuple[Barriers, tuple]:
        view.reach(where)
        buffer = view.buffer
        if buffer.barriers is None:
            strict = self.machine.settings.barriers
            buffer.barriers = Barriers(buffer.data.shape[0], buffer.size, strict, buffer.name)
        slot = (view.base + int(view.table.min())) // 8
        return buffer.barriers, (self.rows.index, np.broadcast_to(slot, self.rows.count))

    def _where(self, at: tuple, where: Any) -> Optional[tuple]:
        """Only the programs for which `where` (a predicate per program) holds; None for none."""
        if where is None:
            return at
        live = np.broadcast_to(np.asarray(where).reshape(-1), at[0].shape)
        if live.all():
            return at
        return (at[0][live], at[1][live]) if live.any() else None

    def barrier_init(self, view: SharedView, count: int) -> None:
        barriers, at = self._barrier(view)
        earlier = view.buffer.earlier
        if earlier is not None and earlier.barriers is not None:
            earlier.barriers.unused(at)  # the same memory, in the last round of a loop
        barriers.others.add(self.op.name)
        barriers.init(at, int(count))
        if getattr(view.type.layout, "cga_layout", None):
            self.batch.unannounced[view.buffer] = False

    def barrier_invalidate(self, view: SharedView) -> None:
        barriers, at = self._barrier(view)
        barriers.others.add(self.op.name)
        if self.agent is not None:
            self.machine.flights.last_signals(view, self.agent)
        barriers.invalidate(at)

    def barrier_arrive(self, view: SharedView, count: int = 1, where: Any = None) -> None:
        barriers, at = self._barrier(view, where)
        live = self._where(at, where)
        if live is not None:
            self.active()
            barriers.arrive(live, int(count), self)
            self._released()

    def barrier_raise(self, view: SharedView, count: int) -> None:
        barriers, at = self._barrier(view)
        barriers.raised(at, int(count))

    def barrier_expect(self, view: SharedView, size: int, where: Any = None) -> None:
        barriers, at = self._barrier(view, where)
        live = self._where(at, where)
        if live is not None:
            barriers.expect(live, int(size), self)

    def barrier_complete(self, view: SharedView, size: int, where: Any = None) -> None:
        barriers, at = self._barrier(view, where)
        live = self._where(at, where)
        if live is not None:
            self.active()
            barriers.complete(live, int(size), self)
            self._released()

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
        """What was initialized so far is known to whoever passes a cluster barrier after this."""
        self.batch.unannounced = dict.fromkeys(self.batch.unannounced, True)

    def cluster_acquire(self) -> None:
        """All blocks have come, and know what was released before."""
        left = self.batch.unannounced
        self.batch.unannounced = {b: False for b, released in left.items() if not released}

    def barrier_phase(self, view: SharedView) -> np.ndarray:
        """The parity of the phase each program's barrier is in, int32 (programs,)."""
        barriers, at = self._barrier(view)
        return (barriers.phase[at] & 1).astype(np.int32)

    def barrier_wait(self, view: SharedView, parity: Any, where: Any = None) -> Iterator[Wait]:
        """`yield from` this: goes on once the phase with this parity has completed."""
        barriers, at = self._barrier(view, where)
        live = self._where(at, where)
        if live is None:
            return
        barriers.check(live, "wait")
        parity = np.broadcast_to(np.asarray(parity).reshape(-1).astype(np.int64), at[0].shape)
        if live is not at:
            parity = parity[np.isin(at[0], live[0])]

        def ready() -> bool:
            return bool(barriers.passed(live, parity).all())

        def scene() -> dict:
            late = ~barriers.passed(live, parity)
            first = int(np.argmax(late))
            row, slot = int(live[0][first]), int(live[1][first])
            return barriers.scene(self, view.buffer, row, slot, int(parity[first]))

        def describe() -> str:
            return in_words(self, view.buffer, scene())

        if not ready():
            yield Wait(ready, describe, self.op.loc, buffer=view.buffer, scene=scene)
        barriers.acquire(live, self)

    def blocked(self, ready: Any, describe: str) -> Wait:
        """`yield` this: goes on once `ready()`."""
        return Wait(ready, lambda: describe, self.op.loc)

    # ---- stepping -------------------------------------------------------------------------

    def call(self, function: CompiledFunction, args: Sequence[Any], rows: Rows) -> Iterator[Wait]:
        """Run a function; its results are the generator's value."""
        outer = self.frame
        frame = Frame(function, rows)
        self.frame = frame
        try:
            entry = function.blocks[0]
            if len(function.blocks) == 1:
                for slot, arg in zip(entry.arguments, args):
                    frame.put(slot, arg)
                step = yield from self.block(entry)
                assert step is not None
                return [frame.resolve(a) for a in step.plan[0]]
            return (yield from self._graph(function, frame, args))
        finally:
            self.frame = outer

    def _graph(self, function: CompiledFunction, frame: Frame, args: Sequence[Any]) -> Iterator:
        """Blocks joined by branches, which only ever lead forward: run them in that order."""
        rows = frame.rows
        arrivals: dict[int, list] = {0: [(np.arange(rows.count), list(args))]}
        returns: list[tuple[np.ndarray, list]] = []
        for order, block in enumerate(function.blocks):
            incoming = arrivals.pop(order, None)
            if not incoming:
                continue
            positions = np.sort(np.concatenate([p for p, _ in incoming]))
            if len(positions) == rows.count:
                frame.rows = rows
            else:
                frame.rows = rows.pick(positions)
            for i, slot in enumerate(block.arguments):
                parts = [(np.searchsorted(positions, p), a[i]) for p, a in incoming]
                frame.put(slot, merge(parts, len(positions)))
            step = yield from self.block(block)
            name = step.op.name
            if name == "ret":
                returns.append((positions, [frame.resolve(a) for a in step.plan[0]]))
                continue
            if name == "branch":
                values = [frame.resolve(a) for a in step.plan[1]]
                arrivals.setdefault(step.plan[0].order, []).append((positions, values))
                continue
            condition = np.broadcast_to(frame.resolve(step.plan[0]), len(positions))
            for target, live in ((step.plan[1], condition), (step.plan[2], ~condition)):
                if live.any():
                    arrivals.setdefault(target.order, []).append((positions[live], []))
        frame.rows = rows
        width = len(returns[0][1])
        return [merge([(p, v[i]) for p, v in returns], rows.count) for i in range(width)]

    def block(self, block: CompiledBlock) -> Iterator[Wait]:
        """Run a block; its terminator's step is the generator's value."""
        frame = self.frame
        step: Optional[Step] = None
        hurried = self.machine.hurried
        tracking = self.machine.tracking
        threads = tracking is not None and tracking.threads
        try:
            for step in block.steps:
                self.op = step.op
                if hurried and not step.simple:
                    yield from self.machine.interrupt(self)
                if step.simple:
                    value = step.run(*[frame.get(slot) for slot in step.plan])
                    frame.put(step.outs[0], value)
                elif step.control:
                    yield from step.run(self, step)
                    if step.op.name in _LEAVE:
                        return step
                else:
                    named = {k: frame.resolve(v) for k, v in step.named.items()}
                    args = [frame.resolve(a) for a in step.plan]
                    value = step.run(self, *args, **named)
                    if hasattr(value, "send"):
                        value = yield from value
                    outs = step.outs
                    if len(outs) == 1:
                        frame.put(outs[0], value[0] if isinstance(value, (tuple, list)) else value)
                    elif outs:
                        for slot, item in zip(outs, value):
                            frame.put(slot, item)
                if threads and not step.simple and not passive(step.op.name):
                    self.since = tracking.tick()  # type: ignore[union-attr]
                for slot in step.kills:
                    frame.values[slot] = None
        except GluonError as error:
            # A mistake inside a library function is shown where the kernel calls it.
            if step is not None and (error.span is None or in_library(error.span.file)):
                error.span = span_of(step.op.loc) or error.span
            raise
        except KeyboardInterrupt as interrupt:
            span = getattr(interrupt, "span", None)
            if step is not None and (span is None or in_library(span.file)):
                interrupt.span = span_of(step.op.loc)  # type: ignore[attr-defined]
            raise
        except Exception as error:
            assert step is not None
            if isinstance(error, MemoryError):
                raise SimulatorError(
                    f"there is not enough memory on this machine for `{step.op.name}`",
                    remedy="Use fewer programs or smaller tiles.",
                    span=span_of(step.op.loc),
                ) from error
            raise SimulatorError(
                f"the simulator failed in `{step.op.name}`: {type(error).__name__}: {error}",
                span=span_of(step.op.loc),
            ) from error
        return None

    def pure(self, function: CompiledBlock, args: Sequence[Any], count: int) -> list:
        """Run a combine region on `count` elements at once; it touches nothing outside itself."""
        frame, op = self.frame, self.op
        size = len(frame.values)
        inner = Frame.__new__(Frame)
        inner.rows = Rows(np.arange(count), whole=True)
        inner.values = list(frame.values)
        inner.homes = [frame.rows] * size
        for slot, arg in zip(function.arguments, args):
            inner.values[slot] = arg
            inner.homes[slot] = inner.rows
        self.frame = inner
        try:
            run = self.block(function)
            while True:
                try:
                    next(run)
                except StopIteration as stop:
                    step = stop.value
                    break
            assert step is not None
            return [inner.resolve(a) for a in step.plan[0]]
        finally:
            self.frame, self.op = frame, op


_LEAVE = frozenset(
    "ret branch cond_branch yield_op condition_op reduce_ret scan_ret map_elementwise_ret "
    "warp_yield warp_return".split()
)
