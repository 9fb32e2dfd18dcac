"""Execute a program without its floating-point data: its control flow, addresses, barriers and copies are real.

Floating-point numbers from memory are zeros, which are kept once for a whole tensor; sums of products are zeros, too; stores of
floating-point numbers change nothing. Integers are loaded and stored: tables of sizes, schedules and counters steer
programs.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_sim.executor.compile import Step
from gluon_sim.executor.task import Task
from gluon_sim.memory.promise import promise
from gluon_sim.tools.watcher import Launch, Observed
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.types import ScalarType

__all__ = ["HollowLaunch"]


def _hollow(dtype: np.dtype) -> bool:
    return dtype.kind not in "biu"


class _Machine(Observed):
    """The machine of a vendor's model, which moves no floating-point numbers."""

    def dot(self, a: Any, b: Any, acc: np.ndarray, precision: Any = None) -> np.ndarray:
        self._tell("dot", a, b, acc, precision)
        return np.zeros((), acc.dtype)

    def promise(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        if not _hollow(dtype):
            return promise((self.programs, *shape), dtype)
        return promise((1,) * (len(shape) + 1), dtype)

    def load_shared(self, view: Any, *rest: Any, **named: Any) -> np.ndarray:
        dtype = view.dtype
        if _hollow(dtype):
            return np.broadcast_to(np.zeros((), dtype), (1, *view.shape))
        value: np.ndarray = self._task.load_shared(view, *rest, **named)
        return value

    def store_shared(self, view: Any, values: np.ndarray, *rest: Any, **named: Any) -> None:
        if not _hollow(view.dtype):
            self._task.store_shared(view, values, *rest, **named)

    def load_global(self, addresses: np.ndarray, type: Any, *rest: Any, **named: Any) -> np.ndarray:
        dtype = type if isinstance(type, np.dtype) else numpy_dtype(type)
        if not _hollow(dtype):
            value: np.ndarray = Observed.__getattr__(self, "load_global")(
                addresses, type, *rest, **named
            )
            return value
        self._tell("load_global", addresses, dtype, *rest, *named.values())
        return np.broadcast_to(np.zeros((), dtype), addresses.shape)

    def store_global(self, addresses: np.ndarray, values: np.ndarray, mask: Optional[np.ndarray] = None) -> None:  # fmt: skip
        if not _hollow(values.dtype):
            Observed.__getattr__(self, "store_global")(addresses, values, mask)
            return
        self._tell("store_global", addresses, values, mask)


def _zero(task: Task) -> np.ndarray:
    type = task.op.results[0].type
    return np.zeros((1,) * (len(type.dims) + 1), numpy_dtype(type))


def _dot(task: Task, *args: Any, **named: Any) -> np.ndarray:
    return _zero(task)


def _skipped(task: Task, *args: Any, **named: Any) -> None:
    """Store nothing."""


class HollowLaunch(Launch):
    """A watched launch whose program is executed without floating-point data."""

    def meaning(self, step: Step) -> Callable[..., Any]:
        op = step.op
        if op.name == "dot":
            return _dot
        if op.name in ("load", "masked_load", "local_load", "local_gather") and op.results:
            element: Any = op.results[0].type.element
            if isinstance(element, ScalarType) and element.is_float and op.results[0].type.dims:
                return _dot
        if op.name in ("store", "masked_store", "local_store", "local_scatter"):
            value = list(op.operands())[1].type
            element = value.element
            if isinstance(element, ScalarType) and element.is_float:
                return _skipped
        return step.run

    def machine_of(self, task: Task) -> Any:
        return _Machine(self, task)
