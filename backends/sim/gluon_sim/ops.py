"""What the portable ops mean: name -> function of (task, *arguments as recorded).

Arguments arrive as the machine keeps values (see `machine`): a leading axis of programs or 1, then
the tensor's dims, each at its extent or 1. Results follow the same rule.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_core.layouts import BlockedLayout

from .arith import ELEMENTWISE
from .checks import initialised, inside
from .dtypes import (
    cast_float,
    compute,
    finish,
    float_to_int,
    int_cast,
    numpy_dtype,
    round_tf32,
    unsigned,
)
from .errors import DeviceAssertionError, OutOfBoundsError, SimulatorError, span_of
from .memory import RMW
from .program import MemDescType, PointerType, ScalarType, Type
from .shared import SharedView, derived

__all__ = ["OPS", "atomic_rmw", "matmul"]

OPS: dict[str, Callable[..., Any]] = {}


def _op(*names: str) -> Callable:
    def put(fn: Callable) -> Callable:
        for name in names:
            OPS[name] = fn
        return fn

    return put


def _full(task: Any, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The value with every tensor dim at its extent; the leading axis stays as it is."""
    return np.broadcast_to(value, (value.shape[0], *shape))


def _dims(task: Any, operand: int = 0) -> tuple[int, ...]:
    return list(task.op.operands())[operand].type.dims


# ---- programs, shapes -----------------------------------------------------------------------


@_op("get_program_id")
def get_program_id(task, axis):
    return task.batch.ids[axis][task.rows.index]


@_op("get_num_programs")
def get_num_programs(task, axis):
    return np.full(1, task.machine.grid[axis], np.int32)


@_op("make_range")
def make_range(task, type, start, end):
    return np.arange(start, end, dtype=np.int32)[None]


@_op("splat")
def splat(task, type, value):
    return value.reshape(-1, *([1] * len(type.dims)))


@_op("broadcast")
def broadcast(task, value, type):
    return value


@_op("convert_layout")
def convert_layout(task, type, value):
    return value


@_op("expand_dims")
def expand_dims(task, value, axis):
    return np.expand_dims(value, axis + 1)


@_op("unsplat")
def unsplat(task, value):
    return value.reshape(value.shape[0], -1)[:, 0]


@_op("reshape")
def reshape(task, value, shape):
    if value.size == value.shape[0]:
        return value.reshape(-1, *([1] * len(shape)))
    return _full(task, value, _dims(task)).reshape(value.shape[0], *shape)


@_op("trans")
def trans(task, value, order):
    return value.transpose(0, *(i + 1 for i in order))


@_op("join")
def join(task, a, b):
    shape = np.broadcast_shapes(a.shape, b.shape)
    return np.stack([np.broadcast_to(a, shape), np.broadcast_to(b, shape)], axis=-1)


@_op("split")
def split(task, value):
    if value.shape[-1] == 1:
        return value[..., 0], value[..., 0]
    return value[..., 0], value[..., 1]


@_op("cat")
def cat(task, a, b, type):
    count = max(a.shape[0], b.shape[0])
    a = np.broadcast_to(a, (count, *_dims(task, 0)))
    b = np.broadcast_to(b, (count, *_dims(task, 1)))
    return np.concatenate([a, b], axis=1)


@_op("gather")
def gather(task, source, indices, axis):
    shape = _dims(task, 0)
    extent = shape[axis]
    indices = inside(task, "gather", indices, extent, "tensor")
    count = max(source.shape[0], indices.shape[0])
    source = np.broadcast_to(source, (count, *shape))
    indices = np.broadcast_to(indices, (count, *_dims(task, 1)))
    return np.take_along_axis(source, indices.astype(np.int64), axis=axis + 1)


@_op("histogram")
def histogram(task, operand, bins, mask=None):
    count = max(operand.shape[0], mask.shape[0] if mask is not None else 1)
    shape = (count, *_dims(task))
    values = np.broadcast_to(operand, shape)
    live = np.broadcast_to(True if mask is None else mask, shape)
    values = inside(task, "histogram", np.where(live, values, 0), bins, "bins")
    row = np.arange(count).reshape(-1, *([1] * (len(shape) - 1)))
    at = (row * bins + values.astype(np.int64))[live]
    return np.bincount(at, minlength=count * bins).reshape(count, bins).astype(np.int32)


# ---- casts ----------------------------------------------------------------------------------


def _element_name(type: Type) -> str:
    element = type.element
    return element.name if isinstance(element, ScalarType) else "i64"


def _source_name(task: Any) -> str:
    return _element_name(next(iter(task.op.operands())).type)


@_op("fp_to_fp", "fp_ext", "fp_trunc")
def fp_to_fp(task, value, type, rounding=None):
    rounding = None if rounding is None else str(getattr(rounding, "name", rounding)).lower()
    return cast_float(value, _source_name(task), _element_name(type), rounding)


@_op("int_cast")
def cast_int(task, value, type, signed):
    return int_cast(value, numpy_dtype(type), bool(signed))


@_op("fp_to_si")
def fp_to_si(task, value, type):
    return float_to_int(value, numpy_dtype(type), True)


@_op("fp_to_ui")
def fp_to_ui(task, value, type):
    return float_to_int(value, numpy_dtype(type), False)


def _int_to_float(value: np.ndarray, type: Type) -> np.ndarray:
    dtype = numpy_dtype(type)
    if dtype.char in "efd":
        return value.astype(dtype)
    # Through float64 an int32 is exact, and a longer one is made odd so that rounding is once.
    return cast_float(value.astype(np.float64), "fp64", _element_name(type))


@_op("si_to_fp")
def si_to_fp(task, value, type):
    if value.dtype == np.bool_:
        value = -value.view(np.int8)
    return _int_to_float(value, type)


@_op("ui_to_fp")
def ui_to_fp(task, value, type):
    return _int_to_float(value.view(np.uint8) if value.dtype == np.bool_ else unsigned(value), type)


@_op("bitcast")
def bitcast(task, value, type):
    dtype = numpy_dtype(type)
    if value.dtype == dtype:
        return value
    if dtype.itemsize != value.dtype.itemsize:
        raise SimulatorError("bitcast between types of different widths")
    if dtype == np.bool_:
        return value != 0
    return np.ascontiguousarray(value).view(dtype)


@_op("int_to_ptr", "ptr_to_int")
def pointer_cast(task, value, type):
    return value


@_op("addptr")
def addptr(task, pointer, offset):
    element = next(iter(task.op.operands())).type.element
    assert isinstance(element, PointerType)
    size = numpy_dtype(element.pointee).itemsize
    wide = offset.astype(np.int64)
    if size > 1:
        wide <<= size.bit_length() - 1
    return pointer + wide


@_op("clampf")
def clampf(task, value, low, high, propagate_nan):
    return ELEMENTWISE["clampf"](value, low, high, propagate_nan)


# ---- dot ------------------------------------------------------------------------------------


def matmul(
    task: Any, a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any = None
) -> np.ndarray:
    """acc + a @ b over the last two dims, products exact, sums in the accumulator's type or wider.

    Args:
        precision: for float32 operands: "tf32" drops the low 13 mantissa bits of both, as the
            tensor cores do; "tf32x3" and "ieee" multiply in full.
    """
    kind = str(getattr(precision, "name", precision)).lower()
    if acc.dtype.kind == "i":
        # float64 holds every sum of 8-bit products exactly; only the wrap is left to do.
        product = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return acc + product.astype(np.int64).astype(acc.dtype)
    if acc.dtype == np.float64:
        return acc + np.matmul(a.astype(np.float64), b.astype(np.float64))
    if a.dtype == np.float32 and kind == "tf32":
        a, b = round_tf32(a), round_tf32(b)
    product = np.matmul(_widen(a), _widen(b))
    return finish(product + compute(acc), acc.dtype)


def _widen(x: np.ndarray) -> np.ndarray:
    if x.dtype == np.float32:
        return x
    names = {"bfloat16": "bf16", "float16": "fp16"}
    return (
        cast_float(x, names.get(x.dtype.name, ""), "fp32")
        if x.dtype.name in names
        else x.astype(np.float32)
    )


@_op("dot")
def dot(task, a, b, acc, precision, max_imprecise):
    a = np.broadcast_to(a, (a.shape[0], *_dims(task, 0)))
    b = np.broadcast_to(b, (b.shape[0], *_dims(task, 1)))
    # Over a blocked layout it is fused multiply-adds, whatever precision tensor cores would use.
    layout = task.op.results[0].type.layout
    return matmul(task, a, b, acc, None if isinstance(layout, BlockedLayout) else precision)


# ---- global memory --------------------------------------------------------------------------


def _pointee(task: Any) -> np.dtype:
    element = next(iter(task.op.operands())).type.element
    return numpy_dtype(element.pointee)


@_op("load")
def load(task, pointer, *policy):
    return task.memory.load(task, "load", pointer, _pointee(task), None, None)


@_op("masked_load")
def masked_load(task, pointer, mask, other):
    return task.memory.load(task, "load", pointer, _pointee(task), mask, other)


def _every(task: Any, pointer: np.ndarray) -> np.ndarray:
    """One address per program: a store or an atomic happens once for each of them."""
    if pointer.shape[0] == task.programs:
        return pointer
    return np.broadcast_to(pointer, (task.programs, *pointer.shape[1:]))


@_op("store")
def store(task, pointer, value, *policy):
    task.memory.store(task, "store", pointer, value, None)


@_op("masked_store")
def masked_store(task, pointer, value, mask):
    task.memory.store(task, "store", pointer, value, mask)


def _element_addresses(task: Any, pointer: np.ndarray, operand: int) -> np.ndarray:
    return np.broadcast_to(pointer, (task.programs, *_dims(task, operand)))


def atomic_rmw(
    task: Any, op: Any, kind: str, pointer: np.ndarray, value: np.ndarray, mask: Any
) -> np.ndarray:
    """One read-modify-write per element, lower programs first; the old values."""
    update, in_place = RMW[kind]
    if kind == "fadd" and value.dtype.char in "efd":
        in_place = np.add
    used = True
    if in_place is not None:
        used = _is_used(op)
    addresses = np.broadcast_to(
        pointer, (task.programs, *np.broadcast_shapes(pointer.shape[1:], value.shape[1:]))
    )
    return task.memory.atomic(
        task,
        f"atomic_{kind}",
        addresses,
        mask,
        value.dtype,
        update,
        (value,),
        None if used else in_place,
    )


def _is_used(op: Any) -> bool:
    """Does anything read the op's result? Looked up once, kept with the op."""
    known = op.attrs.get("_used")
    if not op.results:
        return False
    if known is None:
        target = op.results[0]
        region = op.block.region
        while region.get_parent_region() is not None:
            region = region.get_parent_region()
        known = _reads(region, target)
        op.attrs["_used"] = known
    return known


def _reads(region: Any, target: Any) -> bool:
    for block in region.blocks:
        for op in block.ops:
            if any(v is target for v in op.operands()):
                return True
            if any(_reads(r, target) for r in op.regions):
                return True
    return False


@_op("atomic_rmw")
def atomic_rmw_op(task, kind, pointer, value, mask):
    pointer = _element_addresses(task, pointer, 0)
    return atomic_rmw(task, task.op, kind, pointer, value, mask)


@_op("atomic_cas")
def atomic_cas(task, pointer, compare, value):
    def update(old, compare, value):
        return np.where(old == compare, value, old)

    addresses = _element_addresses(task, pointer, 0)
    return task.memory.atomic(
        task, "atomic_cas", addresses, None, value.dtype, update, (compare, value)
    )


@_op("atomic_load")
def atomic_load(task, pointer, mask):
    return task.memory.load(task, "atomic_load", pointer, _pointee(task), mask, None)


@_op("atomic_store")
def atomic_store(task, pointer, value, mask):
    task.memory.store(task, "atomic_store", pointer, value, mask)


@_op("atomic_poll")
def atomic_poll(task, pointer, expected, timeout=None):
    """Waits until the memory holds what is expected; false when the time is over first.

    Time passes only when nothing else can happen.
    """

    def now():
        return task.memory.load(task, "atomic_poll", pointer, _pointee(task), None, None)

    def ready():
        return bool((now() == expected).all())

    if not ready():
        wait = task.blocked(ready, "memory to hold the polled value")
        wait.expires = timeout is not None
        yield wait
    return now() == expected


# ---- shared memory --------------------------------------------------------------------------


@_op("local_alloc")
def local_alloc(task, type, value=None):
    assert isinstance(type, MemDescType)
    return task.allocate_buffer(type, value)


@_op("local_dealloc")
def local_dealloc(task, view):
    """Says that the buffer is in use up to here; it may be used later too, and then lives longer."""


@_op("local_load")
def local_load(task, type, view, *token):
    return task.load_shared(view)


@_op("local_store")
def local_store(task, view, value):
    task.store_shared(view, value)


@_op("memdesc_index")
def memdesc_index(task, type, view, index):
    count = view.shape[0]
    try:
        return view.index(type, inside(task, "memdesc_index", index, count, "buffer"))
    except OutOfBoundsError as error:  # told when it is used: where a predicate holds
        error.span = span_of(task.op.loc)
        found = view.index(type, index % count)
        bad = (index < 0) | (index >= count)
        found.outside = (bad[:1] if bad.all() else bad, error)
        return found


@_op("memdesc_subslice")
def memdesc_subslice(task, type, view, offsets):
    return task.slice_buffer(view, type, offsets)


@_op("memdesc_trans")
def memdesc_trans(task, view, order):
    return view.with_type(task.op.results[0].type, derived(view.table, "trans", *order))


@_op("memdesc_reshape")
def memdesc_reshape(task, view, shape):
    return view.with_type(task.op.results[0].type, derived(view.table, "reshape", *shape))


@_op("memdesc_reinterpret")
def memdesc_reinterpret(task, type, view):
    return view.reinterpret(type, task.machine.settings.bounds)


def _positions(task: Any, view: SharedView, indices: np.ndarray, axis: int) -> np.ndarray:
    indices = inside(task, task.op.name, indices, view.shape[axis], "buffer")
    return view.positions(task.rows, indices, axis)


def _touch(task: Any, kind: str, view: SharedView, at: np.ndarray, live: Any = None) -> None:
    if task.agent is not None and task.machine.tracking is not None:
        task.machine.tracking.shared_at(task, kind, view, at, live)


def _flat(view: SharedView) -> np.ndarray:
    return view.buffer.view(view.dtype).reshape(-1)


@_op("local_gather")
def local_gather(task, type, view, indices, axis):
    indices = np.broadcast_to(indices, (indices.shape[0], *_dims(task, 1)))
    at = _positions(task, view, indices, axis)
    buffer = view.buffer
    _touch(task, "read", view, at)
    if buffer.unwritten is not None:
        missing = buffer.marks(view.dtype.itemsize).reshape(-1)[at] != 0
        initialised(task, "local_gather", buffer, missing)
    return _flat(view)[at]


@_op("local_scatter")
def local_scatter(task, view, values, indices, axis):
    indices = np.broadcast_to(indices, (indices.shape[0], *_dims(task, 2)))
    at = _positions(task, view, indices, axis)
    _touch(task, "write", view, at)
    _flat(view)[at] = np.broadcast_to(values, at.shape)
    if view.buffer.unwritten is not None:
        view.buffer.marks(view.dtype.itemsize).reshape(-1)[at] = 0
        view.buffer.wrote(at.size * view.dtype.itemsize)
    task.memory.version += 1


@_op("local_atomic_scatter_rmw")
def local_atomic_scatter_rmw(task, kind, view, values, indices, mask, axis):
    from .memory import apply_atomic

    indices = np.broadcast_to(indices, (indices.shape[0], *_dims(task, 2)))
    at = _positions(task, view, indices, axis)
    live = np.ones(at.shape, bool) if mask is None else np.broadcast_to(mask, at.shape)
    _touch(task, "update", view, at, live)
    if view.buffer.unwritten is not None:
        missing = view.buffer.marks(view.dtype.itemsize).reshape(-1)[at] != 0
        initialised(task, task.op.name, view.buffer, missing & live)
    out = np.zeros(at.shape, view.dtype)
    update, _ = RMW[kind]
    old, _ = apply_atomic(_flat(view), at[live], update, (np.broadcast_to(values, at.shape)[live],))
    out[live] = old
    task.memory.version += 1
    return out


@_op("cluster_barrier", "cluster_sync")
def cluster_barrier(task, relaxed=False):
    if not relaxed:
        task.cluster_release()
    task.cluster_acquire()


@_op("barrier", "assume")
def nothing(task, *args, **kwargs):
    """Warps of one partition run in step, so a barrier among them has nothing to wait for."""


# ---- messages -------------------------------------------------------------------------------


@_op("print")
def device_print(task, prefix, hexadecimal, values, signed=()):
    import sys

    out = task.machine.output or sys.stdout
    types = [v.type for v in task.op.operands()]
    part = f" {task.name.split(' of ')[0]}" if task.name.startswith("partition") else ""
    for position in range(task.programs):
        x, y, z = task.program_id(position)
        head = f"pid ({x}, {y}, {z}){part}{prefix}"
        if not values:
            print(head, file=out)
            continue
        texts = []
        for i, (value, type) in enumerate(zip(values, types)):
            shown = np.broadcast_to(value, (value.shape[0], *type.dims))
            shown = shown[position if value.shape[0] > 1 else 0]
            if i < len(signed) and not signed[i] and shown.dtype.kind == "i":
                shown = unsigned(np.ascontiguousarray(shown))
            if shown.dtype.kind not in "biuf":
                shown = shown.astype(np.float32)
            if hexadecimal and shown.dtype.kind in "iu":
                texts.append(np.array2string(shown, formatter={"int": hex}, separator=", "))
            elif shown.ndim == 0:
                texts.append(str(shown[()]))
            else:
                texts.append(np.array2string(shown, separator=", "))
        print(f"{head}{', '.join(texts)}", file=out)


@_op("breakpoint")
def kernel_breakpoint(task):
    """A debugger stops here; see `debug`."""


@_op("assert")
def device_assert(task, condition, message):
    if condition.all() or not task.machine.settings.assertions:
        return
    bad = np.broadcast_to(~condition, (condition.shape[0], *_dims(task)))
    first = np.unravel_index(int(np.argmax(bad)), bad.shape)
    element = tuple(int(i) for i in first[1:])
    where = f"program {task.program_id(int(first[0]))}"
    if element:
        where = f"element {element} of {where}"
    raise DeviceAssertionError(
        f"device_assert failed in {where}" + (f": {message}" if message else ""),
        report="assertion.device",
        program=task.program_id(int(first[0])),
        element=element,
    )


@_op("inline_asm")
def inline_asm(task, asm, constraints, args, *rest):
    raise SimulatorError(
        "inline assembly is not simulated",
        got=repr(asm.strip().splitlines()[0] if asm.strip() else asm),
        remedy="Give the kernel another path where `gl.target` is simulated, or register a "
        "reference model for this text in a plugin's `INLINE_ASM`.",
    )


@_op("extern_elementwise")
def extern_elementwise(task, library, path, symbol, args, type, is_pure):
    fn: Optional[Callable] = task.machine.externs(symbol)
    if fn is None:
        raise SimulatorError(
            f"the simulator has no model of the library function `{symbol}`",
            remedy="A plugin can add it to the `EXTERNS` of its reference module.",
        )
    dtype = numpy_dtype(type)
    out = np.asarray(fn(*(compute(a) if a.dtype.kind not in "biu" else a for a in args)))
    return finish(out, dtype) if dtype.kind not in "biu" else out.astype(dtype)


@_op("fp4_to_fp")
def fp4_to_fp(task, source, type, axis):
    """Two e2m1 numbers per byte, the low half first, side by side along `axis`."""
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    raw = np.broadcast_to(source, (source.shape[0], *_dims(task))).view(np.uint8)
    both = np.stack([table[raw & 15], table[raw >> 4]], axis=axis + 2)
    shape = list(raw.shape)
    shape[axis + 1] *= 2
    return finish(both.reshape(shape), numpy_dtype(type))
