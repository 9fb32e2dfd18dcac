"""Which accesses to shared memory hit banks twice, and the layout of the buffer that would not."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import SwizzledSharedLayout
from gluon_sim.executor.compile import Step
from gluon_sim.executor.task import Task
from gluon_sim.findings import BankUse
from gluon_sim.memory.shared import SharedView, offsets_of
from gluon_sim.sanitizer.access import Holders, holders, shared_cost
from gluon_sim.tools.watcher import Launch, Watcher
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Location, Op
from gluon_sim.tracing.types import MemDescType, TensorType

__all__ = ["Banks"]

# Ops that move registers to and from buffers; all other ops on a buffer fix its layout.
_MOVES = {"local_load": "read", "local_store": "written", "local_alloc": "written"}
_VIEWS = frozenset({"memdesc_index", "memdesc_subslice", "memdesc_trans", "local_dealloc"})
_MOST_ELEMENTS = 1 << 15  # of a buffer that a cure is looked for


@dataclass
class _Access:
    """The accesses of a line to a buffer: the byte offsets that were seen, each with how often."""

    loc: Location
    way: str
    held: Optional[Holders]
    seen: dict[bytes, tuple[np.ndarray, int]] = field(default_factory=dict)

    def cost(self, size: int, banks: int, place: Callable[[Any], Any]) -> tuple[int, int]:
        """Return the passes, and those without conflicts, if `place` maps offsets to addresses."""
        passes = ideal = 0
        for offsets, times in self.seen.values():
            stores = self.way == "written"
            one = shared_cost(place(offsets)[None], size, self.held, banks, stores)
            passes, ideal = passes + one.passes * times, ideal + one.ideal * times
        return passes, ideal


@dataclass
class _Buffer:
    """An allocation, who moves registers there, and which ops at which lines need it as it is."""

    alloc: Op
    loc: Location
    accesses: dict[tuple[Any, ...], _Access] = field(default_factory=dict)
    needed: dict[str, int] = field(default_factory=dict)


class Banks(Watcher):
    """Collects the accesses of all watched launches, by kernel and buffer."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], dict[int, _Buffer]] = {}

    def uses(self, kernel: str, target: Any) -> tuple[BankUse, ...]:
        """Return the uses of banks by a kernel on a target, in the order of the source."""
        bank_uses: list[BankUse] = []
        for buffer in self._kernels.get((kernel, str(target)), {}).values():
            bank_uses += _uses(buffer, target.architecture.banks)
        return tuple(sorted(bank_uses, key=lambda use: (use.file, use.line, use.way)))

    def after(self, launch: Launch, task: Task, step: Step, args: Sequence[Any]) -> None:
        op = step.op
        if op.name in _VIEWS:
            return
        way = _MOVES.get(op.name)
        if way is None:
            for value in args:
                if isinstance(value, SharedView) and value.type.space == "shared":
                    self._needs(launch, task, op, value)
        elif op.name == "local_alloc":
            values, result_type = list(op.operands()), op.results[0].type
            if values and isinstance(result_type, MemDescType) and result_type.space == "shared":
                table = (
                    offsets_of(result_type.layout, tuple(result_type.shape))
                    * numpy_dtype(result_type).itemsize
                )
                self._moved(launch, task, op, op, table[None], values[0].type, way)
        else:
            view: Any = args[1] if way == "read" else args[0]
            if not isinstance(view, SharedView) or view.type.space != "shared":
                return
            alloc = view.buffer.alloc
            if alloc is None or numpy_dtype(alloc.results[0].type) != view.dtype:
                self._needs(launch, task, op, view)
                return
            type = op.results[0].type if way == "read" else list(op.operands())[1].type
            offsets = view.table + view.base.reshape(-1, *([1] * view.table.ndim))
            self._moved(launch, task, op, alloc, offsets, type, way)

    def _needs(self, launch: Launch, task: Task, op: Op, view: SharedView) -> None:
        if view.buffer.alloc is not None:
            line = launch.line(task, op).line
            self._buffer(launch, task, view.buffer.alloc).needed.setdefault(op.name, line)

    def _buffer(self, launch: Launch, task: Task, alloc: Op) -> _Buffer:
        kernel = (launch.program.program.kernel.name, str(launch.target))
        buffers = self._kernels.setdefault(kernel, {})
        known = buffers.get(id(alloc))
        if known is None:
            known = buffers[id(alloc)] = _Buffer(alloc, launch.line(task, alloc))
        return known

    def _moved(
        self, launch: Launch, task: Task, op: Op, alloc: Op, offsets: Any, type: Any, way: str
    ) -> None:
        buffer = self._buffer(launch, task, alloc)
        loc = launch.line(task, op)
        layout = type.layout if isinstance(type, TensorType) else None
        key = (loc.file, loc.line, way, repr(layout), tuple(type.dims))
        access = buffer.accesses.get(key)
        if access is None:
            held = holders(layout, tuple(type.dims)) if layout is not None else None
            access = buffer.accesses[key] = _Access(loc, way, held)
        times = task.programs // len(offsets)
        for row in offsets:
            mark = row.tobytes()
            known = access.seen.get(mark)
            access.seen[mark] = (row, times + (0 if known is None else known[1]))


def _uses(buffer: _Buffer, banks: int) -> Iterator[BankUse]:
    type: Any = buffer.alloc.results[0].type
    size = numpy_dtype(type).itemsize
    accesses = list(buffer.accesses.values())
    costs = [one.cost(size, banks, lambda place: place) for one in accesses]
    cure, cured, note = None, None, ""
    if any(passes > ideal for passes, ideal in costs):
        cure, cured, note = _cure(buffer, type, accesses, costs, banks)
    for number, (one, (passes, ideal)) in enumerate(zip(accesses, costs)):
        yield BankUse(
            one.loc.file,
            one.loc.line,
            one.way,
            passes,
            ideal,
            type.layout,
            buffer.loc.line,
            cure,
            None if cured is None else cured[number],
            note,
        )


def _cure(
    buffer: _Buffer,
    type: Any,
    accesses: Sequence[_Access],
    costs: Sequence[tuple[int, int]],
    banks: int,
) -> tuple[Any, Optional[list[int]], str]:
    """Return the layout with the fewest passes over all accesses, the passes of each with it, and a
    remark."""
    if buffer.needed:
        users = ", ".join(f"{name} at line {line}" for name, line in sorted(buffer.needed.items()))
        return None, None, f"the buffer must lie as it does for {users}"
    rank = type.layout._rank_or_none()
    shape = tuple(type.shape)
    if rank is None or rank > len(shape) or int(np.prod(shape)) > _MOST_ELEMENTS:
        return None, None, "no other layout was tried: the buffer is too large"
    size = numpy_dtype(type).itemsize
    old = offsets_of(type.layout, shape)
    element = np.full(int(old.max()) + 1, -1)
    element[old.ravel()] = np.arange(old.size)
    ideal, least = sum(cost[1] for cost in costs), sum(cost[0] for cost in costs)
    best: Any = None
    cured: Optional[list[int]] = None
    for layout in _candidates(type.layout, rank, shape[len(shape) - rank :], size):
        try:
            new = offsets_of(layout, shape).ravel()
        except GluonError:
            continue
        moved = [
            one.cost(size, banks, lambda place, new=new: new[element[place // size]] * size)[0]  # type: ignore[misc]
            for one in accesses
        ]
        if sum(moved) < least:
            best, cured, least = layout, moved, sum(moved)
        if least == ideal:
            break
    if best is None:
        return None, None, "no swizzled layout has fewer conflicts"
    rest = "" if least == ideal else f"{least - ideal} extra passes are left"
    return best, cured, rest


def _candidates(layout: Any, rank: int, shape: Sequence[int], size: int) -> Iterator[Any]:
    """Swizzled layouts, those with long vectors first."""
    declared = getattr(layout, "order", None)
    order = list(declared) if declared is not None else list(range(rank))[::-1]
    cga = list(getattr(layout, "cga_layout", []))
    orders = [order] if rank == 1 else [order, [order[1], order[0], *order[2:]]]
    vectors = [1 << i for i in range(5) if size << i <= 16][::-1]
    for phases, vec, per_phase, by in product((8, 16, 4, 32, 2, 1), vectors, (1, 2, 4, 8), orders):
        if phases * vec <= shape[by[0]]:
            yield SwizzledSharedLayout(vec, per_phase, phases, by, cga)
