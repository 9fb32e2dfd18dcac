"""Compile, count, check and time one configuration, in a process of its own.

`serve` answers whoever started the process (`gluon_tune.isolated`): one method of `Workbench` after the other.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from typing import Any, Callable, Mapping, Optional

from gluon_core.errors import GluonError
from gluon_core.processes import Link
from gluon_tune import bench
from gluon_tune.spaces import Config
from gluon_tune.task import Reference, Task
from gluon_tune.tuned import versions
from gluon_tune.tuned.lookup import bucket_of, call_of, fixed_of

__all__ = ["Workbench", "serve"]

Shape = Mapping[str, Any]


class Workbench:
    """A task on a target.

    Args:
        reference: to the task.
        target: the hardware, such as `nvidia:sm_90`; None for the device that is there.
        index: which device to measure on; None to measure nothing.
    """

    def __init__(self, reference: Reference, target: Optional[str], index: Optional[int]):
        self.target = bench.target_of(target)
        if index is not None:  # a driver takes its time with a device: meanwhile modules are read
            threading.Thread(target=bench.begin, args=(self.target, index), daemon=True).start()
        self.task: Task = reference.load()
        self.index = index
        self._args: dict[str, Any] = {}
        self._wanted: dict[str, Any] = {}
        self._ready: dict[int, Callable[[], Any]] = {}

    def about(self, shape: Shape) -> dict[str, Any]:
        """Return the parts of a `Key` for calls of this shape, the default configuration and the peaks."""
        task, target = self.task, self.target
        args = task.arguments(bench.Placeholders(), **shape)
        config = task.start(target) or next(iter(task.searched), None)
        whole = task.whole(config or {}, target)
        parameters = task.function.dispatcher.parameters
        names = {p.name for p in parameters if p.is_constexpr}
        values = [*task.values(args, whole)]
        values += [None] * (len(parameters) - len(values))
        return {
            "kernel": task.identity,
            "name": task.name,
            "target": str(target),
            "device": "" if self.index is None else bench.device_name(target, self.index),
            "bucket": bucket_of(parameters, values),
            "call": call_of(parameters, values),
            "fixed": fixed_of(
                {n: v for n, v in whole.items() if n in names and n not in task.searched.values}
            ),
            "versions": versions(),
            "options": {
                n: v for n, v in whole.items() if n not in names and n not in task.searched.values
            },
            "default": task.start(target),
            "peaks": dict(target.architecture.peaks),
        }

    def compile(self, shape: Shape, config: Config) -> dict[str, Any]:
        """Compile for a call and return the facts of the machine code."""
        whole = self.task.whole(config, self.target)
        args = self.task.arguments(bench.Placeholders(), **shape)
        started = time.monotonic()
        compiled = self.task.function.warmup(
            *self.task.values(args, whole), grid=(1,), target=self.target, **whole
        )
        facts: dict[str, Any] = {"compile_seconds": time.monotonic() - started}
        report = compiled.report()
        facts.update(
            registers=report.registers,
            spills=report.spills,
            shared_memory=report.shared_memory,
            instructions=report.instruction_count,
            occupancy=report.occupancy,
            num_warps=int(compiled.metadata.num_warps) * int(compiled.metadata.num_ctas),
        )
        return facts

    def conflicts(self, shape: Shape, config: Config) -> int:
        """Return the most passes over the banks that one access of the kernel to shared memory takes."""
        whole = self.task.whole(config, self.target)
        args = self.task.arguments(bench.Placeholders(), **shape)
        values = self.task.values(args, whole)
        return bench.conflicts(self.task.function, values, self.target, whole)

    def bound(self, shape: Shape, config: Config) -> Optional[float]:
        """Seconds that the target's peaks leave a configuration; None where the task does not say."""
        whole = self.task.whole(config, self.target)
        args = self.task.arguments(bench.Placeholders(), **shape)
        peaks = self.target.architecture.peaks
        times = []
        if self.task.bytes_moved is not None and "global" in peaks:
            times.append(_counted(self.task.bytes_moved, args, whole) / peaks["global"])
        units = [peak for name, peak in peaks.items() if name not in ("global", "shared")]
        if self.task.flops is not None and units:
            times.append(_counted(self.task.flops, args, whole) / max(units))
        return max(times) if times else None

    def peaks(self) -> dict[str, float]:
        """Return the peaks of one device of the target."""
        return dict(self.target.architecture.peaks)

    def roofline(self, shape: Shape, config: Config) -> dict[str, Any]:
        """Return the simulator's counts of one launch."""
        whole = self.task.whole(config, self.target)

        def run(simulated: Any) -> None:
            args = self.task.arguments(bench.Arrays(simulated), **(self.task.small or shape))
            grid = self.task.grid(args, whole)
            values = self.task.values(args, whole)
            self.task.function[grid](*values, target=simulated, **whole)
            self._check(args, f"simulated {self.task.small or shape}")

        return bench.roofline(self.target, run)

    def predicted(self, shape: Shape, config: Config) -> dict[str, Any]:
        """Return the model's prediction of one launch."""
        whole = self.task.whole(config, self.target)
        text = f"untouched {shape!r}"
        if text not in self._args:
            self._args.clear()
            self._args[text] = self.task.arguments(bench.Untouched(self.target), **shape)
        args = self._args[text]

        def run(simulated: Any) -> None:
            grid, values = self.task.grid(args, whole), self.task.values(args, whole)
            self.task.function[grid](*values, target=simulated, **whole)

        return bench.predicted(self.target, run)

    def prepare(self, shape: Shape, config: Config, number: int) -> float:
        """Load a configuration on the device, run it, and compare its result; seconds of one launch.

        Raises:
            WrongResultError: the result is another one than the task's reference.
        """
        text = repr(shape)
        if text not in self._args:
            self._args.clear()
            self._ready.clear()
            arrays = bench.Arrays(self.target, self.index)
            self._args[text] = self.task.arguments(arrays, **shape)
        args = self._args[text]
        whole = self.task.whole(config, self.target)
        values, grid = self.task.values(args, whole), self.task.grid(args, whole)
        handle = self.task.function.prepare(*values, grid=grid, **whole)

        def run() -> None:
            handle(*bound)

        bound = self.task.function.dispatcher.bind(values, whole)[0]
        if self.task.output is not None:
            _spoil(args[self.task.output])
        run()
        self._check(args, text)
        self._ready[number] = run
        return min(bench.times(run, self.target, 3, warmup=1))

    def _check(self, args: Mapping[str, Any], text: str) -> None:
        if self.task.reference is None:
            return
        if text not in self._wanted:
            self._wanted[text] = self.task.reference(args)
        problem = self.task.difference(args, self._wanted[text])
        if problem:
            raise WrongResultError(problem)

    def sample(self, number: int, launches: int) -> list[float]:
        """Seconds of each of some launches of a configuration that was prepared."""
        return bench.times(self._ready[number], self.target, launches)

    def facts(self) -> dict[str, Any]:
        return bench.device_facts(self.target, self.index or 0)

    def devices(self) -> int:
        """Return the number of devices of the target."""
        return bench.device_count(self.target)


class WrongResultError(GluonError):
    """A configuration computes something else than the task's reference."""


def _counted(function: Callable[..., float], args: Mapping[str, Any], config: Config) -> float:
    several = len(inspect.signature(function).parameters) > 1
    return float(function(args, config) if several else function(args))


def _spoil(array: Any) -> None:
    """Fill with NaN, where the type has it: results of an earlier configuration must not count."""
    kind = str(array.dtype)
    if "float8" not in kind and "float" in kind:
        array.fill_(float("nan")) if hasattr(array, "fill_") else array.fill(float("nan"))


# -- serving -------------------------------------------------------------------------------------


def serve(link: Link) -> None:
    """Answer calls until nobody is there to make any."""
    workbench: Optional[Workbench] = None
    while (call := link.next(math.inf)) is not None:
        method, arguments = call
        try:
            if method == "open":
                workbench = None  # release its device memory first
                workbench = Workbench(*arguments)
                link.answer("ok")
            else:
                link.answer("ok", getattr(workbench, method)(*arguments))
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            link.answer("error", (type(error).__name__, first, isinstance(error, GluonError)))
