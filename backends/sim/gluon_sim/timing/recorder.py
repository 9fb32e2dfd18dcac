"""Note the streams of a sample of programs while the simulator executes them."""

from __future__ import annotations

from typing import Any, Optional, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from gluon_core.plugin.timing import Timing, Work
from gluon_sim.executor.compile import Step
from gluon_sim.executor.task import Task
from gluon_sim.memory.shared import SharedView
from gluon_sim.sanitizer.access import SECTOR, global_cost, holders
from gluon_sim.timing.costs import FREE, Prices, elements, facts_of, pure
from gluon_sim.timing.stream import (
    Arrive,
    Block,
    Commit,
    Compute,
    Event,
    Expect,
    Fork,
    Init,
    Join,
    Mark,
    Need,
    Start,
    Stream,
    Sync,
    WaitBarrier,
    WaitGroups,
    Where,
)
from gluon_sim.tools.watcher import Launch, Watcher
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op, Value
from gluon_sim.tracing.types import PointerType, TensorType

__all__ = ["Enough", "Recorder"]

_READS = ("load", "masked_load", "atomic_load", "atomic_poll")
_WRITES = ("store", "masked_store", "atomic_store")
_ATOMICS = ("atomic_rmw", "atomic_cas")
_STARTS = 8.0  # instructions of an op that starts, waits or signals something
_VIEWS = frozenset("splat broadcast expand_dims reshape trans bitcast join split unsplat".split())


class Numbers:
    """Numbers of values: equal for values that are known to be equal."""

    LIMIT = 20_000

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Any, int]] = {}  # with the array, so that its id stays its own
        self._results: dict[Any, int] = {}
        self._next = 0

    def of(self, array: np.ndarray) -> int:
        known = self._by_id.get(id(array))
        if known is None:
            self._next += 1
            known = self._by_id[id(array)] = array, self._next
        return known[1]

    def same(self, key: Any, result: Any) -> bool:
        """Return True if `key` was computed before; `result` is then the same value."""
        if len(self._by_id) > self.LIMIT:
            self._by_id.clear()
            self._results.clear()
        number = self._results.get(key)
        if number is None:
            number = self._results[key] = self.of(result)
            return False
        self._by_id[id(result)] = result, number
        return True


class Enough(BaseException):
    """The limit of events is reached: the rest of the program is not needed."""


class Recorder(Watcher):
    """Collects the streams of the programs that run, one after the other.

    Args:
        limit: events of a program after which it is cut short; None for no limit.
    """

    def __init__(self, timing: Timing, limit: Optional[int] = None):
        self.timing = timing
        self.limit = limit
        self.blocks: list[Block] = []
        self._count = 0
        self._streams: WeakKeyDictionary[Task, Stream] = WeakKeyDictionary()
        self._forks: dict[str, Fork] = {}
        self._pending: dict[int, Start] = {}  # values that loads have not brought yet
        self._moves: dict[int, str] = {}  # by op: the request of one that touches memory at once
        self._issuing: set[int] = set()  # ops that leave memory to asynchronous work
        self._alike: dict[int, list[Value]] = {}
        self._flights: dict[int, Start] = {}  # by token
        self._landed: dict[int, Start] = {}  # by op: the work whose signals come now
        self._traffic: dict[int, tuple[int, Any]] = {}
        self._seen: set[tuple[int, int, bool]] = set()
        self._numbers: WeakKeyDictionary[Task, Numbers] = WeakKeyDictionary()
        self._wheres: dict[tuple[str, int, str], Where] = {}
        self._kept: list[Any] = []
        self._requests: dict[int, tuple[int, int]] = {}
        self.prices: Prices

    # ---- launches and tasks ---------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        program = launch.program.program
        architecture = launch.target.architecture
        self.prices = Prices(self.timing, launch.target.warp_size, architecture.banks)
        ops = list(program.walk_ops())
        self.prices.learn(ops)
        for op in ops:
            self._carried(op)

    def start(self, program: tuple[int, int, int]) -> None:
        """Begin the block of the next program."""
        self.blocks.append(Block(program))
        self._count = 0
        self._forks = {}
        self._pending = {}
        self._seen = set()

    def _carried(self, op: Op) -> None:
        """Note which values a loop carries: a loaded one arrives under another name."""
        if op.name != "for":
            return
        body = op.regions[0].blocks[0]
        ends = [o for o in body.ops if o.name == "yield_op"]
        initial = [value for value in op.args[3] if isinstance(value, Value)]
        yielded = [v for v in ends[-1].args[0] if isinstance(v, Value)] if ends else []
        for i, argument in enumerate(body.arguments[1:]):
            sources = [group[i].resolve() for group in (initial, yielded) if i < len(group)]
            self._alike.setdefault(id(argument), []).extend(sources)
            if i < len(op.results):
                self._alike.setdefault(id(op.results[i]), []).extend(sources)

    def _stream(self, task: Task) -> Stream:
        stream = self._streams.get(task)
        if stream is None:
            stream = Stream(task.name, task.num_warps, task.first_warp)
            self._streams[task] = stream
            block = self.blocks[-1]
            block.streams.append(stream)
            _, of, parent = task.name.partition(" of ")
            if of and task.name.startswith("partition ") and parent in self._forks:
                self._forks[parent].children.append(stream)
            else:
                block.main = block.main or stream
        return stream

    def _emitted(self, task: Task, op: Op, instructions: float) -> None:
        """Count the instructions of an op in the code of a task, once."""
        key = (id(task), id(op), instructions > 0)
        if key not in self._seen:
            self._seen.add(key)
            self.blocks[-1].code += instructions

    def _put(self, task: Task, event: Event) -> None:
        self._stream(task).events.append(event)
        self._count += 1
        if self.limit is not None and self._count > self.limit:
            self.blocks[-1].cut = True
            raise Enough

    def _where(self, launch: Launch, task: Task, op: Op) -> Where:
        loc = launch.line(task, op)
        key = (op.called, loc.line, loc.file)
        where = self._wheres.get(key)
        if where is None:
            where = self._wheres[key] = Where(*key)
        return where

    def forks(self, launch: Launch, task: Task, step: Step) -> None:
        self._forks[task.name] = fork = Fork()
        self._put(task, fork)

    def joins(self, launch: Launch, task: Task, step: Step) -> None:
        self._put(task, Join(self._forks[task.name]))

    # ---- ops ------------------------------------------------------------------------------------------

    def before(self, launch: Launch, task: Task, step: Step) -> None:
        op = step.op
        if op.name not in FREE and not pure(op):
            self._emitted(task, op, _STARTS)
        if launch.in_region(task) and op.name not in ("reduce", "scan"):
            return
        if op.name == "scope":
            name, begins, line = op.args
            self._put(task, Mark(name, begins, line, launch.line(task, op).file))
            return
        self._needs(launch, task, op)
        if op.name in ("barrier", "cluster_barrier", "cluster_sync"):
            kind = "barrier" if op.name == "barrier" else "cluster"
            self._put(task, Sync(self._where(launch, task, op), kind))

    def _needs(self, launch: Launch, task: Task, op: Op) -> None:
        """Wait for loads whose values the op reads; views only pass them on."""
        if not self._pending:
            return
        for value in op.operands():
            start = self._loaded(value)
            if start is None:
                continue
            if op.name in _VIEWS and op.results:
                for result in op.results:
                    self._pending[id(result)] = start
                continue
            self._put(task, Need(start, self._where(launch, task, op)))
            for key in [k for k, other in self._pending.items() if other is start]:
                del self._pending[key]

    def _loaded(self, value: Value, depth: int = 3) -> Optional[Start]:
        start = self._pending.get(id(value))
        if start is None and depth:
            for source in self._alike.get(id(value), ()):
                start = start or self._loaded(source, depth - 1)
        return start

    def after(self, launch: Launch, task: Task, step: Step, args: Sequence[Any]) -> None:
        op = step.op
        name = op.name
        if launch.in_region(task) and name not in ("reduce", "scan"):
            return
        if name == "scope":
            return
        if name in _READS:
            mask = args[1] if name in ("masked_load", "atomic_load") else None
            start = self._access(launch, task, op, args[0], mask, "load")
            self._pending[id(op.results[0])] = start
        elif name in _WRITES:
            mask = args[2] if len(args) > 2 and isinstance(args[2], np.ndarray) else None
            self._access(launch, task, op, args[0], mask, "store")
        elif name in _ATOMICS:
            pointers = args[1] if name == "atomic_rmw" else args[0]
            mask = args[3] if name == "atomic_rmw" else None
            start = self._access(launch, task, op, pointers, mask, "store")
            start.unit, start.latency = "atomic", self.timing.latency["atomic"]
            if self.prices.uses.get(id(op.results[0])):
                self._pending[id(op.results[0])] = start
        elif name == "local_load":
            self._shared(launch, task, op, args[1], op.results[0].type, False)
        elif name == "local_store":
            self._shared(launch, task, op, args[0], list(op.operands())[1].type, True)
        elif name == "local_alloc" and any(True for _ in op.operands()):
            self._allocated(launch, task, op)
        elif name == "dot":
            self._worked(launch, task, op)
        elif id(op) in self._moves and id(op) in self._traffic:
            self._accessed(launch, task, op)
        else:
            self._computed(launch, task, op, args)
        self._landed.pop(id(op), None)

    def _computed(self, launch: Launch, task: Task, op: Op, args: Sequence[Any]) -> None:
        if pure(op) and self._known(launch, task, op, args):
            return
        price = self.prices.of(op, task.num_warps, self._where(launch, task, op))
        if price is not None:
            share = max(1.0, task.num_warps / self.timing.schedulers)
            self._emitted(task, op, price.issue / share)
            self._compute(task, price, self._where(launch, task, op))

    def _known(self, launch: Launch, task: Task, op: Op, args: Sequence[Any]) -> bool:
        """Return True if the task has computed the same of the same values: the compiler keeps that.

        So are common subexpressions, and loops' invariants from the second round on.
        """
        numbers = self._numbers.setdefault(task, Numbers())
        operands = tuple(
            numbers.of(arg) if isinstance(arg, np.ndarray) else repr(arg) for arg in args
        )
        return numbers.same((op.name, op.results[0].type, operands), launch.value)

    def _compute(self, task: Task, price: Compute, where: Where) -> None:
        """Add to the instructions of the same line in front, or begin others."""
        events = self._stream(task).events
        last = events[-1] if events else None
        if not (isinstance(last, Compute) and last.where.line == where.line):
            last = Compute(where)
            self._put(task, last)
        last.add(price)

    def _work(self, op: Op, task: Task) -> Optional[Work]:
        price = self.timing.works.get(op.name)
        return None if price is None else price(facts_of(op, task.num_warps))

    def _worked(self, launch: Launch, task: Task, op: Op) -> None:
        """Add an op that the matrix unit does while its warps wait."""
        where = self._where(launch, task, op)
        work = self._work(op, task)
        if work is None:
            held = 2.0
            for extent in op.results[0].type.dims:
                held *= extent
            a = next(op.operands()).type
            count = held / 2 * a.dims[-1] / (task.num_warps * task.target.warp_size)
            self._compute(
                task, self.prices.instructions(where, task.num_warps, [("fma", count)]), where
            )
            return
        start = Start(where, "matrix", busy=work.busy, latency=work.latency, issue=work.issue)
        self._put(task, start)
        self._pending[id(op.results[0])] = start

    # ---- memory ---------------------------------------------------------------------------------------

    def _access(
        self, launch: Launch, task: Task, op: Op, pointers: np.ndarray, mask: Optional[np.ndarray],
        unit: str,
    ) -> Start:  # fmt: skip
        type = next(v.type for v in op.operands() if isinstance(v.type.element, PointerType))
        element: Any = type.element
        size = numpy_dtype(element.pointee).itemsize
        shape = tuple(type.dims)
        count = elements(mask, shape)
        requests, sectors = self._asked(op, type, pointers, mask, size, unit == "store", shape)
        live = int(count) * size
        key = None
        if count:
            flat = pointers.reshape(-1)
            key = (int(flat[0]), int(flat[-1]), count)
        start = Start(
            self._where(launch, task, op), unit, bytes=max(live, sectors * SECTOR) if live else 0,
            writes=unit == "store", requests=requests, key=key,
        )  # fmt: skip
        self._put(task, start)
        return start

    def _accessed(self, launch: Launch, task: Task, op: Op) -> None:
        """Add a vendor's op that reads or writes global memory and does nothing else; its neighbours are taken to be contiguous."""
        size, key = self._traffic.pop(id(op))
        method = self._moves.pop(id(op))
        where, sectors = self._where(launch, task, op), -(-size // SECTOR)
        start = Start(
            where, "load" if method == "load_global" else "store", bytes=sectors * SECTOR, key=key
        )
        start.writes = method != "load_global"
        start.requests = -(-size // (16 * task.target.warp_size))
        if method == "atomic_global":
            start.unit, start.latency = "atomic", self.timing.latency["atomic"]
        self._put(task, start)
        if op.results:
            self._pending[id(op.results[0])] = start

    def _asked(
        self, op: Op, type: Any, pointers: np.ndarray, mask: Optional[np.ndarray], size: int,
        stores: bool, shape: tuple[int, ...],
    ) -> tuple[int, int]:  # fmt: skip
        """Return requests and sectors of an access; those of its first full execution hold for all."""
        full = mask is None or bool(np.all(mask))
        if full and id(op) in self._requests:
            return self._requests[id(op)]
        held = holders(type.layout, shape) if isinstance(type, TensorType) else None
        wide = np.broadcast_to(pointers, (1, *shape))
        live = None if mask is None else np.broadcast_to(
            np.asarray(mask).reshape(1, *([1] * (len(shape) + 1 - np.ndim(mask))), *np.shape(mask)[1:]),
            (1, *shape),
        )  # fmt: skip
        # Arrays of the host may start anywhere; on a device they start at multiples of 256 bytes.
        cost = global_cost(wide - int(wide.reshape(-1)[0]) % 256, live, size, held, stores)
        if full:
            self._requests[id(op)] = cost.requests, cost.sectors
        return cost.requests, cost.sectors

    def _shared(
        self, launch: Launch, task: Task, op: Op, view: Any, type: Any, stores: bool
    ) -> None:
        if not isinstance(view, SharedView) or view.type.space != "shared":
            return
        where = self._where(launch, task, op)
        price = self.prices.shared_access(where, task.num_warps, view, type, stores)
        if stores:
            self._compute(task, price, where)
            return
        price.chain += self.timing.latency["shared"]
        self._compute(task, price, where)

    def _allocated(self, launch: Launch, task: Task, op: Op) -> None:
        type: Any = op.results[0].type
        if type.space != "shared":
            return
        where = self._where(launch, task, op)
        size = numpy_dtype(type).itemsize
        for extent in type.dims:
            size *= extent
        price = Compute(where)
        price.issue = size / (16 * task.target.warp_size) / self.timing.schedulers
        price.pipes["shared"] = size / self.timing.shared_bytes
        self._compute(task, price, where)

    # ---- requests of models -----------------------------------------------------------------------------

    def event(self, launch: Launch, task: Task, op: Op, method: str, *details: Any) -> None:
        if method == "issue":
            self._issued(launch, task, op, *details)
        elif method == "performed":
            _, token = details[:2]
            start = self._flights.pop(id(token), None)
            if start is not None:
                size, key = self._traffic.pop(id(op), (0, None))
                start.bytes, start.key = size, key
                self._landed[id(op)] = start
        elif method in ("load_global", "store_global", "atomic_global"):
            self._moved(task, op, method, details)
        elif method == "commit":
            self._put(task, Commit(details[0]))
        elif method == "wait_groups":
            reads = bool(details[2]) if len(details) > 2 else False
            self._put(
                task, WaitGroups(self._where(launch, task, op), details[0], int(details[1]), reads)
            )
        elif method == "barrier_init":
            self._put(task, Init(self._place(details[0]), int(details[1])))
        elif method == "barrier_expect" and _live(details, 2):
            self._put(task, Expect(self._place(details[0]), int(details[1])))
        elif method in ("barrier_arrive", "barrier_complete") and _live(details, 2):
            self._signalled(launch, task, op, method, details)
        elif method == "barrier_wait" and _live(details, 2):
            parity = int(np.asarray(details[1]).reshape(-1)[0]) & 1
            self._put(
                task, WaitBarrier(self._where(launch, task, op), self._place(details[0]), parity)
            )
        elif method in ("load_shared", "store_shared") and id(op) not in self._traffic:
            self._traffic.setdefault(id(op), (0, None))

    def _issued(self, launch: Launch, task: Task, op: Op, queue: str, token: Any) -> None:
        where = self._where(launch, task, op)
        start = Start(where, "copy", queue)
        if queue in self.timing.matrix_queues:
            work = self._work(op, task)
            start.unit = "matrix"
            if work is not None:
                start.busy, start.latency, start.issue = work.busy, work.latency, work.issue
                start.alone = work.alone
        elif "store" in queue:
            start.writes = True
        elif queue in self.timing.thread_queues:
            start.unit = "load"
            start.issue = self._copied_by_threads(op, task)
        self._issuing.add(id(op))
        self._kept.append(token)  # its id stays its own
        self._flights[id(token)] = start
        self._traffic.pop(id(op), None)
        self._put(task, start)

    def _copied_by_threads(self, op: Op, task: Task) -> float:
        """Return the cycles in which threads issue a copy, 16 bytes each."""
        size = 1.0
        for value in op.operands():
            if isinstance(value.type, TensorType):
                for extent in value.type.dims:
                    size *= extent
                element: Any = value.type.element
                if isinstance(element, PointerType):
                    size *= numpy_dtype(element.pointee).itemsize
                break
        each = 16 * task.target.warp_size
        return float(size / each / min(task.num_warps, self.timing.schedulers))

    def _moved(self, task: Task, op: Op, method: str, details: Sequence[Any]) -> None:
        """Add up the global memory that the work which is performed now touches."""
        first = 1 if method == "atomic_global" else 0
        addresses, values = details[first], details[first + 1]
        mask = details[first + 2] if len(details) > first + 2 else None
        dtype = values if isinstance(values, np.dtype) else getattr(values, "dtype", None)
        size = dtype.itemsize if dtype is not None else numpy_dtype(values).itemsize
        shape = addresses.shape[1:]
        if mask is None:
            count = addresses.size
        else:
            count = int(np.count_nonzero(np.broadcast_to(mask, addresses.shape)))
        flat = addresses.reshape(-1)
        key = (int(flat[0]), int(flat[-1]), shape) if count else None
        before, _ = self._traffic.get(id(op), (0, None))
        self._traffic[id(op)] = before + count * size, key
        if id(op) not in self._issuing:
            self._moves[id(op)] = method

    def _signalled(
        self, launch: Launch, task: Task, op: Op, method: str, details: Sequence[Any]
    ) -> None:
        place = self._place(details[0])
        count = int(details[1]) if len(details) > 1 else 1
        landed = self._landed.get(id(op))
        if landed is not None:
            kind = "arrive" if method == "barrier_arrive" else "bytes"
            landed.signals.append((place, kind, count))
        else:
            self._put(task, Arrive(self._where(launch, task, op), place, count))

    def _place(self, view: SharedView) -> tuple[int, int]:
        self._kept.append(view.buffer)
        return id(view.buffer), int(view.base.flat[0]) + int(view.table.min())


def _live(details: Sequence[Any], index: int) -> bool:
    """Return True unless a predicate says that the request is not made."""
    where = details[index] if len(details) > index else None
    return where is None or isinstance(where, bool) or bool(np.any(where))
