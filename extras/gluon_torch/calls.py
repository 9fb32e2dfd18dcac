"""The way of an op's call through torch's dispatcher, for the calls that need nothing on it.

A definition of `torch.library.custom_op` stops a call three times in Python: for autograd, to count what
is written, and for the implementation; each time it makes a context of its own and fills in defaults.
That takes several times as long as a launch. Put in front here are functions that ask whether this call
is one that needs it (something requires a gradient, `torch.compile` watches), and go on if not. The
definition of torch stays behind them, for the calls that do.

Calls within `torch.func` (`grad`, `jacrev`, `hessian`), which torch's definition refuses, take another way.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Callable, Optional

import torch
from torch import _C
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch._library import utils
from torch._library.autograd import make_autograd_impl
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from gluon_torch.forward_mode import refuse_tangents

__all__ = ["shorten_autograd", "shorten_kernel"]

Function = Callable[..., Any]

try:
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        get_eval_frame_callback,
        set_code_exec_strategy,
    )

    _check_aliases = utils._c_check_aliasing_constraint
    _transforms = _C._functorch.peek_interpreter_stack
    POSSIBLE = True
except (ImportError, AttributeError):  # another torch: its own way stays
    POSSIBLE = False


def _plain(definition: Any) -> bool:
    """Return True if results are new tensors: torch has its own rules for views and for `out=`."""
    overload = definition._opoverload
    special = {getattr(torch.Tag, name, None) for name in ("inplace", "out")}
    returned = any(result.alias_info is not None for result in overload._schema.returns)
    return POSSIBLE and not returned and not special & set(overload.tags)


def shorten_autograd(definition: Any) -> None:
    """Call past autograd and the version counters, where no argument requires a gradient."""
    if not _plain(definition):
        return
    overload = definition._opoverload
    torchs = make_autograd_impl(overload, definition)
    transformed = _within_transforms(torchs)
    redispatch, below = overload.redispatch, _C._after_ADInplaceOrView_keyset
    is_grad_enabled, any_requires_grad = _C.is_grad_enabled, _C._any_requires_grad
    below_autograd = _C._AutoDispatchBelowAutograd
    positions, names = utils.mutated_args_kwargs(overload._schema)

    def autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_tangents(overload, args, kwargs)
        if is_grad_enabled() and any_requires_grad(*args, **kwargs):
            return (torchs if _transforms() is None else transformed)(keyset, *args, **kwargs)
        for position in positions:
            if position < len(args) and args[position] is not None:  # else its default, None
                increment_version(args[position])
        for name in names:
            if kwargs.get(name) is not None:
                increment_version(kwargs[name])
        with below_autograd():
            return redispatch(keyset & below, *args, **kwargs)

    _put(definition, "Autograd", autograd, with_keyset=True)


def _within_transforms(torchs: Function) -> Function:
    """Return torch's autograd of an op for calls within `torch.func`.

    Torch takes a `Function` through all transforms at once, and refuses one without `setup_context`. Here the dispatcher has
    come to one level, and takes the call to the levels below: the `Function` is for this level alone.
    """
    names = inspect.getclosurevars(torchs).nonlocals
    generated, metadata = names.get("Generated"), names.get("Metadata")
    if generated is None or metadata is None or hasattr(vars(generated).get("apply"), "__code__"):
        return torchs  # another torch, or an op of lists of tensors

    def forward(ctx: Any, *args: Any) -> Any:
        # For the levels below; a Function switches both off for all.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return generated.forward(ctx, *args)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(generated.backward)}
    of_level: Any = type(generated.__name__, (torch.autograd.Function,), methods)
    apply: Function = super(torch.autograd.Function, of_level).apply

    def transformed(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with enable_single_level_autograd_function():
            return apply(*args, metadata(keyset, kwargs))

    return transformed


def shorten_kernel(definition: Any, device_type: Optional[str], function: Function) -> None:
    """To the implementation, where `torch.compile` does not watch and nobody switched it off.

    Args:
        definition: torch's definition; it knows `function` as the implementation already.
        device_type: where it is that, None for everywhere.
        function: the implementation.
    """
    if not _plain(definition) or device_type not in definition._backend_fns:
        return  # a stand-in for a device may leave the CPU's implementation out
    torchs, disabled = definition._backend_fns[device_type], definition._disabled_kernel
    name, compiler, check_aliases = definition._name, get_eval_frame_callback, _check_aliases

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if compiler() is None and not disabled:
            result = function(*args, **kwargs)
        else:
            result = torchs(*args, **kwargs)
        if result is not None:
            check_aliases(name, args, kwargs, result, lambda: function.__module__)
        return result

    key = (
        "CompositeExplicitAutograd"
        if device_type is None
        else _C._dispatch_key_for_device(device_type)
    )
    _put(definition, key, kernel, with_keyset=False)


def _put(definition: Any, key: str, function: Function, with_keyset: bool) -> None:
    # The compiler's hook would else trace these functions when they are called under a frame of its own.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    set_code_exec_strategy(function.__code__, skip)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        definition._lib.m.impl(definition._name, key, function, with_keyset)
