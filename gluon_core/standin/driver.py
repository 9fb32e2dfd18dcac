"""Triton's notion of an active driver, for processes whose kernels run on a simulating backend.

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
        self.time = 0.0

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        return (end.time - self.time) * 1e3


class _Interface:
    """The part of `torch.cuda` that timers use."""

    Event = Event

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Calls have ended when they return."""

    @staticmethod
    def current_device() -> int:
        return 0


class _Utils:
    """`driver.active.utils`."""

    def __init__(self, target: Any, properties: Mapping[str, Any]):
        limits = target.limits
        self._properties = {
            "max_shared_mem": limits.shared_memory,
            "max_num_regs": limits.register_file,
            "multiprocessor_count": properties.get("multi_processor_count", 1),
            "warpSize": target.warp_size,
            "arch": str(target.architecture.arch),
        }

    def get_device_properties(self, device: int) -> dict[str, Any]:
        return dict(self._properties)

    def __getattr__(self, name: str) -> Any:
        raise _not_here(f"utils.{name}")


class NoDeviceError(DeviceError, AttributeError):
    """Something was asked of the driver that only a GPU can do."""


def _not_here(name: str) -> NoDeviceError:
    return NoDeviceError(
        "kernels are simulated here, and a plain @triton.jit kernel needs a GPU",
        argument=f"driver.{name}",
        remedy="Decorate it with gluon_core.jit (it is then a Gluon kernel), or run on a GPU.",
    )


class StandInDriver:
    """What Triton's tools ask a driver, answered for a simulated target."""

    def __init__(self, target: Any, properties: Mapping[str, Any]):
        self.target = target
        self.utils = _Utils(target, properties)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return _triton.gpu_target(self.target)

    @staticmethod
    def get_active_torch_device() -> Any:
        import torch

        return torch.device("cpu")

    @staticmethod
    def get_current_device() -> int:
        return 0

    @staticmethod
    def set_current_device(device: int) -> None:
        """There is one device."""

    @staticmethod
    def get_current_stream(device: int = 0) -> int:
        return 0

    @staticmethod
    def get_device_interface() -> type:
        return _Interface

    @staticmethod
    def get_empty_cache_for_benchmark() -> None:
        """There is no cache to clear."""

    @staticmethod
    def clear_cache(cache: Any) -> None:
        """There is no cache to clear."""

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
        self._stand_in = stand_in

    def decide(self) -> Any:
        found = _triton.own_driver() or self._stand_in
        _triton.set_active_driver(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decide(), name)


def activate(wanted: str) -> None:
    """Put the driver in place if `wanted` is a simulated target and Triton has no GPU.

    Whether it has one is for torch to say, whose import takes seconds: while nobody has imported
    it, the question waits.
    """
    from gluon_core.contract.registry import registry

    try:
        target = registry().target(wanted)
        simulated = registry().backend(target.backend).simulates
    except GluonError:
        return  # the launch says what is wrong with it
    driver = _triton.given_driver()
    if driver is None and simulated:
        vendor = registry().backend(target.architecture.backend)
        driver = _Later(StandInDriver(target, vendor.torch_properties(target)))
        _triton.set_active_driver(driver)
    if isinstance(driver, _Later) and "torch" in sys.modules:
        driver.decide()
