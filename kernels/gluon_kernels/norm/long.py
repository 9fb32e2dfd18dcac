"""Rows longer than all programs of a row hold in registers, by operations of torch in float32."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_core.errors import ShapeError

__all__ = [
    "LONGEST",
    "WIDEST",
    "check_classes",
    "norm_gradient_of_long_rows",
    "norm_of_long_rows",
    "softmax_gradient_of_long_rows",
    "softmax_of_long_rows",
    "swiglu_gradient_of_long_rows",
    "swiglu_of_long_rows",
]

LONGEST = 1 << 21  # columns: 64 programs of 16 warps, 64 elements for each thread
WIDEST = 1 << 26  # columns: 65535 blocks of a row, and 16 tiles for each of 1024 programs


def softmax_of_long_rows(x: Tensor, dtype: torch.dtype, out: Optional[Tensor]) -> Tensor:
    """Return softmax along the last dimension, in `out` if that is given."""
    result = torch.softmax(x, -1, dtype=torch.float32)
    return result.to(dtype) if out is None else out.copy_(result)


def softmax_gradient_of_long_rows(grad: Tensor, result: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the operand of softmax."""
    products = grad.float() * result
    return products.sub_(result * products.sum(-1, keepdim=True)).to(dtype)


def norm_of_long_rows(centred: bool, epsilon: float, keep: bool) -> Callable[..., Any]:
    """Return `run(x, weight, bias, residual, ..., out) -> (result, sum, statistics)`; see `launches.norm_plan`."""

    def run(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
        dtype, out = rest[-3], rest[-1]
        summed = None if residual is None else (x.float() + residual).to(x.dtype)
        wide = (x if summed is None else summed).float()
        mean = wide.mean(-1, keepdim=True) if centred else torch.zeros_like(wide[..., :1])
        wide = wide - mean
        scale = wide.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        result = wide.mul_(scale)
        if weight is not None:
            result = result.mul_(weight)
        if bias is not None:
            result = result.add_(bias)
        parts = (scale.flatten(), mean.flatten()) if centred else (scale.flatten(),)
        statistics = torch.cat(parts) if keep else None
        return result.to(dtype) if out is None else out.copy_(result), summed, statistics

    return run


def norm_gradient_of_long_rows(
    grad: Tensor, x: Tensor, weight: Optional[Tensor], statistics: Tensor, centred: bool,
    to_weight: Optional[torch.dtype], to_bias: Optional[torch.dtype],
) -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:  # fmt: skip
    """Return the gradients of `x`, and of weight and bias in these dtypes; see `launches.norm_gradient_plan`."""
    rows = grad.numel() // grad.shape[-1]
    scale = statistics[:rows].view(*grad.shape[:-1], 1)
    normal, wide = x.float(), grad.float()
    if centred:
        normal = normal - statistics[rows:].view_as(scale)
    normal = normal * scale
    columns = tuple(range(grad.ndim - 1))
    of_weight = None if to_weight is None else (wide * normal).sum(columns).to(to_weight)
    of_bias = None if to_bias is None else wide.sum(columns).to(to_bias)
    if weight is not None:
        wide = wide * weight
    of_x = wide - normal * (wide * normal).mean(-1, keepdim=True)
    if centred:
        of_x -= wide.mean(-1, keepdim=True)
    return of_x.mul_(scale).to(x.dtype), of_weight, of_bias


def swiglu_of_long_rows(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) * up`."""
    return torch.nn.functional.silu(gate.float()).mul_(up).to(gate.dtype)


def swiglu_gradient_of_long_rows(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of both."""
    wide, x = grad.float(), gate.float()
    sigmoid = x.sigmoid()
    of_up = (wide * x).mul_(sigmoid).to(up.dtype)
    slope = sigmoid * (1 + x * (1 - sigmoid))
    return slope.mul_(wide).mul_(up).to(gate.dtype), of_up


def check_classes(x: Tensor) -> None:
    """Check that the programs of a row can hold its classes.

    Raises:
        ShapeError: there are too many.
    """
    if x.shape[-1] > WIDEST:
        raise ShapeError(
            "more classes than the programs of a row hold",
            argument="x",
            expected=f"up to {WIDEST} columns",
            got=list(x.shape),
        )
