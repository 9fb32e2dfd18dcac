"""The access history of one launch, for race detection."""

from __future__ import annotations

import threading
from typing import Any, Optional

import numpy as np

from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.layouts.dialect import follows
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.blocks import stays_within
from gluon_sim.sanitizer.copies import only_decide
from gluon_sim.sanitizer.epochs import Epochs
from gluon_sim.sanitizer.observed import Allocation, Machine, Memory
from gluon_sim.sanitizer.partition_order import PartitionOrder
from gluon_sim.sanitizer.program_order import ProgramOrder, order_of
from gluon_sim.sanitizer.races import (
    GlobalShadow,
    ShadowedBuffer,
    ShadowedView,
    SharedShadow,
    report_threads,
)
from gluon_sim.sanitizer.ranks import AcrossRanks
from gluon_sim.sanitizer.threads import ThreadShadow, by_others, passive
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.origins import Reached, Traffic, unanswered
from gluon_sim.tracing.uses import is_used

__all__ = ["Tracking"]

_LOADS = {"atomic_load": "poll", "atomic_poll": "poll"}


_PLAIN = frozenset("load store masked_load masked_store".split())


class Tracking:
    """Sees every access to memory of a launch.

    Args:
        traffic: the arguments through which the kernel reaches memory.
        memory: the arguments' storage.
        reached: the allocations that the kernel reaches through them.
        grid: programs in x, y, z.
        across: the state of all ranks, where the launch is that of one of several.
    """

    def __init__(
        self,
        traffic: Traffic,
        memory: Memory,
        reached: Reached,
        grid: tuple[int, int, int],
        across: Optional[AcrossRanks] = None,
    ):
        self.across = across
        self.epochs = Epochs() if across is None else across.epochs
        self.epochs.strict = memory.settings.proxy == "strict"
        self._shadows: dict[int, GlobalShadow] = {}
        self._written = reached.written if across is None else None
        self._met = reached.met
        self._polled: dict[tuple[int, int], int] = {}
        self._ordering = traffic.atomic
        if across is None:
            self.order = ProgramOrder(grid, self._ordering and not follows(ATOMIC_BARRIERS))
        else:
            self.order, self._ordering = across.order, True
        self._within = PartitionOrder()
        self._alone = self.order.total == 1 and across is None
        self.threads = bool(self._met)
        self._time = 0
        self._ops: list[Optional[Op]] = [None]
        self._by_thread: dict[int, dict[int, ThreadShadow]] = {}  # by machine, by allocation
        self._lock = threading.RLock()  # work lands while a report looks for its remedy

    # ---- shared memory ----------------------------------------------------------------------

    def _shadow(self, buffer: ShadowedBuffer, size: int) -> SharedShadow:
        if buffer.shadow is None:
            proxied = not buffer.pitch
            buffer.shadow = SharedShadow(
                self.epochs, buffer.data.shape[0], buffer.size, size, proxied
            )
        return buffer.shadow

    def shared(
        self, task: Task, kind: str, view: ShadowedView, mask: Optional[np.ndarray] = None
    ) -> None:
        """Record an access to all elements of a view, or those under the mask."""
        rows = task.rows
        size = view.dtype.itemsize
        index = view.elements()
        base = view.base // size
        shadow = self._shadow(view.buffer, size)
        name = view.buffer.name
        if mask is not None:
            live = np.broadcast_to(mask, (rows.count, *view.table.shape)).reshape(rows.count, -1)
            if not live.all():
                index = np.broadcast_to(index[None, :] + base[:, None], live.shape)[live]
                where = np.broadcast_to(rows.index[:, None], live.shape)[live]
                if index.size:
                    shadow.touch(task, kind, index, where, size, name)
                return
        if len(base) == 1 and rows.whole:
            span = view.span()
            if span is not None and shadow.touch_span(task, kind, span, size):
                return
            shadow.touch(task, kind, index + int(base[0]), None, size, name)
        else:
            index = index[None, :] + base[:, None]
            shadow.touch(task, kind, index, rows.index[:, None], size, name)

    def shared_at(
        self,
        task: Task,
        kind: str,
        view: ShadowedView,
        elements: np.ndarray,
        live: Optional[np.ndarray] = None,
    ) -> None:
        """Record an access to chosen elements: indices into all rows of the buffer, one after the other."""
        size = view.dtype.itemsize
        flat = elements.ravel() if live is None else elements[live]
        if flat.size:
            rows, index = np.divmod(flat, view.buffer.size // size)
            shadow = self._shadow(view.buffer, size)
            shadow.touch(task, kind, index, rows, size, view.buffer.name)

    def last_accesses(self, view: ShadowedView, reads: bool) -> Optional[np.ndarray]:
        """Epochs of the last writes to a view, and of the last reads of each agent, each once."""
        shadow = view.buffer.shadow
        if shadow is None:
            return None
        size = view.dtype.itemsize
        if size < shadow.grain:
            shadow._refine(size)
        ratio = size // shadow.grain
        span = view.span()
        cells: Any
        if span is not None:
            cells = slice(span.start // shadow.grain, span.stop // shadow.grain)
        else:
            cells = view.elements()[None, :] + (view.base // size)[:, None]
            cells = (cells[..., None] * ratio + np.arange(ratio)).reshape(-1)
        kept = [shadow.writes, *(shadow.reads.values() if reads else ())]
        distinct = np.unique(np.concatenate([_distinct(epochs[:, cells]) for epochs in kept]))
        return distinct[distinct > 0]

    # ---- global memory ----------------------------------------------------------------------

    def touched(
        self, task: Task, access: str, kind: str, allocation: Allocation, index: np.ndarray,
        live: Optional[np.ndarray], shape: tuple[int, ...], size: int, run: Optional[int] = None,
    ) -> None:  # fmt: skip
        """Record an access to elements `index` of an allocation, those that `live` picks of `shape`.

        Args:
            run: the first of them, where they follow each other without gaps.
        """
        if not index.size:
            return
        if not self._alone or task.agent is not None:
            self._agents(task, access, kind, allocation, index, live, shape, size, run)
        if self.threads and id(allocation) in self._met:
            one = unanswered(task.op) and passive(task.op)
            if one or access in _PLAIN:
                self._thread(task, "write" if one else kind, allocation, index, live, shape, size)

    def _agents(
        self, task: Task, access: str, kind: str, allocation: Allocation, index: np.ndarray,
        live: Optional[np.ndarray], shape: tuple[int, ...], size: int, run: Optional[int],
    ) -> None:  # fmt: skip
        """Record an access in the order of programs, and of agents within them."""
        if kind == "read":
            kind = "poll" if task.op.attrs.get("volatile") else _LOADS.get(access, "read")
        elif access == "atomic_store":
            kind = "update"
        if self._written is not None and id(allocation) not in self._written:
            if kind in ("read", "poll"):
                return
            self._written.add(id(allocation))
        guided = task.memory.guided
        if guided is not None:
            if kind in ("update", "poll") or task.op.attrs.get("volatile"):
                words = index * size >> 2
                words = np.concatenate([words, words + 1]) if size > 4 else words
                guided.cells(task, allocation.name, updating(task.op, kind), words)
            else:
                guided.seen()
        rows = task.rows
        numbers = task.batch.numbers[rows.index].astype(np.int32)
        shared = shape[0] == 1 and len(numbers) > 1
        programs = numbers[:1] if shared else numbers
        if len(programs) > 1:
            programs = programs.reshape(-1, *([1] * (len(shape) - 1)))
            if live is not None:
                programs = np.broadcast_to(programs, shape)[live]
        shadows = self._shadows
        if self.across is not None and allocation.lasting:
            shadows = self.across.shadows
            if allocation.owner is not None and kind in ("update", "poll"):
                self.across.scope(task, allocation, index, size)
        with self._lock:  # whichever of two threads comes second sees the other's access
            shadow = shadows.get(id(allocation))
            if shadow is None:
                shadow = shadows[id(allocation)] = GlobalShadow(
                    self.epochs, self.order, allocation.data.nbytes, size, self._ordering
                )
            rest = by_others(task, live, shape) if self.order.threads else False
            if run is not None and not shared:
                if shadow.fresh(task, kind, run, index, programs, size, rest):
                    return
            of = shared and not self._alone
            shadow.touch(task, kind, index, programs, size, allocation.name, of, rest)
            if kind in ("update", "poll"):
                # A tensor under a mask may be the first thread's alone, too.
                one = isinstance(rest, np.ndarray) and rest.size > 0 and not rest.any()
                alone = one or len(shape) == 1
                self._orders(task, kind, allocation, index, programs, size, alone)

    def begin(self, machine: Machine) -> None:
        """Start a batch on a machine: its threads meet none of those that ran there before."""
        self._by_thread[id(machine)] = {}

    @property
    def waits(self) -> bool:
        """Return whether it needs to know when the threads of a task have waited for each other."""
        return self.threads or self.order.threads

    def waited(self, task: Task) -> None:
        """Record that the threads of a task waited for each other."""
        task.since = self.tick()
        if not stays_within(task.op):
            task.together = task.since
        if self.order.threads:
            with self._lock:
                self.order.time += 1
            if task.agent is not None:
                task.agent.tick()
            task.joined = self.order.time, task.agent.clock if task.agent is not None else 0

    def tick(self) -> int:
        """Return the time of the next access or barrier."""
        with self._lock:
            self._time += 1
            if self.threads:
                self._ops.append(None)
            return self._time

    def _thread(
        self, task: Task, kind: str, allocation: Allocation, index: np.ndarray,
        live: Optional[np.ndarray], shape: tuple[int, ...], size: int,
    ) -> None:  # fmt: skip
        if task.op.attrs.get("volatile"):
            return
        now = self.tick()
        with self._lock:
            self._ops[now] = task.op
            shadows = self._by_thread.setdefault(id(task.machine), {})
            shadow = shadows.get(id(allocation))
            if shadow is None:
                created = ThreadShadow(allocation.data.nbytes, size)
                shadow = shadows[id(allocation)] = created
            if shadow.grain != size:
                return  # seen under another type, too: reported only where elements stay the same
            meeting = shadow.touch(task, kind, index, live, shape, now)
        if meeting is not None:
            earlier = self._ops[meeting.time]
            assert earlier is not None
            program = task.machine.program.program
            tolerated = any(unanswered(op) or only_decide(program, op) for op in (earlier, task.op))
            report_threads(task, kind, earlier, meeting, allocation.name, tolerated)

    def _orders(
        self, task: Task, kind: str, allocation: Allocation, index: np.ndarray,
        programs: np.ndarray, size: int, scalar: bool,
    ) -> None:  # fmt: skip
        agent = task.agent
        if (self._alone and agent is None) or (agent is not None and agent.flight is not None):
            return  # asynchronous work orders nothing
        acquire, release, narrow = order_of(task.op)
        if task.op.attrs.get("volatile"):
            acquire = release = False
        if kind == "poll":
            release = False
            key, version = (id(task.op), int(programs.flat[0])), task.memory.version
            if self._polled.get(key) == version:
                return  # nothing has happened since it last looked
            self._polled[key] = version
        elif task.op.name == "atomic_store":
            acquire = False
        elif not is_used(task.op):
            acquire = False  # no later op depends on its result
        addresses = index * size + allocation.base
        stores = task.op.name == "atomic_store"
        if agent is not None:
            self._within.atomic(
                task, agent, addresses, programs, acquire, release, stores,
                scalar and self.order.threads,
            )  # fmt: skip
        self.order.used(task.op, acquire, release, narrow)
        if narrow:  # it reaches no other program
            acquire = release = False
        self.order.atomic(task, addresses, programs, acquire, release, stores, scalar)


def _distinct(ids: np.ndarray) -> np.ndarray:
    """Return the numbers in an array, which mostly holds one."""
    first = ids.flat[0]
    return np.array([first]) if (ids == first).all() else np.unique(ids)


_CHANGEABLE = frozenset("add fadd and or xor max min umax umin smax smin".split())


def updating(op: Op, kind: str) -> str:
    """Return the effect of an atomic, if others that do the same may come first and nobody could tell; "poll" of
    one that only reads; else ""."""
    if kind == "poll":
        return kind
    if op.name == "atomic_rmw" and op.args[0] in _CHANGEABLE and op.used is False:
        return str(op.args[0])
    return ""
