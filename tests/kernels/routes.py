"""The way of tensors on a GPU past torch's dispatcher, for tests on a CPU."""

from typing import Any

import torch


def plain(*tensors: Any, gradients: bool = False) -> bool:
    """Stand in for `gluon_core.torch.is_plain`."""
    wanted = any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
    watched = torch.is_autocast_enabled("cpu")
    plain = all(x is None or isinstance(x, torch.Tensor) for x in tensors)
    return plain and not watched and (gradients or not (torch.is_grad_enabled() and wanted))


def route(*tensors: Any) -> int:
    """Stand in for `gluon_core.torch.route`."""
    return 1 if plain(*tensors) else 2 if plain(*tensors, gradients=True) else 0
