"""Measure a launch: its arrays, its time on a device, the counts of the simulator."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from gluon_core.errors import CapabilityError, GluonError
from gluon_core.launch.cache import source_of
from gluon_core.launch.device import device_target
from gluon_core.launch.placeholder import Placeholder
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.predicted import Predicted
from gluon_core.simulation.watch import Watch

__all__ = [
    "Arrays",
    "Placeholders",
    "Untouched",
    "begin",
    "conflicts",
    "device_count",
    "device_facts",
    "device_name",
    "device_target",
    "numpy_of",
    "predicted",
    "roofline",
    "target_of",
    "times",
]


class Arrays:
    """Makes arrays where a target wants them: NumPy for a simulator, torch tensors on its device for
    anything else. Random values are the same each time, in [-1, 1).

    Args:
        target: where the kernel will run.
        index: which of its devices; None for torch's current one.
    """

    def __init__(self, target: Target, index: Optional[int] = None):
        backend = registry().backend(target.backend)
        self._device = None if backend.simulates else backend.device.tensor_device
        if self._device is not None and index is not None:
            self._device = f"{self._device}:{index}"
        self._rng = np.random.default_rng(0)

    def random(self, shape: Any, dtype: str = "float32") -> Any:
        if self._device is None:
            return self._rng.uniform(-1, 1, shape).astype(_numpy_dtype(dtype))
        import torch

        size = (shape,) if isinstance(shape, int) else tuple(shape)
        wanted = getattr(torch, dtype)
        plain = torch.float16 if wanted.itemsize == 1 else wanted  # torch draws no narrower floats
        tensor = torch.empty(size, dtype=plain, device=self._device)
        generator = torch.Generator(self._device).manual_seed(int(self._rng.integers(2**31)))
        return tensor.uniform_(-1, 1, generator=generator).to(wanted)

    def integers(self, shape: Any, low: int, high: int, dtype: str = "uint8") -> Any:
        """Random whole numbers, `high` left out."""
        drawn = self._rng.integers(low, high, shape).astype(dtype)
        if self._device is None:
            return drawn
        import torch

        return torch.from_numpy(drawn).to(self._device)

    def empty(self, shape: Any, dtype: str = "float32") -> Any:
        """Return an array filled with NaN, so that elements that a kernel does not write show up."""
        if self._device is None:
            return np.full(shape, np.nan, _numpy_dtype(dtype))
        import torch

        size = (shape,) if isinstance(shape, int) else tuple(shape)
        return torch.full(size, float("nan"), dtype=getattr(torch, dtype), device=self._device)


class Untouched(Arrays):
    """Arrays for predictions: zeros, whose pages take no memory until they are touched; whole numbers are real."""

    def random(self, shape: Any, dtype: str = "float32") -> Any:
        return np.zeros(shape, _numpy_dtype(dtype))

    empty = random


class Placeholders:
    """A substitute for `Arrays` that only describes them, for compilation."""

    def random(self, shape: Any, dtype: str = "float32") -> Any:
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        return Placeholder(_numpy_dtype(dtype), size)

    def integers(self, shape: Any, low: int, high: int, dtype: str = "uint8") -> Any:
        return self.random(shape, dtype)

    empty = random


def numpy_of(value: Any) -> Any:
    """Return a tensor as a NumPy array (types that NumPy lacks as float32); anything else as it is."""
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


def _module(target: Target) -> Any:
    """Torch's module for devices of `target`."""
    import torch

    return torch.get_device_module(registry().backend(target.backend).device.tensor_device)


def times(run: Callable[[], Any], target: Target, repeats: int, warmup: int = 0) -> list[float]:
    """Seconds on the device for each of `repeats` calls, which are all queued before any is waited for,
    so that the device never waits for the host."""
    device = _module(target)
    for _ in range(warmup):
        run()
    events = [
        (device.Event(enable_timing=True), device.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for start, end in events:
        start.record()
        run()
        end.record()
    device.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in events]


def device_name(target: Target, index: int = 0) -> str:
    """Return torch's name for a device of `target`; "" for a simulated target and where torch knows none."""
    if registry().backend(target.backend).simulates:
        return ""
    try:
        return str(_module(target).get_device_name(index))
    except (ImportError, RuntimeError, AssertionError):
        return ""


def device_facts(target: Target, index: int = 0) -> dict[str, Any]:
    """Name of a device, its clock (MHz), power (mW) and temperature (degrees Celsius) now, as far as
    torch tells them."""
    facts: dict[str, Any] = {"name": device_name(target, index)}
    device = _module(target)
    for reading in ("clock_rate", "power_draw", "temperature"):
        try:
            facts[reading] = getattr(device, reading)(index)
        except Exception:  # torch asks the vendor's library, which need not be installed
            facts[reading] = None
    return facts


def predicted(target: Target, run: Callable[[Target], Any]) -> dict[str, Any]:
    """Return the time that the model predicts for the launches of `run(simulated target)`.

    Returns:
        `seconds`, of all launches; `bound`: what limits the longest one.

    Raises:
        CapabilityError: no simulator is installed, or the architecture has no model of time.
    """
    simulator = registry().simulator()
    if simulator is None:
        raise CapabilityError("no simulator is installed", remedy="pip install gluon-sim.")
    launches: list[Predicted] = []
    with simulator.simulation.predict(launches.append, only=True):
        run(Target(simulator.name, target.architecture))
    if not launches:
        raise CapabilityError("the task launches no kernel")
    longest = max(launches, key=lambda launch: launch.nanoseconds)
    return {
        "seconds": sum(launch.nanoseconds for launch in launches) * 1e-9,
        "bound": longest.limits[0][0],
    }


def roofline(target: Target, run: Callable[[Target], Any]) -> dict[str, Any]:
    """Return the simulator's counts of the launches of `run(simulated target)`.

    Returns:
        `seconds`: the least time that a device of `target` needs for it; `bound`: which part of the
        machine that is; `conflicts`: extra passes over the banks of shared memory; `programs`, the
        `loads` that they wait for, and `requests` of warps to global memory.

    Raises:
        CapabilityError: no simulator is installed, or it knows no peaks of this architecture.
    """
    simulator = registry().simulator()
    if simulator is None:
        raise CapabilityError("no simulator is installed", remedy="pip install gluon-sim.")
    simulated = Target(simulator.name, target.architecture)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "profile.json")
        with redirect_stderr(StringIO()), simulator.simulation.watch(Watch(profile_json=file)):
            run(simulated)
        with open(file) as text:
            kernels: list[Mapping[str, Any]] = json.load(text)
    bounds = [kernel["roofline"] for kernel in kernels]
    if not bounds or any(bound["seconds"] is None for bound in bounds):
        raise CapabilityError(f"the peaks of {target.architecture.name} are not known")

    def total(name: str) -> int:
        return sum(int(kernel["total"].get(name, 0)) for kernel in kernels)

    longest = max(bounds, key=lambda bound: float(bound["seconds"]))
    return {
        "seconds": sum(float(bound["seconds"]) for bound in bounds),
        "bound": longest["bound"],
        "conflicts": total("conflicts"),
        "programs": sum(int(kernel["programs"]) for kernel in kernels),
        "loads": total("loads"),
        "requests": total("read_requests") + total("write_requests"),
    }


def target_of(spec: Any) -> Target:
    """Return a target in any spelling, simulated ones as the hardware that they stand for; None for the
    device that is there, else the default architecture.

    Raises:
        TargetError: no plugin knows it.
    """
    target = registry().target(spec)
    return Target(target.architecture.backend, target.architecture) if target.simulated else target


def conflicts(
    kernel: Any, values: Sequence[Any], target: Target, options: Mapping[str, Any]
) -> int:
    """Return the most extra passes over the banks that one access of a kernel to shared memory takes,
    as the layouts tell; accesses whose layouts are found later do not count.

    Args:
        values: arguments of a launch, placeholders for tensors.
        options: constants and compile options.
    """
    from gluon_core.compiler.source import trace_source

    bound, rest = kernel.dispatcher.bind(values, {**options, "target": target})
    chosen = kernel.dispatcher.specialize(bound, rest, running=False)
    sessions: list[Any] = []
    source = source_of(kernel, chosen)
    trace_source(source, target, chosen.options, on_session=sessions.append)
    most = 0
    for count in sessions[0].shared_accesses:
        try:
            most = max(most, count())
        except (GluonError, AttributeError):
            continue
    return most


def begin(target: Target, index: int) -> None:
    """Let the driver initialize a device; errors surface at its first use."""
    with suppress(Exception), registry().backend(target.backend).device.scope(index):
        pass


def device_count(target: Target) -> int:
    """Return the number of devices of `target`."""
    backend = registry().backend(target.backend)
    if backend.simulates or backend.device.target() is None:
        return 0
    return sum(backend.device.target(index) == target for index in range(backend.device.count()))
