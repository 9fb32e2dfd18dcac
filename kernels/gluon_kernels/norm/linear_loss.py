"""The cross entropy of a linear layer, whose logits are never whole: some rows at a time, forward and backward."""

from __future__ import annotations

from typing import Any, Iterator

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.gemm.ops import matmul
from gluon_kernels.norm.loss import gradient_of_logits, losses_of

__all__ = ["linear_cross_entropy"]

_AT_ONCE = 1 << 27  # logits
_REDUCTIONS = ("none", "sum", "mean")


def _checked(x: Tensor, weight: Tensor, labels: Tensor) -> None:
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            "the rows do not fit the weights of the layer",
            argument="x, weight",
            expected="[rows, width] and [classes, width]",
            got=f"{list(x.shape)} and {list(weight.shape)}",
        )
    if labels.shape != x.shape[:1]:
        raise ShapeError(
            "not a label for each row", argument="labels", expected=[len(x)], got=list(labels.shape)
        )
    if labels.dtype not in (torch.int64, torch.int32):
        raise DtypeError(
            "not labels", argument="labels", expected="int64 or int32", got=str(labels.dtype)
        )


def _parts(x: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = max(128, _AT_ONCE // max(1, len(weight)))
    return (slice(first, first + rows) for first in range(0, len(x), rows))


@gluon.torch.op(
    "gluon_kernels::linear_cross_entropy_gradient",
    shape=lambda grad, x, weight, labels, logsum, ignore_index: [
        (x.shape, x.dtype), (weight.shape, weight.dtype),
    ],
)  # fmt: skip
def _gradient(
    grad: Tensor, x: Tensor, weight: Tensor, labels: Tensor, logsum: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `x` and `weight` from those of the losses."""
    to_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    to_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    grad = grad.float()
    for part in _parts(x, weight):
        logits = matmul(x[part], weight.mT, out_dtype=torch.float32)
        known = (grad[part], logits, labels[part], logsum[part], None, ignore_index)
        slope = gradient_of_logits(*known, x.dtype)
        to_x[part] = matmul(slope, weight)
        to_weight += matmul(slope.mT, x[part], out_dtype=torch.float32)
    return to_x, to_weight.to(weight.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    to_x, to_weight = _gradient(grad, *ctx.saved_tensors, ctx.ignore_index)
    return to_x, to_weight, None, None


@gluon.torch.op(
    "gluon_kernels::linear_cross_entropy",
    shape=lambda x, weight, labels, ignore_index: [(x.shape[:1], torch.float32)] * 2,
    backward=_backward,
    setup_context=_keep,
)
def _losses(x: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and the logarithm of the sum of its exponentials."""
    _checked(x, weight, labels)
    losses, logsum = (torch.empty(len(x), dtype=torch.float32, device=x.device) for _ in "ab")
    for part in _parts(x, weight):
        logits = matmul(x[part], weight.mT, out_dtype=torch.float32)
        losses[part], logsum[part] = losses_of(logits, labels[part], ignore_index)
    return losses, logsum


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of `x @ weight.mT` with labels, some rows of logits at a time.

    Gradients flow to `x` and `weight`; the logits are computed again for them.

    Args:
        x: [rows, width], float16, bfloat16 or float32.
        weight: [classes, width] of the same dtype.
        labels: int64 or int32 [rows], each below `classes` or `ignore_index`.
        ignore_index: rows with this label have the loss 0 and do not count for the mean.
        reduction: "none" for the loss of each row, "sum", or "mean" over the rows that count.

    Returns:
        float32, [rows] or a scalar.

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    if reduction not in _REDUCTIONS:
        raise ArgumentError(
            "unknown reduction",
            argument="reduction",
            expected=", ".join(_REDUCTIONS),
            got=repr(reduction),
        )
    _checked(x, weight, labels)
    losses: Tensor = _losses.overload(x, weight, labels, ignore_index)[0]
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (labels != ignore_index).sum()
