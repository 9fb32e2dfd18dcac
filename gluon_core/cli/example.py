"""What the demo, the tests and the benchmarks need to call an example kernel."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from gluon_core.contract.registry import registry
from gluon_core.contract.targets import Target
from gluon_core.errors import DeviceError, GluonError

__all__ = [
    "Arrays",
    "Check",
    "Example",
    "Placeholders",
    "device_target",
    "do_bench",
    "main",
    "measure",
]


class Arrays:
    """Makes the arrays of an example where a target wants them: NumPy for a simulator, torch tensors
    on its device for anything else. Random values are the same each time, in [-1, 1).

    Args:
        target: where the kernel will run.
    """

    def __init__(self, target: Target):
        backend = registry().backend(target.backend)
        self._device = None if backend.simulates else backend.tensor_device
        self._rng = np.random.default_rng(0)

    def random(self, shape: Any, dtype: str = "float32") -> Any:
        if self._device is None:
            return self._rng.uniform(-1, 1, shape).astype(_numpy_dtype(dtype))
        import torch

        size = (shape,) if isinstance(shape, int) else tuple(shape)
        wanted = getattr(torch, dtype)
        plain = torch.float16 if wanted.itemsize == 1 else wanted  # torch draws no narrower floats
        made = torch.empty(size, dtype=plain, device=self._device)
        generator = torch.Generator(self._device).manual_seed(int(self._rng.integers(2**31)))
        return made.uniform_(-1, 1, generator=generator).to(wanted)

    def integers(self, shape: Any, low: int, high: int, dtype: str = "uint8") -> Any:
        """Random whole numbers, `high` left out."""
        made = self._rng.integers(low, high, shape).astype(dtype)
        if self._device is None:
            return made
        import torch

        return torch.from_numpy(made).to(self._device)

    def empty(self, shape: Any, dtype: str = "float32") -> Any:
        """Filled with NaN, so that what a kernel forgets to write is seen."""
        if self._device is None:
            return np.full(shape, np.nan, _numpy_dtype(dtype))
        import torch

        size = (shape,) if isinstance(shape, int) else tuple(shape)
        return torch.full(size, float("nan"), dtype=getattr(torch, dtype), device=self._device)


class Placeholders:
    """Stands in for arrays where a kernel is only compiled."""

    def random(self, shape: Any, dtype: str = "float32") -> Any:
        from gluon_core.testing import MockTensor

        return MockTensor(_numpy_dtype(dtype), (shape,) if isinstance(shape, int) else shape)

    def integers(self, shape: Any, low: int, high: int, dtype: str = "uint8") -> Any:
        return self.random(shape, dtype)

    empty = random


@dataclass(frozen=True)
class Check:
    """The outcome of running an example once: `problem` is None when the result was right."""

    seconds: float
    problem: Optional[str] = None


@dataclass(frozen=True)
class Example:
    """A kernel with what it takes to call, check and measure it.

    Args:
        name: what tables call it.
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
        """The kernel's arguments."""
        return tuple(args.values() if self.operands is None else self.operands(args, config))

    def lacks(self, target: Target) -> tuple[str, ...]:
        """The capabilities that the kernel needs and `target` does not have."""
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
        """A function that launches with `args`, whose operands and grid are made once."""
        run, values = self.kernel[self.grid(args, config)], self.values(args, config)
        return lambda: run(*values, **config, **options)

    def check(self, target: Target, large: bool = False) -> Check:
        """Run on `target` and compare with the reference."""
        args = self.arguments(Arrays(target), large)
        config = self.configure(target, large)
        started = time.perf_counter()
        self.launch(args, config, target=target)
        got = _numpy(args[self.output])
        seconds = time.perf_counter() - started
        if large and self.device_reference is not None and not target.simulated:
            wanted = _numpy(self.device_reference(args))
        else:
            wanted = self.reference({name: _numpy(value) for name, value in args.items()})
        return Check(seconds, self.difference(got, wanted, large))

    def difference(self, got: Any, wanted: Any, large: bool = False) -> Optional[str]:
        """What is wrong with the result `got`, None when nothing is."""
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
        """The `GluonASTSource` and the compile options of a launch on `target`."""
        from gluon_core.testing import bind

        config = self.configure(target, large)
        tuned = getattr(self.kernel, "configs", None)
        if tuned:
            config = {**config, **tuned[0].all_kwargs()}
        args = self.arguments(Placeholders(), large)
        backend = registry().backend(target.backend)
        return bind(self.kernel, self.values(args, config), config, backend.pointer_range_bits)

    def compile(self, target: Target, large: bool = True) -> Any:
        """The `CompiledKernel` for `target`; no device is needed."""
        from gluon_core.compiler import compile

        source, options = self.source(target, large)
        return compile(source, target, options)

    def rate(self, target: Target) -> tuple[float, str]:
        """How fast the large case runs on a device: a number and its unit, TB/s or TFLOP/s."""
        args = self.arguments(Arrays(target), True)
        config = self.configure(target, True)
        seconds = measure(self.launcher(args, config, target=target), target)
        if self.flops is not None:
            return self.flops(args) / seconds / 1e12, "TFLOP/s"
        moved = self.bytes_moved(args) if self.bytes_moved else 0
        return moved / seconds / 1e12, "TB/s"


def _numpy(value: Any) -> Any:
    if not hasattr(value, "cpu"):
        return value
    narrow = str(value.dtype).startswith(
        ("torch.bfloat", "torch.float8")
    )  # NumPy has no such types
    return (value.float() if narrow else value).cpu().numpy()


def _numpy_dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def measure(run: Callable[[], Any], target: Target, repeats: int = 20) -> float:
    """Seconds on the device for one `run()`: the median of `repeats`, after three to warm up."""
    device_type = registry().backend(target.backend).tensor_device
    return statistics.median(_times(run, device_type, repeats))


def _times(run: Callable[[], Any], device_type: Any, repeats: int) -> list[float]:
    import torch

    device = torch.get_device_module(device_type)
    for _ in range(3):
        run()
    # All launches are queued before any is waited for, so that the device never waits for the host.
    events = [
        (device.Event(enable_timing=True), device.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for start, end in events:
        start.record()
        run()
        end.record()
    device.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]


def do_bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """The `do_bench` of `triton.autotune`, for machines with and without a GPU.

    Returns:
        Milliseconds at each of `quantiles`: of the device where there is one, else of one call on
        the simulator, which says nothing about hardware but lets the kernel run.
    """
    target = device_target()
    if target is None:
        started = time.perf_counter()
        call()
        return [(time.perf_counter() - started) * 1e3] * len(quantiles)
    device_type = registry().backend(target.backend).tensor_device
    return [1e3 * float(t) for t in np.quantile(_times(call, device_type, 10), quantiles)]


def device_target() -> Optional[Target]:
    """The target of the device that is plugged in and that torch can put tensors on, None without one."""
    for backend in registry().backends.values():
        target = None if backend.simulates else backend.device()
        if target is not None:
            try:
                import torch

                torch.empty(1, device=backend.tensor_device)
            except (ImportError, RuntimeError, AssertionError):
                continue
            return target
    return None


def main(examples: Sequence[Example], arguments: Optional[Sequence[str]] = None) -> int:
    """Run `examples` from a command line: check each, and measure it where there is a device.

    Returns:
        The exit code, one of the command line's: 1 when a kernel or a result was wrong, 2 for a usage
        error, 3 when the target can run none of the examples.
    """
    from gluon_core.cli.output import Exit, code_of

    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "--target", help="such as sim:sm_90; the device or the simulator by default"
    )
    chosen = parser.parse_args(arguments)
    failed = False
    try:
        target = registry().target(chosen.target)
        for example in examples:
            failed |= not _run(example, target)
    except GluonError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return code_of(error)
    if failed:
        return Exit.FAILED
    return Exit.OK if any(not e.lacks(target) for e in examples) else Exit.UNAVAILABLE


def _run(example: Example, target: Target) -> bool:
    if example.lacks(target):
        print(f"{example.name}: {target} has no {', '.join(example.lacks(target))}")
        return True
    if not target.simulated and device_target() != target:
        raise DeviceError(
            f"there is no {target} on this machine", remedy=f"Try sim:{target.architecture.name}."
        )
    found = example.check(target)
    if found.problem:
        print(f"{example.name}: wrong on {target}: {found.problem}")
        return False
    line = f"{example.name}: right on {target}, {found.seconds:.2f} s"
    if not target.simulated and (example.bytes_moved or example.flops):
        value, unit = example.rate(target)
        line += f"; {value:.3g} {unit}"
    print(line)
    return True
