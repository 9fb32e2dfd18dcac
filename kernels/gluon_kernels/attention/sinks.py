"""Sinks: scores that queries of a head have in addition to those of keys, without values (Xiao et al., arXiv:2309.17453)."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from gluon_core.errors import ShapeError
from gluon_kernels.attention.masks import LOG2E
from gluon_kernels.checks import check_devices, check_floats, check_tensors

__all__ = ["check_sinks", "gradient_of_sinks"]


def check_sinks(sinks: Optional[Tensor], q: Tensor) -> None:
    """Raise an error if `sinks` are not one number for each head of `q`, [.., heads, length, width] or [tokens, heads, width]."""
    if sinks is None:
        return
    check_tensors("attention", sinks=sinks)
    check_floats("sinks must be floating-point scores", sinks=sinks)
    heads = q.shape[1]
    if sinks.shape != (heads,):
        raise ShapeError(
            "expected one sink for each query head",
            argument="sinks",
            expected=[heads],
            got=list(sinks.shape),
        )
    check_devices(q, sinks=sinks)


def gradient_of_sinks(sinks: Tensor, grad: Tensor, out: Tensor, logsums: Tensor) -> Tensor:
    """Return the gradient of the sinks.

    A sink's weight is that of a key whose value is 0: its score's derivative is the weight times less the sum of `out * grad`.

    Args:
        sinks: [heads].
        grad, out: [batch, heads, length, width], or [tokens, heads, width].
        logsums: logarithms (base 2) of the rows' sums, the sinks included, float32, without the last dimension of `out`.
    """
    along = [dim for dim in range(logsums.ndim) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(logsums.ndim)]
    weights = torch.exp2(sinks.float().view(shape) * LOG2E - logsums)
    deltas = (out.float() * grad.float()).sum(-1)
    return -(weights * deltas).sum(along).to(sinks.dtype)
