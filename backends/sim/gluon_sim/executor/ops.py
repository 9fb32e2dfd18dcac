"""The semantics of the portable ops: name -> function of (task, *arguments as recorded).

Arguments arrive as the machine keeps values (see `frame`): a leading axis of programs or 1, then
the tensor's dims, each at its extent or 1. Results follow the same rule.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Sequence

import numpy as np

from gluon_sim.errors import DeviceAssertionError, SimulatorError
from gluon_sim.executor.accesses import MEMORY_OPS
from gluon_sim.executor.pipelines import PIPELINE_OPS
from gluon_sim.executor.task import Task
from gluon_sim.executor.tensors import TENSOR_OPS, dims_of
from gluon_sim.tracing.arith import entering
from gluon_sim.tracing.dtypes import compute, finish, numpy_dtype, unsigned
from gluon_sim.tracing.types import Type

__all__ = ["OPS"]

OPS: dict[str, Callable[..., Any]] = {**TENSOR_OPS, **MEMORY_OPS, **PIPELINE_OPS}
_op = entering(OPS)


# ---- barriers -------------------------------------------------------------------------------


@_op("cluster_barrier", "cluster_sync")
def cluster_barrier(task: Task, relaxed: bool = False) -> None:
    if not relaxed:
        task.cluster_release()
    task.cluster_acquire()


@_op("barrier", "scope")
def nothing(task: Task, *args: Any, **kwargs: Any) -> None:
    """Warps of one partition run in step, so a barrier among them has nothing to wait for."""


# ---- messages -------------------------------------------------------------------------------


@_op("print")
def device_print(
    task: Task,
    prefix: str,
    hexadecimal: bool,
    values: Sequence[np.ndarray],
    signed: Sequence[bool] = (),
) -> None:
    out = task.machine.output or sys.stdout
    types = [v.type for v in task.op.operands()]
    prefix = prefix.replace("%%", "%")
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
def kernel_breakpoint(task: Task) -> None:
    """Stop for a debugger; see `debug`."""


@_op("assert")
def device_assert(task: Task, condition: np.ndarray, message: str) -> None:
    if condition.all() or not task.machine.settings.assertions:
        return
    bad = np.broadcast_to(~condition, (condition.shape[0], *dims_of(task)))
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


@_op("assume")
def assume(task: Task, condition: np.ndarray) -> None:
    if condition.all() or not task.machine.settings.assertions:
        return
    program = task.program_id(int(np.argmin(condition.reshape(-1))))
    raise DeviceAssertionError(
        f"`gl.assume` is false in program {program}: the compiler may rely on it",
        report="assertion.device",
        program=program,
    )


@_op("extern_elementwise")
def extern_elementwise(
    task: Task,
    library: str,
    path: str,
    symbol: str,
    args: Sequence[np.ndarray],
    type: Type,
    is_pure: bool,
) -> np.ndarray:
    fn = task.machine.models.extern(symbol)
    if fn is None:
        raise SimulatorError(
            f"the simulator has no model of the library function `{symbol}`",
            remedy="A plugin can add it to the `EXTERNS` of its reference module.",
        )
    dtype = numpy_dtype(type)
    out = np.asarray(fn(*(compute(a) if a.dtype.kind not in "biu" else a for a in args)))
    return finish(out, dtype) if dtype.kind not in "biu" else out.astype(dtype)
