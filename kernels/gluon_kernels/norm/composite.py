"""Softmax, norms, SwiGLU and cross entropy by operations of torch in float32.

They take rows longer than all programs of a row hold in registers. The gradients have gradients themselves, which those of kernels have not.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_core.errors import ShapeError

__all__ = [
    "LONGEST",
    "WIDEST",
    "check_classes",
    "loss_gradient",
    "norm",
    "norm_gradient",
    "norm_statistics",
    "softmax",
    "softmax_gradient",
    "swiglu",
    "swiglu_gradient",
]

LONGEST = 1 << 21  # columns: 64 programs of 16 warps, 64 elements for each thread
WIDEST = 1 << 26  # columns: 65535 blocks of a row, and 16 tiles for each of 1024 programs


def softmax(x: Tensor, dtype: torch.dtype, out: Optional[Tensor]) -> Tensor:
    """Return softmax along the last dimension, in `out` if that is given."""
    if out is None and dtype == x.dtype:
        return torch.softmax(x, -1)
    result = torch.softmax(x, -1, dtype=torch.float32)
    return result.to(dtype) if out is None else out.copy_(result)


def softmax_gradient(grad: Tensor, result: Tensor, dtype: torch.dtype, dim: int = -1) -> Tensor:
    """Return the gradient of the operand of softmax."""
    products = grad.float() * result
    return (products - result * products.sum(dim, keepdim=True)).to(dtype)


def norm_statistics(x: Tensor, centred: bool, epsilon: float) -> Tensor:
    """Return the factors of all rows, and after them the means if `centred`; see `portable.norm`."""
    x = x.float()
    mean = x.mean(-1, keepdim=True)
    wide = x - mean if centred else x
    scale = (wide.square().mean(-1) + epsilon).rsqrt().flatten()
    return torch.cat((scale, mean.flatten())) if centred else scale


def normalized(x: Tensor, statistics: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Return `(x - mean) * scale`, and the scales with a dimension for columns."""
    rows = statistics.numel() // (2 if centred else 1)
    scale = statistics[:rows].view(*x.shape[:-1], 1)
    wide = x.float()
    if centred:
        wide = wide - statistics[rows:].view_as(scale)
    return wide * scale, scale


def norm(centred: bool, epsilon: float, keep: bool) -> Callable[..., Any]:
    """Return `run(x, weight, bias, residual, ..., out) -> (result, sum, statistics)`; see `launches.norm_plan`."""

    def run(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
        dtype, out = rest[-3], rest[-1]
        summed = None if residual is None else (x.float() + residual).to(x.dtype)
        of = x if summed is None else summed
        statistics = norm_statistics(of, centred, epsilon)
        result, _ = normalized(of, statistics, centred)
        if weight is not None:
            result = result * weight
        if bias is not None:
            result = result + bias
        result = result.to(dtype) if out is None else out.copy_(result)
        return result, summed, statistics if keep else None

    return run


def norm_gradient(
    grad: Tensor, x: Tensor, weight: Optional[Tensor], statistics: Tensor, centred: bool,
    to_weight: Optional[torch.dtype], to_bias: Optional[torch.dtype],
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:  # fmt: skip
    """Return the gradients of `x`, and of weight and bias in these dtypes; see `gradient_launches.norm_gradient_plan`."""
    normal, scale = normalized(x, statistics, centred)
    wide = grad.float()
    rows = tuple(range(grad.ndim - 1))
    of_weight, of_bias = wide * normal, wide
    if rows:  # a sum over no dimensions is one over all
        of_weight, of_bias = of_weight.sum(rows), of_bias.sum(rows)
    if weight is not None:
        wide = wide * weight
    of_x = wide - normal * (wide * normal).mean(-1, keepdim=True)
    if centred:
        of_x = of_x - wide.mean(-1, keepdim=True)
    return (
        (of_x * scale).to(x.dtype),
        None if to_weight is None else of_weight.to(to_weight),
        None if to_bias is None else of_bias.to(to_bias),
    )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) * up`."""
    return (torch.nn.functional.silu(gate.float()) * up).to(gate.dtype)


def swiglu_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of both."""
    wide, x = grad.float(), gate.float()
    sigmoid = x.sigmoid()
    slope = sigmoid * (1 + x * (1 - sigmoid))
    return (wide * slope * up).to(gate.dtype), (wide * x * sigmoid).to(up.dtype)


def loss_gradient(grad: Tensor, x: Tensor, labels: Tensor, ignored: int, mean: bool) -> Tensor:
    """Return the gradient of logits [rows, classes]; `grad` is that of each row's loss, or of their mean."""
    counts = labels != ignored
    label = torch.where(counts, labels, 0).long()[:, None]
    share = torch.softmax(x, -1, dtype=torch.float32)
    hit = torch.zeros_like(share).scatter_(1, label, 1.0)
    factor = torch.where(counts, grad / counts.sum() if mean else grad, 0.0)
    return ((share - hit) * factor[:, None]).to(x.dtype)


def check_classes(x: Tensor) -> None:
    """Check that the programs of a row can hold its classes.

    Raises:
        ShapeError: there are too many.
    """
    if x.shape[-1] > WIDEST:
        raise ShapeError(
            "too many classes",
            argument="x",
            expected=f"up to {WIDEST} columns",
            got=list(x.shape),
        )
