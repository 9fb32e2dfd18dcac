"""The semantics of the portable ops on global and shared memory.

Handlers are functions of (task, *arguments as recorded); see `gluon_sim.executor.ops`.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_sim.errors import OutOfBoundsError
from gluon_sim.executor.task import Task
from gluon_sim.executor.tensors import dims_of
from gluon_sim.memory.atomics import RMW, apply_atomic
from gluon_sim.memory.shared import SharedView, derived
from gluon_sim.memory.turns import Turns
from gluon_sim.sanitizer.addresses import initialised, inside
from gluon_sim.tracing.arith import entering
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import PORTABLE
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.types import MemDescType, PointerType, Type

__all__ = ["MEMORY_OPS"]

MEMORY_OPS: dict[str, Callable[..., Any]] = {}
_op = entering(MEMORY_OPS)


# ---- global memory --------------------------------------------------------------------------


def _pointee(task: Task) -> np.dtype:
    element = next(iter(task.op.operands())).type.element
    assert isinstance(element, PointerType)
    return numpy_dtype(element.pointee)


@_op("load")
def load(task: Task, pointer: np.ndarray, *policy: Any) -> np.ndarray:
    return task.memory.load(task, "load", pointer, _pointee(task), None, None)


@_op("masked_load")
def masked_load(
    task: Task, pointer: np.ndarray, mask: Optional[np.ndarray], other: Optional[np.ndarray]
) -> np.ndarray:
    return task.memory.load(task, "load", pointer, _pointee(task), mask, other)


@_op("store")
def store(task: Task, pointer: np.ndarray, value: np.ndarray, *policy: Any) -> None:
    task.memory.store(task, "store", pointer, value, None)


@_op("masked_store")
def masked_store(
    task: Task, pointer: np.ndarray, value: np.ndarray, mask: Optional[np.ndarray]
) -> None:
    task.memory.store(task, "store", pointer, value, mask)


def _element_addresses(task: Task, pointer: np.ndarray, operand: int) -> np.ndarray:
    return np.broadcast_to(pointer, (task.programs, *dims_of(task, operand)))


@_op("atomic_rmw")
def atomic_rmw_op(
    task: Task, kind: str, pointer: np.ndarray, value: np.ndarray, mask: Optional[np.ndarray]
) -> np.ndarray:
    pointer = _element_addresses(task, pointer, 0)
    return task.atomic_global(kind, pointer, value, mask)


@_op("atomic_cas")
def atomic_cas(
    task: Task, pointer: np.ndarray, compare: np.ndarray, value: np.ndarray
) -> np.ndarray:
    return task.compare_and_swap(_element_addresses(task, pointer, 0), compare, value, None)


@_op("atomic_load")
def atomic_load(task: Task, pointer: np.ndarray, mask: Optional[np.ndarray]) -> np.ndarray:
    return task.memory.load(task, "atomic_load", pointer, _pointee(task), mask, None)


@_op("atomic_store")
def atomic_store(
    task: Task, pointer: np.ndarray, value: np.ndarray, mask: Optional[np.ndarray]
) -> None:
    task.memory.store(task, "atomic_store", pointer, value, mask)


@_op("atomic_poll")
def atomic_poll(
    task: Task, pointer: np.ndarray, expected: np.ndarray, timeout: Any = None
) -> Turns[np.ndarray]:
    """Wait until memory holds the expected value; return False on timeout.

    Time passes only when nothing else can happen.
    """

    def now() -> np.ndarray:
        return task.memory.load(task, "atomic_poll", pointer, _pointee(task), None, None)

    def ready() -> bool:
        return bool((now() == expected).all())

    if not ready():
        wait = task.blocked(ready, "memory to hold the polled value")
        wait.expires = timeout is not None
        yield wait
    holds: np.ndarray = now() == expected
    return holds


# ---- shared memory --------------------------------------------------------------------------


@_op("local_alloc")
def local_alloc(task: Task, type: Type, value: Optional[np.ndarray] = None) -> SharedView:
    assert isinstance(type, MemDescType)
    return task.allocate_buffer(type, value)


@_op("local_dealloc")
def local_dealloc(task: Task, view: SharedView) -> None:
    """Says that the buffer is in use up to here; it may be used later too, and then lives longer."""


@_op("local_load")
def local_load(task: Task, type: Type, view: SharedView, *token: Any) -> np.ndarray:
    return task.load_shared(view)


@_op("local_store")
def local_store(task: Task, view: SharedView, value: np.ndarray) -> None:
    task.store_shared(view, value)


_COPIES, _PRODUCTS = PORTABLE["deferred_store"], PORTABLE["deferred_read"]


@_op("deferred_store")
def deferred_store(
    task: Task, view: SharedView, value: np.ndarray, pointer: np.ndarray, mask: Optional[np.ndarray]
) -> None:
    """Model a portable copy through registers: its reads and its result are settled after a wait,
    as on other targets."""

    def perform() -> None:
        task.store_shared(view, task.load_global(pointer, view.dtype, mask))

    task.issue(_COPIES, perform)


@_op("deferred_commit")
def deferred_commit(task: Task) -> None:
    task.commit(_COPIES)


@_op("deferred_wait")
def deferred_wait(task: Task, pending: int) -> None:
    task.wait_groups(_COPIES, pending)
    task.fence()


@_op("deferred_read")
def deferred_read(task: Task, views: Sequence[SharedView], is_async: bool, alone: bool) -> None:
    """Read the operands of a portable `mma`: here, or on other targets, a unit does so on its own."""
    if alone:
        task.portable = True  # the work that is issued next
        return

    def perform() -> None:
        for view in views:
            task.touch_shared("read", view)

    task.issue(_PRODUCTS, perform, after=True, proxy="async")
    task.commit(_PRODUCTS)
    if not is_async:
        task.wait_groups(_PRODUCTS, 0)


@_op("deferred_read_wait")
def deferred_read_wait(task: Task, pending: int) -> None:
    task.wait_groups(_PRODUCTS, pending)


@_op("deferred_fence")
def deferred_fence(task: Task) -> None:
    task.fence()


@_op("memdesc_index")
def memdesc_index(task: Task, type: MemDescType, view: SharedView, index: np.ndarray) -> SharedView:
    count = view.shape[0]
    try:
        return view.index(type, inside(task, "memdesc_index", index, count, "buffer"))
    except OutOfBoundsError as error:  # reported when it is used: where a predicate holds
        error.span = span_of(task.op.loc)
        slot = view.index(type, index % count)
        bad = (index < 0) | (index >= count)
        slot.outside = (bad[:1] if bad.all() else bad, error)
        return slot


@_op("memdesc_subslice")
def memdesc_subslice(
    task: Task, type: MemDescType, view: SharedView, offsets: Sequence[int]
) -> SharedView:
    return task.slice_buffer(view, type, offsets)


@_op("memdesc_trans")
def memdesc_trans(task: Task, view: SharedView, order: Sequence[int]) -> SharedView:
    return view.with_type(task.op.results[0].type, derived(view.table, "trans", *order))


@_op("memdesc_reshape")
def memdesc_reshape(task: Task, view: SharedView, shape: Sequence[int]) -> SharedView:
    return view.with_type(task.op.results[0].type, derived(view.table, "reshape", *shape))


@_op("memdesc_reinterpret")
def memdesc_reinterpret(task: Task, type: MemDescType, view: SharedView) -> SharedView:
    return view.reinterpret(type, task.machine.settings.bounds)


def _positions(task: Task, view: SharedView, indices: np.ndarray, axis: int) -> np.ndarray:
    indices = inside(task, task.op.called, indices, view.shape[axis], "buffer")
    return view.positions(task.rows, indices, axis)


def _touch(
    task: Task, kind: str, view: SharedView, elements: np.ndarray, live: Optional[np.ndarray] = None
) -> None:
    if task.agent is not None and task.machine.tracking is not None:
        task.machine.tracking.shared_at(task, kind, view, elements, live)


def _flat(view: SharedView) -> np.ndarray:
    return view.buffer.view(view.dtype).reshape(-1)


@_op("local_gather")
def local_gather(
    task: Task, type: Type, view: SharedView, indices: np.ndarray, axis: int
) -> np.ndarray:
    indices = np.broadcast_to(indices, (indices.shape[0], *dims_of(task, 1)))
    elements = _positions(task, view, indices, axis)
    buffer = view.buffer
    _touch(task, "read", view, elements)
    if buffer.unwritten is not None:
        missing = buffer.marks(view.dtype.itemsize).reshape(-1)[elements] != 0
        initialised(task, "local_gather", buffer, missing)
    gathered: np.ndarray = _flat(view)[elements]
    return gathered


@_op("local_scatter")
def local_scatter(
    task: Task, view: SharedView, values: np.ndarray, indices: np.ndarray, axis: int
) -> None:
    indices = np.broadcast_to(indices, (indices.shape[0], *dims_of(task, 2)))
    elements = _positions(task, view, indices, axis)
    _touch(task, "write", view, elements)
    _flat(view)[elements] = np.broadcast_to(values, elements.shape)
    if view.buffer.unwritten is not None:
        view.buffer.marks(view.dtype.itemsize).reshape(-1)[elements] = 0
        view.buffer.wrote(elements.size * view.dtype.itemsize)
    task.memory.version += 1


@_op("local_atomic_scatter_rmw")
def local_atomic_scatter_rmw(
    task: Task,
    kind: str,
    view: SharedView,
    values: np.ndarray,
    indices: np.ndarray,
    mask: Optional[np.ndarray],
    axis: int,
) -> np.ndarray:
    indices = np.broadcast_to(indices, (indices.shape[0], *dims_of(task, 2)))
    elements = _positions(task, view, indices, axis)
    live = np.ones(elements.shape, bool) if mask is None else np.broadcast_to(mask, elements.shape)
    guided = task.machine.guided
    if guided is not None:
        guided.cells(task, guided.of(view.buffer), "", elements[live])
    _touch(task, "update", view, elements, live)
    if view.buffer.unwritten is not None:
        missing = view.buffer.marks(view.dtype.itemsize).reshape(-1)[elements] != 0
        initialised(task, task.op.called, view.buffer, missing & live)
    out = np.zeros(elements.shape, view.dtype)
    update, _ = RMW[kind]
    old, _ = apply_atomic(
        _flat(view), elements[live], update, (np.broadcast_to(values, elements.shape)[live],)
    )
    out[live] = old
    task.memory.version += 1
    return out
