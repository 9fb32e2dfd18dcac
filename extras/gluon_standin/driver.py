"""Triton's notion of an active driver, for processes whose kernels run on a simulating backend.

Plain `@triton.jit` kernels are compiled by Triton for the simulated architecture. Their machine code
runs where the backend executes machine code; elsewhere Triton's interpreter runs the kernel.

`triton.autotune`, `triton.testing` and test suites ask `triton.runtime.driver.active` for the
target and for timers, and fail where no GPU is. When `GLUON_TARGET` names a simulated target and
Triton finds no GPU driver, this one is put in its place, through Triton's own `set_active`. It is
never put there unasked: a driver that is always active breaks those who look for a GPU.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core.errors import DeviceError, GluonError

__all__ = ["Event", "StandInDriver", "activate"]


class Event:
    """A wall-clock time stamp with the interface of a device event."""

    def __init__(self, enable_timing: bool = False):
        self.enable_timing = enable_timing
        self.time: Optional[float] = None

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to `end`.

        Raises:
            ValueError: one of them does not time, or is not recorded.
        """
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.time is None or end.time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end.time - self.time) * 1e3


class _Interface:
    """The part of `torch.cuda` that timers use."""

    Event = Event

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Return at once: calls have ended when they return."""

    @staticmethod
    def current_device() -> int:
        return 0


class _Utils:
    """`driver.active.utils`."""

    def __init__(self, target: Any, properties: Mapping[str, Any]):
        limits = target.limits
        self._target = target
        self._properties = {
            "max_shared_mem": limits.shared_memory,
            "max_num_regs": limits.register_file,
            "multiprocessor_count": properties.get("multi_processor_count", 1),
            "warpSize": target.warp_size,
            "arch": str(target.architecture.arch),
        }

    def get_device_properties(self, device: int) -> dict[str, Any]:
        return dict(self._properties)

    def load_binary(self, name: str, kernel: Any, shared: int, device: int) -> tuple[Any, ...]:
        """Return the module, function, registers, spills and threads of a compiled kernel."""
        from gluon_standin import plain

        registers, spills = plain.resources(self._target)
        threads = self._target.limits.max_warps * self._target.warp_size
        return kernel, kernel, registers, spills, threads

    def unload_module(self, module: Any) -> None:
        """Do nothing, as nothing was loaded."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_here(f"utils.{name}")


class NoDeviceError(DeviceError, AttributeError):
    """Something was asked of the driver that only a GPU can do."""


def _not_here(name: str) -> NoDeviceError:
    return NoDeviceError(
        "the device is simulated and cannot do this",
        argument=f"driver.{name}",
        remedy="Skip it where GLUON_TARGET names a simulated target, or run on a GPU.",
    )


class StandInDriver:
    """The driver that answers Triton for a simulated target.

    Args:
        properties: torch's properties of the device.
    """

    def __init__(self, target: Any, properties: Mapping[str, Any]):
        self.target = target
        self.utils = _Utils(target, properties)
        self._capability = properties.get("major"), properties.get("minor")
        self.module: Any = None  # of torch, which answers for the device: torch.cuda

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        from gluon_standin.plain import launcher

        return launcher(self.target, src, metadata)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return _triton.gpu_target(self.target)

    def get_device_capability(self, device: Any = None) -> Any:
        return self._capability

    @staticmethod
    def get_active_torch_device() -> Any:
        import torch

        return torch.device("cpu")

    @staticmethod
    def get_current_device() -> int:
        return 0

    @staticmethod
    def set_current_device(device: int) -> None:
        """Do nothing: there is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        return self.module.current_stream().cuda_stream if self.module else 0

    def get_device_interface(self) -> Any:
        return self.module or _Interface

    @staticmethod
    def get_empty_cache_for_benchmark() -> None:
        """Do nothing: there is no cache to clear."""

    @staticmethod
    def clear_cache(cache: Any) -> None:
        """Do nothing: there is no cache to clear."""

    @staticmethod
    def get_benchmarker() -> Callable[..., Any]:
        return _time_once

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _not_here(name)


def _time_once(
    call: Callable[[], Any], quantiles: Optional[Sequence[float]] = None, **ignored: Any
) -> Any:
    """Milliseconds of one call on the simulator: lets a tuned kernel run, says nothing about hardware."""
    started = time.perf_counter()
    call()
    taken = (time.perf_counter() - started) * 1e3
    return taken if quantiles is None else [taken] * len(quantiles)


class _Later:
    """Decides who the driver is when it is first asked something."""

    def __init__(self, stand_in: StandInDriver):
        self.stand_in = stand_in

    def decide(self) -> Any:
        chosen = _triton.own_driver() or self.stand_in
        _triton.set_active_driver(chosen)
        return chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decide(), name)


def activate(wanted: str, module: Any = None) -> None:
    """Put the driver in place if `wanted` is a simulated target and Triton has no GPU.

    Only torch knows if it has one, and its import takes seconds: while nobody has imported
    it, the question waits.

    Args:
        module: of torch, where that answers as the device does: there is then no GPU.
    """
    from gluon_core.registry.load import registry

    try:
        target = registry().target(wanted)
        simulated = registry().backend(target.backend).simulates
    except GluonError:
        return  # the launch reports the error
    driver = _triton.given_driver()
    if module is not None and simulated:
        if not isinstance(driver, StandInDriver):
            driver = getattr(driver, "stand_in", None) or _of(target)
        driver.module = module
        _triton.set_active_driver(driver, default=True)
        return
    if driver is None and simulated:
        driver = _Later(_of(target))
        _triton.set_active_driver(driver)
    if isinstance(driver, _Later) and "torch" in sys.modules:
        driver.decide()


def _of(target: Any) -> StandInDriver:
    from gluon_core.registry.load import registry

    vendor = registry().backend(target.architecture.backend)
    return StandInDriver(target, vendor.device.torch_properties(target))
