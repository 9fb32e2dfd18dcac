"""Reductions, scans and elementwise maps with the kernel's own combine function."""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

from gluon_sim.executor.compile import CompiledBlock, CompiledFunction, Slot, Step
from gluon_sim.executor.stepping import run_pure
from gluon_sim.executor.task import Task
from gluon_sim.memory.turns import Turns

__all__ = ["REGIONS"]

# Combine functions that NumPy has a reduction for, in types that it computes in exactly as we do.
_UFUNCS = {
    "add": np.add, "fadd": np.add, "mul": np.multiply, "fmul": np.multiply,
    "maxsi": np.maximum, "minsi": np.minimum, "maximumf": np.maximum, "minimumf": np.minimum,
    "maxnumf": np.fmax, "minnumf": np.fmin, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _simple_ufunc(task: Task, step: Step) -> Optional[np.ufunc]:
    """Return the ufunc behind a combine region of one op on its two arguments in order."""
    known = step.op.ufunc
    if known is None:
        known = step.op.ufunc = (_look(task.machine.program.functions, step.blocks[0][0]),)
    return known[0]


def _look(functions: dict[str, CompiledFunction], block: CompiledBlock) -> Optional[np.ufunc]:
    if len(block.steps) != 2 or len(block.arguments) != 2:
        return None
    work, leave = block.steps
    returned = leave.plan[0]
    if len(returned) != 1 or len(work.outs) != 1 or returned[0] != work.outs[0]:
        return None
    if work.op.name == "call":
        if list(work.plan[1]) != list(block.arguments):
            return None
        callee = functions[work.plan[0].name]
        return _look(functions, callee.blocks[0]) if len(callee.blocks) == 1 else None
    operands = [int(p) for p in work.plan if isinstance(p, Slot)]
    if operands != list(block.arguments):
        return None
    return _UFUNCS.get(work.op.name)


def _combine(
    task: Task, block: CompiledBlock, left: Sequence[np.ndarray], right: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the region over all elements of two equally shaped groups of arrays."""
    shape = left[0].shape
    count = left[0].size
    if not count:
        return list(left)
    args = [np.ascontiguousarray(x).reshape(-1) for x in (*left, *right)]
    out = run_pure(task, block, args, count)
    return [np.broadcast_to(o, count).reshape(shape) for o in out]


def _operands(task: Task, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """At full extent, with a common leading axis."""
    dims = next(iter(task.op.operands())).type.dims
    count = max(v.shape[0] for v in values)
    return [np.broadcast_to(v, (count, *dims)) for v in values]


def _native(x: np.ndarray) -> bool:
    # float16 sums must round at every step; NumPy's reduction would keep a wider sum.
    return x.dtype.kind in "bi" or x.dtype in (np.float32, np.float64)


def _part(
    values: Sequence[np.ndarray], axis: int, start: int, stop: int, stride: int = 1
) -> list[np.ndarray]:
    cut = (slice(None),) * axis + (slice(start, stop, stride),)
    return [v[cut] for v in values]


def reduce(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    values = _operands(task, [frame.get(a) for a in step.plan[0]])
    axis = step.plan[1] + 1
    ufunc = _simple_ufunc(task, step)
    exact = ufunc in (np.maximum, np.minimum, np.fmax, np.fmin)
    if ufunc is not None and len(values) == 1 and (_native(values[0]) or exact):
        x = values[0]
        if x.dtype == np.bool_ and ufunc is np.add:
            ufunc = np.logical_xor
        if x.dtype.kind in "iuf" or x.dtype == np.bool_:
            if x.dtype == np.bool_:
                x = (np.logical_and if ufunc is np.multiply else ufunc).reduce(x, axis=axis)
            else:
                x = ufunc.reduce(x, axis=axis, dtype=x.dtype)
            frame.put(step.outs[0], x)
            return
            yield
    block = step.blocks[0][0]
    while (extent := values[0].shape[axis]) > 1:
        even = extent // 2 * 2
        # Neighbours combine, so a combine function need not commute.
        paired = _combine(
            task, block, _part(values, axis, 0, even, 2), _part(values, axis, 1, even, 2)
        )
        if even < extent:
            rest = _part(values, axis, even, extent)
            paired = [np.concatenate([p, r], axis=axis) for p, r in zip(paired, rest)]
        values = paired
    for slot, value in zip(step.outs, values):
        frame.put(slot, value.squeeze(axis))
    return
    yield


def scan(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    values = _operands(task, [frame.get(a) for a in step.plan[0]])
    axis, reverse = step.plan[1] + 1, bool(step.plan[2])
    if reverse:
        values = [np.flip(v, axis) for v in values]
    ufunc = _simple_ufunc(task, step)
    if (
        ufunc is not None
        and len(values) == 1
        and _native(values[0])
        and values[0].dtype != np.bool_
    ):
        out = [ufunc.accumulate(values[0], axis=axis, dtype=values[0].dtype)]
    else:
        moved = [np.moveaxis(v, axis, 0) for v in values]
        out = [np.moveaxis(v, 0, axis) for v in _prefix(task, step.blocks[0][0], moved)]
    if reverse:
        out = [np.flip(v, axis) for v in out]
    for slot, value in zip(step.outs, out):
        frame.put(slot, value)
    return
    yield


def _prefix(task: Task, block: CompiledBlock, values: list[np.ndarray]) -> list[np.ndarray]:
    """Inclusive scan along the first axis: pairs, the scan of the pairs, and the values between."""
    extent = values[0].shape[0]
    if extent == 1:
        return values
    even = extent // 2 * 2
    pairs = _combine(task, block, [v[0:even:2] for v in values], [v[1:even:2] for v in values])
    sums = _prefix(task, block, pairs)
    out = [np.empty(v.shape, v.dtype) for v in values]
    between = _combine(
        task, block, [s[: (extent - 1) // 2] for s in sums], [v[2:extent:2] for v in values]
    )
    for o, v, s, b in zip(out, values, sums, between):
        o[0] = v[0]
        o[1:even:2] = s
        o[2:extent:2] = b
    return out


def map_elementwise(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    values = _operands(task, [frame.get(a) for a in step.plan[0]])
    pack = int(step.plan[1])
    shape = values[0].shape
    args = []
    for value in values:
        packed = np.ascontiguousarray(value).reshape(-1, pack)
        args += [np.ascontiguousarray(packed[:, j]) for j in range(pack)]
    count = values[0].size // pack
    out = run_pure(task, step.blocks[0][0], args, count)
    for i, slot in enumerate(step.outs):
        parts = [np.broadcast_to(o, count) for o in out[i * pack : (i + 1) * pack]]
        frame.put(slot, np.stack(parts, axis=-1).reshape(shape))
    return
    yield


REGIONS = {"reduce": reduce, "scan": scan, "map_elementwise": map_elementwise}
