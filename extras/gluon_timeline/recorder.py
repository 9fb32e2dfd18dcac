"""Record the timelines of launches."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, Callable, Iterator, Optional, Union

import numpy as np

from gluon_core import _triton
from gluon_core.errors import ArgumentError
from gluon_timeline import page
from gluon_timeline.decode import Launch, decoded

__all__ = ["Prepared", "Timeline", "record"]

_LAUNCHES = 16  # that are kept

Path = Union[str, "os.PathLike[str]"]


class Timeline:
    """The launches that `record` observed, in their order.

    Attributes:
        launches: with at least one scope that was passed.
        skipped: launches beyond the limit of `record`.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.skipped = 0

    def perfetto(self) -> dict[str, Any]:
        """Return the trace as JSON for https://ui.perfetto.dev: a process per block, a thread per warp.

        The entry `gluon` holds the launches for `gluon timeline`.
        """
        events: list[dict[str, Any]] = []
        first = 0.0
        for number, launch in enumerate(self.launches):
            for span in launch.spans:
                events.append(
                    {
                        "ph": "X", "cat": "scope", "name": span.scope,
                        "pid": f"{launch.kernel} {number}, block {span.block}, SM {span.sm}",
                        "tid": f"warp {span.warp}", "ts": (first + span.begin) / 1000,
                        "dur": (span.end - span.begin) / 1000, "args": {"line": span.line, "file": span.file},
                    }
                )  # fmt: skip
            first += launch.nanoseconds
        return {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "gluon": [page.launch_data(launch) for launch in self.launches],
        }

    def write_html(self, path: Path) -> None:
        """Write a page that needs no network: lanes of warps, shares of scopes, lines of source."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(page.render([page.launch_data(launch) for launch in self.launches]))

    def write_json(self, path: Path) -> None:
        """Write `perfetto()` to a file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.perfetto(), file)

    def table(self) -> str:
        """Return the share of each scope in each launch as text."""
        lines = []
        for launch in self.launches:
            lines.append(
                f"{launch.kernel}: {launch.nanoseconds / 1000:.1f} us, {launch.warps} warps"
                + (f", {launch.dropped} spans dropped" if launch.dropped else "")
                + (
                    f", {launch.unpaired} spans of warps that did not end"
                    if launch.unpaired
                    else ""
                )
            )
            for name, line, count, mean, share in launch.shares():
                lines.append(f"  {share:6.1%}  {mean:9.0f} ns x {count:<7} {name}, line {line}")
        return "\n".join(lines)


class _Recorder:
    """Gives launches their buffers, and reads them at the end."""

    def __init__(self, limit: int):
        self.limit = limit
        self.timeline = Timeline()
        self._metadata: Any = None
        self._buffers: list[tuple[Any, Any]] = []

    def enter(self, record: Any) -> None:
        self._metadata = record.get().get("metadata") if record is not None else None

    def __call__(self, size: int, alignment: int, stream: Optional[int]) -> Any:
        buffer = _zeros(size, alignment)
        metadata, self._metadata = self._metadata, None
        if getattr(metadata, "timeline", None) is None:
            return buffer
        if len(self._buffers) < self.limit:
            self._buffers.append((metadata, buffer))
        else:
            self.timeline.skipped += 1
        return buffer

    def launching(self, metadata: Any) -> None:
        """Take the metadata of the kernel whose launch asks for a buffer next."""
        self._metadata = metadata

    def finish(self) -> None:
        """Read the buffers of the launches so far, which waits for the device."""
        if not self._buffers:
            return
        torch = _torch_with_gpu()
        if torch is not None:
            torch.cuda.synchronize()
        for metadata, buffer in self._buffers:
            content = buffer if isinstance(buffer, np.ndarray) else buffer.cpu().numpy()
            launch = decoded(metadata.name, content, metadata.timeline)
            if launch.warps:
                self.timeline.launches.append(launch)
        self._buffers.clear()


class Prepared:
    """A prepared call of a kernel that records: its launches go to the `record` block around them, or are kept.

    Args:
        handle: launches the kernel.
        compiled: the `CompiledKernel`.
        keeps: keep launches outside of `record` blocks.
    """

    def __init__(self, handle: Callable[..., None], compiled: Any, keeps: bool):
        self._handle, self._metadata = handle, compiled.metadata
        self._recorder = _Recorder(_LAUNCHES if keeps else 0)

    def __call__(self, *values: Any, **named: Any) -> None:
        if _active:
            _active[-1].launching(self._metadata)
            self._handle(*values, **named)
            return
        with _triton.profile_allocator(self._recorder):
            self._recorder.launching(self._metadata)
            self._handle(*values, **named)

    @property
    def timeline(self) -> Timeline:
        """Return the first 16 launches outside of `record` blocks, and wait for the device."""
        self._recorder.finish()
        return self._recorder.timeline


_active: list[_Recorder] = []  # of `record` blocks, the innermost last


def _torch_with_gpu() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def _zeros(size: int, alignment: int) -> Any:
    """Return a buffer of zeros where the launch runs: on the GPU, or here for an emulator."""
    torch = _torch_with_gpu()
    if torch is not None:
        room = torch.zeros(size + alignment, dtype=torch.uint8, device="cuda")
        start = -room.data_ptr() % alignment
        return room[start : start + size]
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


@contextlib.contextmanager
def record(
    *, auto: bool = False, events: int = 256, launches: int = _LAUNCHES
) -> Iterator[Timeline]:
    """Observe launches in a `with` block and read their timelines at its end.

    Kernels are compiled once more, with the code that records. `timeline.launches` is filled at the end of the block,
    which waits for the device.

    Args:
        auto: add scopes around waits, barriers and the issue of asynchronous work.
        events: spans that each warp keeps, a power of two; the oldest are dropped and counted.
        launches: the most that are kept; `timeline.skipped` counts the rest.

    Raises:
        ArgumentError: `events` is no power of two from 2 on, or `launches` is not positive.
    """
    if not isinstance(events, int) or events < 2 or events & (events - 1):
        raise ArgumentError(
            "must be a power of two", argument="events", expected="2 or more", got=repr(events)
        )
    if not isinstance(launches, int) or launches < 1:
        raise ArgumentError("must be positive", argument="launches", got=repr(launches))
    recorder = _Recorder(launches)
    compilation, hook = _triton.knobs.compilation, _triton.knobs.runtime.launch_enter_hook
    mode = compilation.instrumentation_mode
    with _triton.profile_allocator(recorder):
        compilation.instrumentation_mode = f"timeline{':auto' if auto else ''}:{events}"
        hook.add(recorder.enter)
        _active.append(recorder)
        try:
            yield recorder.timeline
        finally:
            _active.remove(recorder)
            hook.remove(recorder.enter)
            compilation.instrumentation_mode = mode
            recorder.finish()
