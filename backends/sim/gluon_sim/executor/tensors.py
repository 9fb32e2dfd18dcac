"""The semantics of the portable ops on tensors: shapes, casts, products.

Handlers are functions of (task, *arguments as recorded); see `gluon_sim.executor.ops`.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_core.layouts import BlockedLayout
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.products import matmul
from gluon_sim.executor.task import Task
from gluon_sim.memory.promise import Promise
from gluon_sim.sanitizer.addresses import inside
from gluon_sim.tracing.arith import ELEMENTWISE, entering
from gluon_sim.tracing.dtypes import (
    cast_float,
    finish,
    float_to_int,
    int_cast,
    numpy_dtype,
    unsigned,
)
from gluon_sim.tracing.types import PointerType, ScalarType, Type

__all__ = ["TENSOR_OPS", "dims_of"]


TENSOR_OPS: dict[str, Callable[..., Any]] = {}
_op = entering(TENSOR_OPS)


def _full(task: Task, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the value with every tensor dim at its extent; the leading axis stays as it is."""
    return np.broadcast_to(value, (value.shape[0], *shape))


def dims_of(task: Task, operand: int = 0) -> tuple[int, ...]:
    """Return the dims of an operand of the op that runs; () for a scalar."""
    return list(task.op.operands())[operand].type.dims


# ---- programs, shapes -----------------------------------------------------------------------


@_op("get_program_id")
def get_program_id(task: Task, axis: int) -> np.ndarray:
    ids: np.ndarray = task.batch.ids[axis][task.rows.index]
    return ids


@_op("get_num_programs")
def get_num_programs(task: Task, axis: int) -> np.ndarray:
    return np.full(1, task.machine.grid[axis], np.int32)


@_op("make_range")
def make_range(task: Task, type: Type, start: int, end: int) -> np.ndarray:
    return np.arange(start, end, dtype=np.int32)[None]


@_op("splat")
def splat(task: Task, type: Type, value: np.ndarray) -> np.ndarray:
    return value.reshape(-1, *([1] * len(type.dims)))


@_op("broadcast")
def broadcast(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    return value


@_op("convert_layout")
def convert_layout(task: Task, type: Type, value: np.ndarray) -> np.ndarray:
    if isinstance(value, Promise) and _moves(task, type):
        return value.read()
    return value


def _moves(task: Task, type: Any) -> bool:
    """Return whether a conversion takes an element to another register."""
    before = list(task.op.operands())[0].type.layout
    return bool(before.to_linear(type.dims) != type.layout.to_linear(type.dims))


@_op("expand_dims")
def expand_dims(task: Task, value: np.ndarray, axis: int) -> np.ndarray:
    return np.expand_dims(value, axis + 1)


@_op("unsplat")
def unsplat(task: Task, value: np.ndarray) -> np.ndarray:
    return value.reshape(value.shape[0], -1)[:, 0]


@_op("reshape")
def reshape(task: Task, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if value.size == value.shape[0]:
        return value.reshape(-1, *([1] * len(shape)))
    return _full(task, value, dims_of(task)).reshape(value.shape[0], *shape)


@_op("trans")
def trans(task: Task, value: np.ndarray, order: Sequence[int]) -> np.ndarray:
    out: np.ndarray = value.transpose(0, *(i + 1 for i in order))
    return out


@_op("join")
def join(task: Task, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return np.stack([np.broadcast_to(a, shape), np.broadcast_to(b, shape)], axis=-1)


@_op("split")
def split(task: Task, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if value.shape[-1] == 1:
        return value[..., 0], value[..., 0]
    return value[..., 0], value[..., 1]


@_op("cat")
def cat(task: Task, a: np.ndarray, b: np.ndarray, type: Type) -> np.ndarray:
    count = max(a.shape[0], b.shape[0])
    a = np.broadcast_to(a, (count, *dims_of(task, 0)))
    b = np.broadcast_to(b, (count, *dims_of(task, 1)))
    return np.concatenate([a, b], axis=1)


@_op("gather")
def gather(task: Task, source: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    shape = dims_of(task, 0)
    extent = shape[axis]
    indices = inside(task, "gather", indices, extent, "tensor")
    count = max(source.shape[0], indices.shape[0])
    source = np.broadcast_to(source, (count, *shape))
    indices = np.broadcast_to(indices, (count, *dims_of(task, 1)))
    return np.take_along_axis(source, indices.astype(np.int64), axis=axis + 1)


@_op("histogram")
def histogram(
    task: Task, operand: np.ndarray, bins: int, mask: Optional[np.ndarray] = None
) -> np.ndarray:
    count = max(operand.shape[0], mask.shape[0] if mask is not None else 1)
    shape = (count, *dims_of(task))
    values = np.broadcast_to(operand, shape)
    live = np.broadcast_to(True if mask is None else mask, shape)
    values = inside(task, "histogram", np.where(live, values, 0), bins, "bins")
    row = np.arange(count).reshape(-1, *([1] * (len(shape) - 1)))
    cells = (row * bins + values.astype(np.int64))[live]
    return np.bincount(cells, minlength=count * bins).reshape(count, bins).astype(np.int32)


# ---- casts ----------------------------------------------------------------------------------


def _element_name(type: Type) -> str:
    element = type.element
    return element.name if isinstance(element, ScalarType) else "i64"


def _source_name(task: Task) -> str:
    return _element_name(next(iter(task.op.operands())).type)


@_op("fp_to_fp", "fp_ext", "fp_trunc")
def fp_to_fp(task: Task, value: np.ndarray, type: Type, rounding: Any = None) -> np.ndarray:
    rounding = None if rounding is None else str(getattr(rounding, "name", rounding)).lower()
    return cast_float(value, _source_name(task), _element_name(type), rounding)


@_op("int_cast")
def cast_int(task: Task, value: np.ndarray, type: Type, signed: bool) -> np.ndarray:
    return int_cast(value, numpy_dtype(type), bool(signed))


@_op("fp_to_si")
def fp_to_si(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    return float_to_int(value, numpy_dtype(type), True)


@_op("fp_to_ui")
def fp_to_ui(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    return float_to_int(value, numpy_dtype(type), False)


def _int_to_float(value: np.ndarray, type: Type) -> np.ndarray:
    dtype = numpy_dtype(type)
    if dtype.char in "efd":
        return value.astype(dtype)
    # Through float64 an int32 is exact, and a longer one is made odd so that rounding is once.
    return cast_float(value.astype(np.float64), "fp64", _element_name(type))


@_op("si_to_fp")
def si_to_fp(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    if value.dtype == np.bool_:
        value = -value.view(np.int8)
    return _int_to_float(value, type)


@_op("ui_to_fp")
def ui_to_fp(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    return _int_to_float(value.view(np.uint8) if value.dtype == np.bool_ else unsigned(value), type)


@_op("bitcast")
def bitcast(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    dtype = numpy_dtype(type)
    if value.dtype == dtype:
        return value
    if dtype.itemsize != value.dtype.itemsize:
        raise SimulatorError("bitcast between types of different widths")
    if dtype == np.bool_:
        holds: np.ndarray = value != 0
        return holds
    return np.ascontiguousarray(value).view(dtype)


@_op("int_to_ptr", "ptr_to_int")
def pointer_cast(task: Task, value: np.ndarray, type: Type) -> np.ndarray:
    return value


@_op("addptr")
def addptr(task: Task, pointer: np.ndarray, offset: np.ndarray) -> np.ndarray:
    element = next(iter(task.op.operands())).type.element
    assert isinstance(element, PointerType)
    size = numpy_dtype(element.pointee).itemsize
    wide = offset.astype(np.int64)
    if size > 1:
        wide <<= size.bit_length() - 1
    return pointer + wide


@_op("clampf")
def clampf(
    task: Task, value: np.ndarray, low: np.ndarray, high: np.ndarray, propagate_nan: Any
) -> np.ndarray:
    return ELEMENTWISE["clampf"](value, low, high, propagate_nan)


@_op("fp4_to_fp")
def fp4_to_fp(task: Task, source: np.ndarray, type: Type, axis: int) -> np.ndarray:
    """Unpack the two e2m1 numbers of each byte along `axis`, the low half first."""
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    raw = np.broadcast_to(source, (source.shape[0], *dims_of(task))).view(np.uint8)
    both = np.stack([table[raw & 15], table[raw >> 4]], axis=axis + 2)
    shape = list(raw.shape)
    shape[axis + 1] *= 2
    return finish(both.reshape(shape), numpy_dtype(type))


# ---- dot ------------------------------------------------------------------------------------


@_op("dot")
def dot(
    task: Task, a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any, max_imprecise: int
) -> np.ndarray:
    a = np.broadcast_to(a, (a.shape[0], *dims_of(task, 0)))
    b = np.broadcast_to(b, (b.shape[0], *dims_of(task, 1)))
    # Over a blocked layout it is fused multiply-adds, whatever precision tensor cores would use.
    layout = task.op.results[0].type.layout
    return matmul(a, b, acc, None if isinstance(layout, BlockedLayout) else precision)
