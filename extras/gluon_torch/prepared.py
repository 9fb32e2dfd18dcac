"""Parts of an operator's shortest way: calls that need nothing of torch's dispatcher, their signature, and launches
that take the tensors of each call.

    if not torch.compiler.is_compiling() and gluon.torch.is_plain(x):
        known_by = gluon.torch.signature(x)     # dtype, device, sizes, strides, alignment
        ...                                     # a launch that was prepared for it
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Hashable, Optional, Sequence

import torch
from torch import _C
from torch.autograd import forward_ad
from torch.nn import Parameter

from gluon_runtime import native
from gluon_torch import checks, shortcut

__all__ = ["is_plain", "prepare", "route", "signature"]

_PLAIN = (torch.Tensor, Parameter)
_MARK = 1 << 40  # addresses divisible by 16 that stand for tensors

native.teach()

try:
    _grad_enabled = _C.is_grad_enabled
    _modes, _functions = _C._len_torch_dispatch_stack, _C._len_torch_function_stack
    _transforms = _C._functorch.peek_interpreter_stack
    _autocast, _tracing = torch.is_autocast_enabled, _C._is_tracing  # on a GPU
    _autograd: Any = getattr(_C, "_autograd")  # noqa: B009  # a module that type checkers do not see
    _profiling = _autograd._profiler_enabled
    _POSSIBLE = True
except AttributeError:  # another torch: every call takes the dispatcher
    _POSSIBLE = False


def is_plain(*tensors: Optional[torch.Tensor], gradients: bool = False) -> bool:
    """Return True if an operator may be called past torch's dispatcher: all tensors are plain ones on a GPU, none
    requires a gradient, and nothing (autocast, modes, transforms, forward mode, tracing, the profiler, the debug mode) watches.

    Ask `torch.compiler.is_compiling()` first: `torch.compile` needs the operator in its graph.

    Args:
        gradients: tensors may require one, as for a `torch.autograd.Function` around the call.
    """
    way = route(*tensors)
    return way == 1 or (gradients and way == 2)


def route(*tensors: Optional[torch.Tensor]) -> int:
    """Return 1 if `is_plain`, 2 if a call needs autograd and nothing else of torch, 0 for the dispatcher: both questions for the price of one.

    Ask `torch.compiler.is_compiling()` first, as for `is_plain`.
    """
    if compiled is not None:
        return compiled.route(*tensors)  # type: ignore[no-any-return]
    if not _POSSIBLE:
        return 0
    way = 1
    for tensor in tensors:
        if tensor is not None:
            if type(tensor) not in _PLAIN or not tensor.is_cuda or tensor.is_neg():
                return 0
            if tensor.requires_grad:
                way = 2
    if (
        _modes()
        or _functions()
        or _autocast()
        or checks.wanted
        or forward_ad._current_level >= 0
        or _transforms() is not None
        or _tracing()
        or _profiling()
    ):
        return 0
    return way if way == 1 or _grad_enabled() else 1


compiled: Any = None  # the same in C++


def _take(module: Any) -> None:
    global compiled
    compiled = module


if _POSSIBLE:
    shortcut.when_loaded(_take)
if compiled is not None and not TYPE_CHECKING:
    route = compiled.route  # a frame less


def signature(*tensors: Optional[torch.Tensor]) -> Hashable:
    """Return what prepared launches depend on: dtype, device, sizes, strides and alignment to 16 bytes of each tensor, and for
    tensors of the host the target that the environment names."""
    known: Hashable = native.engine.signature(*tensors)
    return tuple(map(_facts, tensors)) if known is None else known


if compiled is not None and not TYPE_CHECKING:
    signature = compiled.signature(native.engine.signature, signature)


def _facts(tensor: Optional[torch.Tensor]) -> Hashable:
    if tensor is None:
        return None
    if tensor.layout is not torch.strided or tensor.is_nested:  # for checks to refuse
        return tensor.dtype, tensor.layout, tensor.is_nested
    aligned = tensor.data_ptr() & 15
    device = tensor.get_device()
    place = os.environ.get("GLUON_TARGET") if device < 0 else device
    return tensor.dtype, tensor.shape, tensor.stride(), place, aligned


def prepare(
    kernel: Any,
    grid: Any,
    arguments: Sequence[Any],
    tensors: Sequence[Optional[torch.Tensor]],
    **options: Any,
) -> Callable[..., None]:
    """Prepare a launch whose tensors are those of each call; everything else is fixed.

    Args:
        kernel: the jit function.
        grid: as in `kernel[grid]`.
        arguments: the kernel's arguments for one call: tensors, descriptors of tensors, numbers, constants,
            and tuples of these.
        tensors: those of `arguments` that each call replaces, in the order in which calls give them. None stands for one
            that calls give as None, too.
        options: of the launch, such as `num_warps`.

    Returns:
        `f(*tensors)`, which launches on the current stream. It checks nothing: tensors must have the `signature` of those
        given here. It holds no tensor.
    """
    handle = kernel.prepare(*arguments, grid=grid, **options)
    on_gpu = any(tensor is not None and tensor.is_cuda for tensor in tensors)
    if compiled is None and _POSSIBLE and on_gpu:
        shortcut.seek()
    python = _filling(handle, arguments, tensors)
    if type(handle) is not type(len):
        return python
    marks = tuple(_MARK + 16 * i for i in range(len(tensors)))
    fixed = tuple(_marked(argument, tensors, marks) for argument in arguments)
    refilled: Any = native.engine.refill(handle, fixed, marks, python)
    return python if refilled is None else refilled


def _filling(
    handle: Callable[..., None], arguments: Sequence[Any], tensors: Sequence[Any]
) -> Callable[..., None]:
    """Return `f(*tensors)` that calls a handle with all arguments."""
    fixed = [None if _place(a, tensors) is not None else a for a in arguments]
    slots = [(i, _filler(a, tensors)) for i, a in enumerate(arguments)]
    fillers = [(place, fill) for place, fill in slots if fill is not None]
    for place, _ in fillers:
        fixed[place] = None

    def launch(*tensors_of_call: Optional[torch.Tensor]) -> None:
        values = fixed.copy()
        for place, fill in fillers:
            values[place] = fill(tensors_of_call)
        handle(*values)

    return launch


Filler = Callable[[tuple[Any, ...]], Any]


def _place(argument: Any, tensors: Sequence[Any]) -> Optional[int]:
    """Return which of `tensors` an argument is; None where it is none of them."""
    if argument is None:
        return None
    return next((i for i, tensor in enumerate(tensors) if tensor is argument), None)


def _marked(argument: Any, tensors: Sequence[Any], marks: Sequence[int]) -> Any:
    """Return an argument with the marks of tensors in their places."""
    place = _place(argument, tensors)
    if place is not None:
        return marks[place]
    if isinstance(argument, tuple) and any(_filler(item, tensors) for item in argument):
        return tuple(_marked(item, tensors, marks) for item in argument)
    place = _place(getattr(argument, "base", None), tensors)
    return argument if place is None else _copied(argument, marks[place])


def _filler(argument: Any, tensors: Sequence[Any]) -> Optional[Filler]:
    """Return `f(tensors of a call) -> the argument`; None where it is the same for all calls."""
    place = _place(argument, tensors)
    if place is not None:
        index = place
        return lambda tensors_of_call: tensors_of_call[index]
    if isinstance(argument, tuple):
        fillers = [_filler(item, tensors) for item in argument]
        if not any(fillers):
            return None
        parts = [fill or _constant(item) for fill, item in zip(fillers, argument)]
        return lambda tensors_of_call: tuple([part(tensors_of_call) for part in parts])
    place = _place(getattr(argument, "base", None), tensors)
    if place is None:
        return None
    fields, of = _copied(argument, None), place
    return lambda tensors_of_call: _copied(fields, tensors_of_call[of])


def _constant(value: Any) -> Filler:
    return lambda tensors_of_call: value


def _copied(descriptor: Any, base: Any) -> Any:
    """Return a descriptor with another base. Its fields were checked when the first one was made; each call gets an object of
    its own, as threads may share a launch."""
    copy = object.__new__(type(descriptor))
    object.__setattr__(copy, "__dict__", {**vars(descriptor), "base": base})
    return copy
