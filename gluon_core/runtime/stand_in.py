"""Triton's notion of an active driver, for processes whose kernels run on a simulating backend.

`triton.autotune`, `triton.testing` and test suites ask `triton.runtime.driver.active` for the
target and for timers, and fail where no GPU is. When `GLUON_TARGET` names a simulated target and
Triton finds no GPU driver, this one is put in its place, through Triton's own `set_active`. It is
never put there unasked: a driver that is always active breaks those who look for a GPU.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Optional, Sequence

from gluon_core import _triton
from gluon_core.errors import GluonError

__all__ = ["StandInDriver", "activate"]


class _Event:
    """A wall-clock time stamp with the interface of a device event."""

    def __init__(self, enable_timing: bool = False):
        self.time = 0.0

    def record(self, stream: Any = None) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds from this event to `end`."""
        return (end.time - self.time) * 1e3


class _Interface:
    """The part of `torch.cuda` that timers use."""

    Event = _Event

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Calls have ended when they return."""

    @staticmethod
    def current_device() -> int:
        return 0


class StandInDriver:
    """What Triton's tools ask a driver, answered for a simulated target."""

    def __init__(self, target: Any):
        self.target = target

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
    def get_current_stream(device: int) -> int:
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


def _time_once(
    call: Callable[[], Any], quantiles: Optional[Sequence[float]] = None, **ignored: Any
) -> Any:
    """Milliseconds of one call on the simulator: lets a tuned kernel run, says nothing about hardware."""
    started = time.perf_counter()
    call()
    taken = (time.perf_counter() - started) * 1e3
    return taken if quantiles is None else [taken] * len(quantiles)


def activate() -> None:
    """Put the driver in place if `GLUON_TARGET` asks for a simulated target and Triton has no GPU."""
    wanted = os.environ.get("GLUON_TARGET")
    if not wanted:
        return
    from gluon_core.plugins import registry

    try:
        target = registry().target(wanted)
        simulated = registry().backend(target.backend).simulates
    except GluonError:
        return  # the launch says what is wrong with it
    if simulated and not _triton.has_active_driver():
        _triton.set_active_driver(StandInDriver(target))
