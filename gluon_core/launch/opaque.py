"""The launch of a kernel to torch's tracer: one closed door, on every target.

`torch.compile` runs the Python of a function symbolically and enters the functions that it calls; in the code
of a launch, or of a simulated machine, it would read addresses of tensors that have no memory. The
functions here carry the marks that it looks for, so nothing imports torch and a launch costs nothing.

Two marks are needed. One stops the tracer where it comes to a call: the graph ends there, with a
message. The other stops it where Python itself makes the call, after the graph has ended.

Where there is a GPU, torch takes any function that Triton's `jit` made, and all that inherits from that
class, for source that Inductor may copy into a module of its own. A kernel of Gluon is not that.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import FunctionType
from typing import Any, Callable, TypeVar

from gluon_core.imports import when_imported

__all__ = ["arm", "closed", "no_triton_source", "subscript"]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

REASON = (
    "a kernel of Gluon is launched here, and a launch is not traced: the graph ends before it. "
    "To keep it in the graph, launch from a function under "
    '@gluon_core.torch.op("library::name", mutates_args=...)'
)

_doors: weakref.WeakSet[FunctionType] = weakref.WeakSet()  # not yet known to a loaded torch


def closed(function: F) -> F:
    """Mark `function`, written in Python: torch traces neither it nor the functions that it calls."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    _doors.add(marked)
    arm()
    return function


def arm() -> None:
    """Tell torch, if it is loaded, of the functions marked since the last time."""
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
    if strategy is None:  # torch before 2.7: the function alone, not those that it calls
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
    """Trace this in the place of `kernel[grid]`: nothing of the kernel is looked at."""
    _armed()
    return functools.partial(launch, kernel, grid)


# -- kernels are objects like others -------------------------------------------------------------

_BUILDER = "torch._dynamo.variables.builder"  # meets a value first when torch traces
_kernel_types: list[type] = []


def no_triton_source(cls: C) -> C:
    """Mark a class of kernels, which inherits from Triton's: torch takes its objects for any others."""
    _kernel_types.append(cls)
    when_imported(_BUILDER, _teach)
    return cls


def _teach(tracer: Any) -> None:
    """Enter the marked classes, and the tuner of their kernels, into the tracer's table of types."""
    from gluon_core._triton import Autotuner

    try:
        find = tracer.VariableBuilder
        if hasattr(find, "_type_dispatch_impl"):
            tables = [find._type_dispatch_impl(trace_numpy) for trace_numpy in (True, False)]
        else:
            tables = [find._type_dispatch()]
        kernel_variable, identity = tracer.TritonKernelVariable, tracer.GuardBuilder.ID_MATCH
    except AttributeError:  # another torch: there it stays with the marks
        return

    def plain(self: Any, value: Any) -> Any:
        return self.wrap_user_defined(value)

    def tuned(self: Any, value: Any) -> Any:
        from torch.utils._triton import has_triton

        inner = value
        while type(inner) not in _kernel_types and hasattr(inner, "fn"):
            inner = inner.fn
        if type(inner) in _kernel_types or not has_triton():
            return plain(self, value)
        self.install_guards(identity)
        return kernel_variable(value, None, None, source=self.source)

    for table in tables:
        table.update(dict.fromkeys(_kernel_types, plain))
        table[Autotuner] = tuned
