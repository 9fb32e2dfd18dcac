"""What torch's tracer meets where a kernel is launched: one closed door, on every target.

`torch.compile` runs the Python of a function symbolically and goes into what that calls; in the code
of a launch, or of a simulated machine, it would read addresses of tensors that have no memory. The
functions here carry the marks that it looks for, so nothing imports torch and a launch costs nothing.

Two marks are needed. One stops the tracer where it comes to a call: the graph ends there, with a
message. The other stops it where Python itself makes the call, after the graph has ended.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import FunctionType
from typing import Any, Callable, TypeVar

__all__ = ["arm", "closed", "subscript"]

F = TypeVar("F", bound=Callable[..., Any])

REASON = (
    "a kernel of Gluon is launched here, and a launch is not traced: the graph ends before it. "
    "To keep it in the graph, launch from a function under "
    '@gluon_core.torch.op("library::name", mutates_args=...)'
)

_doors: weakref.WeakSet[FunctionType] = weakref.WeakSet()  # not yet known to a loaded torch


def closed(function: F) -> F:
    """Mark `function`, written in Python: torch traces neither it nor what it calls."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    _doors.add(marked)
    arm()
    return function


def arm() -> None:
    """Tell torch, if it is loaded, of the functions marked since it last was told."""
    torch = sys.modules.get("torch")
    if torch is None or not _doors:
        return
    try:
        frames = torch._C._dynamo.eval_frame
    except AttributeError:  # it is being imported
        return
    while _doors:
        _never(frames, _doors.pop())


def _never(frames: Any, function: FunctionType) -> None:
    strategy = getattr(frames, "_FrameExecStrategy", None)
    if strategy is None:  # torch before 2.7: the function alone, not what it calls
        frames.skip_code(function.__code__)
        return
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, strategy(skip, skip))


def _armed() -> bool:
    """Run by torch while it traces, for its value: it may have been imported after the kernel."""
    arm()
    return True


_armed._dynamo_marked_constant = True  # type: ignore[attr-defined]


@closed
def launch(kernel: Any, grid: Any, *args: Any, **options: Any) -> Any:
    """`kernel[grid](*args, **options)`, where a graph has ended."""
    return kernel[grid](*args, **options)


def subscript(kernel: Any, grid: Any) -> Callable[..., Any]:
    """What torch traces in the place of `kernel[grid]`: nothing of the kernel is looked at."""
    _armed()
    return functools.partial(launch, kernel, grid)
