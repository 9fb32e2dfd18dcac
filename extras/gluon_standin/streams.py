"""Streams and events of a simulated device: all work has ended when a call returns, but for `_sleep`.

Both keep the rules of real ones: an event is recorded before it is timed, and no call waits for the
device while a graph is captured. A stream sleeps from the first time somebody asks for it, so that
the speed of the host does not decide whether its work has ended.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Iterator, Optional

import torch

from gluon_standin import driver
from gluon_standin.graphs import refuse_under_capture

__all__ = ["event_class", "finish", "sleep", "stream_classes"]

_numbers: Iterator[int] = itertools.count(1)


class _Rest:
    """The seconds for which a stream sleeps on, or slept on when an event was recorded."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self._asked: Optional[float] = None

    def add(self, seconds: float) -> None:
        self.seconds += seconds

    def wait_for(self, other: _Rest) -> None:
        self.seconds = max(self.seconds, other.seconds)

    def end(self) -> None:
        self.seconds, self._asked = 0.0, None

    def over(self) -> bool:
        """Return whether it is over; the time runs from the first question on."""
        now = time.perf_counter()
        if not self.seconds:
            return True
        if self._asked is None:
            self._asked = now
        if now - self._asked < self.seconds:
            return False
        self.end()
        return True


_rests: dict[int, _Rest] = {}  # of streams, by number


def _rest(stream: Any) -> _Rest:
    return _rests.setdefault(int(stream.cuda_stream), _Rest())


def sleep(stream: Any, seconds: float) -> None:
    """Keep a stream busy for a time after its work so far."""
    _rest(stream).add(seconds)


def finish() -> None:
    """Wait for all streams."""
    for rest in _rests.values():
        rest.end()


def event_class(kind: str) -> type:
    """Return `torch.<kind>.Event`."""

    class Event(driver.Event):
        __doc__ = f"An event of the simulated device, as `torch.{kind}.Event`."

        device = torch.device(kind, 0)

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ):
            super().__init__(enable_timing)
            self.event_id = self.cuda_event = next(_numbers)
            self.rest = _Rest()

        def record(self, stream: Any = None) -> None:
            stream = getattr(torch, kind).current_stream() if stream is None else stream
            self.rest = _Rest(_rest(stream).seconds)
            super().record(stream)
            self.time = (self.time or 0.0) + self.rest.seconds

        def synchronize(self) -> None:
            refuse_under_capture()
            self.rest.end()

        def query(self) -> bool:
            refuse_under_capture()
            return self.rest.over()

        def wait(self, stream: Any = None) -> None:
            stream = getattr(torch, kind).current_stream() if stream is None else stream
            _rest(stream).wait_for(self.rest)

    Event.__module__ = f"torch.{kind}.streams"
    Event.__qualname__ = "Event"
    return Event


def stream_classes(kind: str, event: type) -> tuple[type, type, type]:
    """Return `Stream`, `ExternalStream` and `StreamContext` of `torch.<kind>`."""

    class Stream(torch.Stream):  # type: ignore[misc]  # torch is not required
        __doc__ = f"A stream of the simulated device, as `torch.{kind}.Stream`."

        device = torch.device(kind, 0)
        device_index = 0
        device_type = 1
        _current: Any = None
        _default: Any = None

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls, stream_id=0, device_index=0, device_type=1)

        def __init__(
            self,
            device: Any = None,
            priority: int = 0,
            stream_id: Optional[int] = None,
            device_index: int = 0,
            device_type: int = 1,
            stream_ptr: Optional[int] = None,
        ):
            number = stream_id if stream_id is not None else stream_ptr
            self._number = next(_numbers) if number is None else number
            self.priority = min(0, priority)

        @property
        def stream_id(self) -> int:
            return self._number

        cuda_stream = native_handle = _as_parameter_ = stream_id

        def __enter__(self) -> Any:
            self._outer = [*getattr(self, "_outer", ()), Stream._current]
            Stream._current = self
            return self

        def __exit__(self, *details: Any) -> None:
            Stream._current = self._outer.pop()

        def __eq__(self, other: Any) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __ne__(self, other: Any) -> bool:  # torch's own class has one
            return not self == other

        def __hash__(self) -> int:
            return hash((Stream, self.stream_id))

        def __repr__(self) -> str:
            return f"<torch.{kind}.Stream device={self.device} cuda_stream={self.stream_id:#x}>"

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -5

        def synchronize(self) -> None:
            refuse_under_capture()
            _rest(self).end()

        def query(self) -> bool:
            refuse_under_capture()
            return _rest(self).over()

        def wait_stream(self, stream: Any) -> None:
            _rest(self).wait_for(_rest(stream))

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, recorded: Any = None) -> Any:
            recorded = event() if recorded is None else recorded
            recorded.record(self)
            return recorded

    class ExternalStream(Stream):
        def __init__(self, stream_ptr: int, device: Any = None, **more: Any):
            super().__init__(device, stream_ptr=stream_ptr)

    class StreamContext:
        def __init__(self, stream: Any):
            self.stream = stream

        def __enter__(self) -> None:
            if self.stream is not None:
                self.stream.__enter__()

        def __exit__(self, *details: Any) -> None:
            if self.stream is not None:
                self.stream.__exit__(*details)

    Stream._default = Stream._current = Stream(stream_id=0)
    classes = Stream, ExternalStream, StreamContext
    for cls, module in zip(classes, ("streams", "streams", "")):
        cls.__module__ = ".".join(filter(None, ("torch", kind, module)))
        cls.__qualname__ = cls.__name__
    return classes
