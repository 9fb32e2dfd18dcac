"""Describe example kernels for the demo, the tests and the benchmarks."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_report.differential import Difference, run_both
from gluon_tune import Arrays, Placeholders, device_target, numpy_of, times

__all__ = [
    "Arrays",
    "Check",
    "Example",
    "Placeholders",
    "device_target",
    "do_bench",
    "measure",
]


@dataclass(frozen=True)
class Check:
    """The outcome of running an example once: `problem` is None when the result was right."""

    seconds: float
    problem: Optional[str] = None


@dataclass(frozen=True)
class Example:
    """A kernel with the means to call, check and measure it.

    Args:
        name: its name in tables.
        kernel: the jit function, perhaps wrapped by `triton.autotune`.
        arguments: `f(new, large) -> {parameter: array or int}` in the order of the parameters;
            `new` is an `Arrays` or `Placeholders`. Small ones suit a simulator; they leave partial
            blocks, so that masks are tested.
        grid: `f(args, config) -> grid`.
        config: `f(warp_size, **choices) -> {constexpr or option: value}`.
        reference: `f(args) -> array`, the right result from NumPy arguments.
        device_reference: `f(args) -> tensor`, the same from torch's on a device, for large arguments
            that NumPy needs minutes for.
        output: the parameter that holds the result.
        large_config: `config` for the large arguments, where it differs.
        choices: `f(target) -> choices` of the large config on that target, where none are given.
        bytes_moved: `f(args) -> bytes` of global memory that must be read and written.
        flops: `f(args) -> floating point operations`.
        requires: capabilities without which the kernel cannot be compiled.
        operands: `f(args, config) -> the kernel's arguments`, where they are not `args` as they
            stand, such as descriptors of the arrays.
        tolerance: relative to the largest element of the result; 0 wants equality.
        large_tolerance: the tolerance for the large arguments, where errors grow with their size.
        any_order: the result depends on the order in which programs add to it, so that two runs
            agree within the tolerance alone.
    """

    name: str
    kernel: Any
    arguments: Callable[..., dict[str, Any]]
    grid: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
    config: Callable[..., dict[str, Any]]
    reference: Callable[[Mapping[str, Any]], Any]
    output: str
    large_config: Optional[Callable[..., dict[str, Any]]] = None
    bytes_moved: Optional[Callable[[Mapping[str, Any]], int]] = None
    flops: Optional[Callable[[Mapping[str, Any]], int]] = None
    requires: tuple[str, ...] = ()
    tolerance: float = 0.0
    large_tolerance: Optional[float] = None
    any_order: bool = False
    device_reference: Optional[Callable[[Mapping[str, Any]], Any]] = None
    operands: Optional[Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[Any]]] = None
    choices: Optional[Callable[[Target], Mapping[str, Any]]] = None

    def values(self, args: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the kernel's arguments."""
        return tuple(args.values() if self.operands is None else self.operands(args, config))

    def lacks(self, target: Target) -> tuple[str, ...]:
        """Return the capabilities that the kernel needs and `target` does not have."""
        return tuple(c for c in self.requires if not target.has(c))

    def configure(self, target: Target, large: bool = False, **choices: Any) -> dict[str, Any]:
        make = self.large_config if large and self.large_config else self.config
        if large and self.choices is not None:
            choices = {**self.choices(target), **choices}
        return make(target.warp_size, **choices)

    def launch(self, args: Mapping[str, Any], config: Mapping[str, Any], **options: Any) -> Any:
        """Launch with `args`; `options` such as `target=` go along. Returns the compiled kernel."""
        return self.launcher(args, config, **options)()

    def launcher(
        self, args: Mapping[str, Any], config: Mapping[str, Any], **options: Any
    ) -> Callable[[], Any]:
        """Return a function that launches with `args`, whose operands and grid are made once."""
        run, values = self.kernel[self.grid(args, config)], self.values(args, config)
        return lambda: run(*values, **config, **options)

    def check(self, target: Target, large: bool = False) -> Check:
        """Run on `target` and compare with the reference."""
        args = self.arguments(Arrays(target), large)
        config = self.configure(target, large)
        started = time.perf_counter()
        self.launch(args, config, target=target)
        got = numpy_of(args[self.output])
        seconds = time.perf_counter() - started
        if large and self.device_reference is not None and not target.simulated:
            wanted = numpy_of(self.device_reference(args))
        else:
            wanted = self.reference({name: numpy_of(value) for name, value in args.items()})
        return Check(seconds, self.difference(got, wanted, large))

    def compare(self, one: Target, other: Target) -> list[Difference]:
        """Run on both targets and compare all arrays."""

        def launch(args: Mapping[str, Any], target: Target) -> None:
            self.launch(args, self.configure(target), target=target)

        return run_both(launch, self.arguments(Arrays(one), False), one, other)

    def difference(self, got: Any, wanted: Any, large: bool = False) -> Optional[str]:
        """Return the reason why the result `got` is wrong; None where it is right."""
        wanted = np.asarray(wanted).reshape(got.shape)
        tolerance = self.tolerance
        if large and self.large_tolerance is not None:
            tolerance = self.large_tolerance
        if tolerance == 0:
            bad = got != wanted
        else:
            limit = tolerance * float(np.abs(wanted).max())
            bad = ~(np.abs(got.astype(np.float64) - wanted) <= limit)  # NaN counts as bad
        count = int(bad.sum())
        if not count:
            return None
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        return (
            f"{count} of {got.size} elements are wrong, the first at {where}: "
            f"{got[where]} instead of {wanted[where]}"
        )

    def source(self, target: Target, large: bool = True) -> tuple[Any, dict[str, Any]]:
        """Return the `GluonASTSource` and the compile options of a launch on `target`."""
        from gluon_core.testing import bind

        config = self.configure(target, large)
        tuned = getattr(self.kernel, "configs", None)
        if tuned:
            config = {**config, **tuned[0].all_kwargs()}
        args = self.arguments(Placeholders(), large)
        backend = registry().backend(target.backend)
        return bind(
            self.kernel, self.values(args, config), config, backend.compiler.pointer_range_bits
        )

    def compile(self, target: Target, large: bool = True) -> Any:
        """Return the `CompiledKernel` for `target`; no device is needed."""
        from gluon_core.compiler import compile

        source, options = self.source(target, large)
        return compile(source, target, options)

    def rate(self, target: Target) -> tuple[float, str]:
        """Return the speed of the large case on a device: a number and its unit, TB/s or TFLOP/s."""
        args = self.arguments(Arrays(target), True)
        config = self.configure(target, True)
        seconds = measure(self.launcher(args, config, target=target), target)
        if self.flops is not None:
            return self.flops(args) / seconds / 1e12, "TFLOP/s"
        moved = self.bytes_moved(args) if self.bytes_moved else 0
        return moved / seconds / 1e12, "TB/s"


def measure(run: Callable[[], Any], target: Target, repeats: int = 20) -> float:
    """Seconds on the device for one `run()`: the median of `repeats`, after three to warm up."""
    return statistics.median(times(run, target, repeats, warmup=3))


def do_bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """Return the `do_bench` of `triton.autotune`, for machines with and without a GPU.

    Returns:
        Milliseconds at each of `quantiles`: of the device where there is one, else of one call on
        the simulator, which says nothing about hardware but lets the kernel run.
    """
    target = device_target()
    if target is None:
        started = time.perf_counter()
        call()
        return [(time.perf_counter() - started) * 1e3] * len(quantiles)
    return [1e3 * float(t) for t in np.quantile(times(call, target, 10, warmup=3), quantiles)]
