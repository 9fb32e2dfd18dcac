"""Calls that need nothing of torch's dispatcher: plain tensors, no gradient, no tracer.

An operator of `torch.library` passes several keys of the dispatcher in Python, which takes longer than a launch. A
function that finds `direct(...)` true may run its plan at once.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import _C

from gluon_torch import checks

__all__ = ["direct"]

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_compiling = torch.compiler.is_compiling
_functions, _dispatchers = _C._len_torch_function_stack, _C._len_torch_dispatch_stack
_transforms = _C._functorch.peek_interpreter_stack
_grad, _tracing = torch.is_grad_enabled, _C._get_tracing_state
_autocast = torch.is_autocast_enabled
_dual = torch.autograd.forward_ad


def direct(*tensors: Optional[Any]) -> bool:
    """Return True if a call with these tensors, None among them, needs no operator of torch around it.

    False under `torch.compile`, modes, `torch.func` transforms, forward-mode derivatives, tracing and the debug mode
    of `gluon_core.torch`, for subclasses and tensors without memory, and where a gradient is wanted.
    """
    if _compiling():
        return False
    if _functions() or _dispatchers() or checks.wanted or _dual._current_level >= 0:
        return False
    if _transforms() is not None or _tracing() is not None:
        return False
    grad = _grad()
    for tensor in tensors:
        if tensor is None:
            continue
        cls = type(tensor)
        if cls is not _Tensor and cls is not _Parameter:
            return False
        if grad and tensor.requires_grad:
            return False
        if not (tensor.is_cuda or tensor.is_cpu):
            return False
    return True
