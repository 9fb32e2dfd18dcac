"""The events of an op: its effects on barriers, shared memory and queues of asynchronous work.

A reference model is run once on stand-ins for its operands, by a machine that only records requests. So the vocabulary here is that of `gluon_core.plugin.reference`, and no vendor
is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.plugin.reference import Descriptor
from gluon_prove.values import CannotSay
from gluon_sim.memory.shared import SharedBuffer, SharedView
from gluon_sim.sanitizer.agents import GENERIC
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.types import MemDescType, Type
from gluon_sim.tracing.uses import is_late
from gluon_sim.tracing.words import buffer_name

__all__ = [
    "Access", "Barrier", "Commit", "Event", "Fence", "Footprint", "ImpliedFence", "Issue", "Noter", "Places",
    "Use", "WaitGroups",
]  # fmt: skip


@dataclass(frozen=True)
class Access:
    """A read or a write of a place by the one who runs the op, or by the work that holds it.

    Args:
        kind: "read" or "write".
        late: a load that may be on its way at the next arrival, as nothing uses its value before.
    """

    kind: str
    place: int
    late: bool = False


@dataclass(frozen=True)
class Barrier:
    """`init`, `invalidate`, `arrive`, `raise`, `expect`, `bytes` or `wait`, of one barrier.

    Args:
        amount: arrivals, bytes, or the parity.
    """

    action: str
    slot: int
    amount: int


@dataclass(frozen=True)
class Issue:
    """Asynchronous work.

    Args:
        queue, after, proxied: as `Machine.issue` says; whether it goes through another proxy.
        accesses: of shared memory.
        signals: its effects on barriers when it is over.
        reads: the part of it that others may wait for alone.
        fills: which result of the op it is, if any.
    """

    queue: str
    after: bool
    proxied: bool
    accesses: tuple[Access, ...]
    signals: tuple[Barrier, ...]
    reads: bool
    fills: bool


@dataclass(frozen=True)
class Commit:
    queue: str


@dataclass(frozen=True)
class WaitGroups:
    queue: str
    pending: int
    reads: bool


@dataclass(frozen=True)
class Fence:
    pass


@dataclass(frozen=True)
class ImpliedFence:
    places: tuple[int, ...]
    known: tuple[str, ...]
    writes: bool


@dataclass(frozen=True)
class Use:
    """Registers that work in flight fills are read: those of the operand at a position."""

    operand: int


Event = Union[Access, Barrier, Issue, Commit, WaitGroups, Fence, ImpliedFence, Use]


class Footprint:
    """Bytes of one buffer."""

    def __init__(self, buffer: int, bytes: np.ndarray, proxied: bool):
        self.buffer = buffer
        self.bytes = bytes  # sorted
        self.proxied = proxied  # whether it takes fences to be seen through another proxy
        self.low, self.high = int(bytes[0]), int(bytes[-1])


class Places:
    """All places that accesses reach and all barriers, by number."""

    def __init__(self) -> None:
        self.buffers: list[SharedBuffer] = []
        self.all: list[Footprint] = []
        self.slots: list[tuple[int, int]] = []  # (buffer, byte) of each barrier
        self._numbers: dict[Any, int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._meet: dict[tuple[int, int], bool] = {}
        self._covers: dict[tuple[int, int], bool] = {}

    def buffer(self, buffer: SharedBuffer) -> int:
        for number, known in enumerate(self.buffers):
            if known is buffer:
                return number
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def of(self, view: SharedView) -> int:
        """Return the number of the place that a view covers."""
        view.reach()
        base = int(view.base[0])
        key = (id(view.buffer), base, view.dtype.itemsize, view.table.tobytes())
        number = self._numbers.get(key)
        if number is None:
            first = np.unique(view.table.reshape(-1).astype(np.int64)) + base
            size = view.dtype.itemsize
            bytes = (first[:, None] + np.arange(size)).reshape(-1)
            number = self._numbers[key] = len(self.all)
            buffer = self.buffer(view.buffer)
            self.all.append(Footprint(buffer, bytes, not view.buffer.pitch))
        return number

    def slot(self, view: SharedView) -> int:
        view.reach()
        key = (self.buffer(view.buffer), int(view.offset[0]) // 8 * 8)
        number = self._slots.get(key)
        if number is None:
            number = self._slots[key] = len(self.slots)
            self.slots.append(key)
        return number

    def meet(self, one: int, other: int) -> bool:
        """Return whether two places share a byte."""
        if one == other:
            return True
        key = (one, other)
        overlap = self._meet.get(key)
        if overlap is None:
            a, b = self.all[one], self.all[other]
            overlap = a.buffer == b.buffer and a.low <= b.high and b.low <= a.high
            overlap = overlap and bool(np.isin(a.bytes, b.bytes, assume_unique=True).any())
            self._meet[key] = overlap
        return overlap

    def covers(self, one: int, other: int) -> bool:
        """Return whether all bytes of the other place are in the first."""
        if one == other:
            return True
        key = (one, other)
        covered = self._covers.get(key)
        if covered is None:
            a, b = self.all[one], self.all[other]
            covered = a.buffer == b.buffer and bool(np.isin(b.bytes, a.bytes).all())
            self._covers[key] = covered
        return covered

    def holds_barrier(self, place: int) -> bool:
        """Return whether a place has bytes of a barrier in it."""
        spot = self.all[place]
        return any(
            buffer == spot.buffer and bool(((spot.bytes >= start) & (spot.bytes < start + 8)).any())
            for buffer, start in self.slots
        )


class _Pending(np.ndarray):
    """Registers that work in flight will fill: handed on, or noted as used."""

    noter: Optional["Noter"] = None
    operand: Optional[int] = None

    def __array_finalize__(self, origin: Any) -> None:
        self.noter = getattr(origin, "noter", None)
        self.operand = getattr(origin, "operand", None)

    def used(self) -> np.ndarray:
        if self.noter is not None and not self.noter.performing and self.operand is not None:
            self.noter.events.append(Use(self.operand))
        return np.asarray(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        plain = [i.used() if isinstance(i, _Pending) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **named)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        plain = [a.used() if isinstance(a, _Pending) else a for a in args]
        return func(*plain, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.used()[index]

    def astype(self, *args: Any, **named: Any) -> Any:
        return self.used().astype(*args, **named)

    def reshape(self, *args: Any, **named: Any) -> Any:
        return self.used().reshape(*args, **named)

    def transpose(self, *args: Any) -> Any:
        return self.used().transpose(*args)


@dataclass
class _Work:
    """The events that `issue` collects while its parts run."""

    accesses: list[Access] = field(default_factory=list)
    signals: list[Barrier] = field(default_factory=list)


class Noter:
    """A `gluon_core.plugin.reference.Machine` that records the requests of models.

    Args:
        places: numbers the places and barriers.
        target: the simulated target.
        num_warps: of the partition.
        stores: gets the ops that write to global memory.
    """

    programs = 1

    def __init__(self, places: Places, target: Any, num_warps: int, stores: dict[Op, None]):
        self.stores = stores
        self.places = places
        self.target = target
        self.num_warps = num_warps
        self.op: Op = None  # type: ignore[assignment]  # set before each model runs
        self.events: list[Event] = []
        self.performing: Optional[_Work] = None
        self.filled: Optional[np.ndarray] = None
        self.rows = Rows(np.arange(1), whole=True)

    def __getattr__(self, name: str) -> Any:
        raise CannotSay(f"`{self.op.name}` asks for `{name}`, which is not followed", self.op.loc)

    def run(
        self, op: Op, model: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]
    ) -> tuple[tuple[Event, ...], list[Any]]:
        """Return the events of an op, and its results: each a view, the position of an operand, "filled"
        for registers that its work fills, or None."""
        self.op, self.events, self.performing, self.filled = op, [], None, None
        try:
            value = model(self, *args, **named)
            if hasattr(value, "send"):
                for _ in value:
                    raise CannotSay(f"`{op.name}` waits for something else than a barrier", op.loc)
                value = None
        except (CannotSay, GluonError):
            raise
        except Exception as error:
            raise CannotSay(
                f"`{op.name}` cannot be followed: {type(error).__name__}: {error}", op.loc
            ) from error
        several = value if isinstance(value, (list, tuple)) else [value]
        if len(op.results) <= 1:
            several = [
                several[0] if isinstance(value, (list, tuple)) and len(several) == 1 else value
            ]
        results = [self._result(v) for v in several[: len(op.results)]]
        return tuple(self.events), results + [None] * (len(op.results) - len(results))

    def _result(self, value: Any) -> Any:
        if isinstance(value, SharedView):
            return value
        if isinstance(value, _Pending):
            return "filled" if value is self.filled else value.operand
        if isinstance(value, Descriptor):
            return value
        return None

    def pending(self, operand: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return a stand-in for an operand that work in flight may fill."""
        stand_in = np.zeros(shape, dtype).view(_Pending)
        stand_in.noter, stand_in.operand = self, operand
        return stand_in

    # ---- facts ------------------------------------------------------------------------------

    @staticmethod
    def select(value: Any, where: Any) -> Any:
        """Return an operand as it is: one program is followed."""
        return value

    def program_id(self, position: int) -> tuple[int, int, int]:
        return 0, 0, 0

    def full(self, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), (1, *shape))

    def operand_types(self) -> list[Type]:
        return [v.type for v in self.op.operands()]

    def result_dtype(self, index: int = 0) -> np.dtype:
        return numpy_dtype(self.op.results[index].type)

    # ---- memory -----------------------------------------------------------------------------

    def load_global(self, addresses: Any, type: Any, mask: Any = None, other: Any = None) -> Any:
        dtype = type if isinstance(type, np.dtype) else numpy_dtype(type)
        return np.broadcast_to(np.zeros(1, dtype), np.shape(addresses))

    def store_global(self, addresses: Any, values: Any, mask: Any = None) -> None:
        self.stores[self.op] = None

    def atomic_global(self, kind: str, addresses: Any, values: Any, mask: Any = None) -> Any:
        self.stores[self.op] = None
        return np.broadcast_to(np.zeros(1, np.asarray(values).dtype), np.shape(values))

    def refuse_before(self, argument: str, place: Any, message: str, remedy: str) -> None:
        """Return an address: global memory is not followed."""

    def load_shared(self, view: SharedView, mask: Any = None, copied: bool = False) -> np.ndarray:
        self._touch("read", view)
        return np.broadcast_to(np.zeros(1, view.dtype), (1, *view.shape))

    def store_shared(self, view: SharedView, values: Any, mask: Any = None) -> None:
        self._touch("write", view)

    def touch_shared(self, kind: str, view: SharedView, mask: Any = None) -> None:
        self._touch(kind, view)

    def _touch(self, kind: str, view: SharedView) -> None:
        late = kind == "read" and self.performing is None and is_late(self.op)
        access = Access(kind, self.places.of(view), late)
        (self.events if self.performing is None else self.performing.accesses).append(access)

    def allocate_buffer(self, type: MemDescType, value: Any = None) -> SharedView:
        buffer = SharedBuffer(1, SharedView.bytes_needed(type), buffer_name(self.op))
        buffer.alloc = self.op
        view = SharedView.allocated(buffer, type, self.op)
        if value is not None:
            self.store_shared(view, value)
        return view

    def slice_buffer(
        self, view: SharedView, type: MemDescType, offsets: Sequence[int]
    ) -> SharedView:
        return view.part(type, offsets)

    def dot(self, a: Any, b: Any, acc: np.ndarray, precision: Any = None) -> np.ndarray:
        return np.asarray(acc)

    # ---- asynchronous work ------------------------------------------------------------------

    def issue(
        self, queue: str, perform: Callable[[], Any], signal: Optional[Callable[[], Any]] = None,
        *, barrier: Any = None, after: bool = False, proxy: str = GENERIC,
        read: Optional[Callable[[], Any]] = None, where: Any = None, fills: Any = None,
        remote: bool = False,
    ) -> None:  # fmt: skip
        if where is not None and not np.any(where):
            return
        if remote:
            raise CannotSay(f"`{self.op.name}` reaches other blocks of the cluster", self.op.loc)
        work = self.performing = _Work()
        try:
            if read is not None:
                read()
                self.events.append(
                    Issue(queue, after, proxy != GENERIC, tuple(work.accesses), (), True, False)
                )
                work.accesses = []
            perform()
            if signal is not None:
                signal()
        finally:
            self.performing = None
        if read is not None and not work.accesses and not work.signals:
            return  # the others only write global memory
        self.events.append(
            Issue(
                queue, after, proxy != GENERIC, tuple(work.accesses), tuple(work.signals), False,
                fills is not None,
            )
        )  # fmt: skip

    def promise(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        self.filled = np.zeros((1, *shape), dtype).view(_Pending)
        return self.filled

    def settled(self, value: np.ndarray) -> np.ndarray:
        return value

    def fence(self) -> None:
        self.events.append(Fence())

    def implied_fence(
        self,
        buffers: Sequence[Any],
        known: Sequence[str],
        writes: bool = False,
        newer: Optional[Mapping[str, str]] = None,
    ) -> None:
        views = [b for b in buffers if isinstance(b, SharedView) and not b.buffer.pitch]
        if views:
            places = tuple(self.places.of(view) for view in views)
            self.events.append(ImpliedFence(places, tuple(known), writes))

    def commit(self, queue: str) -> None:
        self.events.append(Commit(queue))

    def wait_groups(self, queue: str, pending: int, reads: bool = False) -> None:
        self.events.append(WaitGroups(queue, int(pending), reads))

    # ---- barriers ---------------------------------------------------------------------------

    def _barrier(self, action: str, view: SharedView, amount: int, where: Any = None) -> None:
        if where is not None and not np.any(where):
            return
        event = Barrier(action, self.places.slot(view), int(amount))
        (self.events if self.performing is None else self.performing.signals).append(event)

    def barrier_init(self, view: SharedView, count: int) -> None:
        self._barrier("init", view, count)

    def barrier_invalidate(self, view: SharedView) -> None:
        self._barrier("invalidate", view, 0)

    def barrier_arrive(
        self, view: SharedView, count: int = 1, where: Any = None, everywhere: bool = False
    ) -> None:
        self._barrier("arrive", view, count, where)

    def barrier_raise(self, view: SharedView, count: int) -> None:
        self._barrier("raise", view, count)

    def barrier_expect(self, view: SharedView, size: int, where: Any = None) -> None:
        self._barrier("expect", view, size, where)

    def barrier_complete(self, view: SharedView, size: int, where: Any = None) -> None:
        self._barrier("bytes", view, size, where)

    def barrier_wait(self, view: SharedView, parity: Any, where: Any = None) -> Iterator[Any]:
        self._barrier("wait", view, int(np.asarray(parity).reshape(-1)[0]) & 1, where)
        return iter(())
