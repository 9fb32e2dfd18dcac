"""`torch.profiler.profile` on a simulated device: its kernels are events of the device, with the time that they take on the host."""

from __future__ import annotations

import time
from typing import Any, Iterable, Optional

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from gluon_core.simulation import evidence
from gluon_standin.exchange import replace

__all__ = ["install"]


def install() -> None:
    """Let `torch.profiler.profile` list the kernels of the simulated device."""
    plain: Any = torch.profiler.profile
    activity: Any = torch.profiler.ProfilerActivity

    class profile(plain):  # type: ignore[misc]  # noqa: N801  # torch is not required, and the name is its
        __doc__ = plain.__doc__

        def __init__(self, *, activities: Optional[Iterable[Any]] = None, **more: Any):
            wanted = None if activities is None else set(activities)
            self._watches = wanted is None or activity.CUDA in wanted
            self._launched: list[tuple[str, float, float]] = []
            super().__init__(activities=(wanted or {activity.CPU}) - {activity.CUDA} or {activity.CPU}, **more)  # fmt: skip

        def start(self) -> None:
            super().start()
            if self._watches:
                evidence.observers.append(self._seen)

        def stop(self) -> None:
            if self._watches:
                evidence.observers.remove(self._seen)
            super().stop()
            events = self.profiler.function_events if self._watches and self.profiler else None
            for number, (name, begun, ended) in enumerate(self._launched):
                if events is not None:
                    on = DeviceType.CUDA
                    event = FunctionEvent(number, name, 0, begun, ended, stack=[], device_type=on)
                    events.append(event)
            self._launched.clear()

        def _seen(self, pending: evidence.Pending) -> None:
            """Make a launch, and note its time in microseconds."""
            evidence.observers.remove(self._seen)
            begun = time.perf_counter()
            try:
                pending()
            finally:
                evidence.observers.append(self._seen)
            ended = time.perf_counter()
            self._launched.append((pending.compiled.name, begun * 1e6, ended * 1e6))

    profile.__qualname__ = "profile"
    profile.__module__ = plain.__module__
    replace(torch.profiler, "profile", profile)
