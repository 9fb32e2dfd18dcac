"""The cross entropy of a linear layer, whose logits are never whole: some rows at a time, forward and backward."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterator

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.checks import (
    check_devices,
    check_dtype,
    check_integers,
    check_tensors,
)
from gluon_kernels.eager import direct, is_compiling, route
from gluon_kernels.gemm.ops import matmul
from gluon_kernels.norm.loss import check_labels, gradient_of_logits, losses_of, mean_loss_of
from gluon_kernels.plans import Plans, key

__all__ = ["linear_cross_entropy"]

_AT_ONCE = 1 << 28  # logits
_REDUCTIONS = ("none", "sum", "mean")


def _checked(x: Tensor, weight: Tensor, labels: Tensor) -> None:
    check_tensors("linear_cross_entropy", x=x, weight=weight, labels=labels)
    for name, one in (("x", x), ("weight", weight)):
        check_dtype("linear_cross_entropy", one, name)
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            "the weights of the layer do not match the rows",
            argument="x, weight",
            expected="[rows, width] and [classes, width]",
            got=f"{list(x.shape)} and {list(weight.shape)}",
        )
    if labels.shape != x.shape[:1]:
        raise ShapeError(
            "expected one label for each row",
            argument="labels",
            expected=[len(x)],
            got=list(labels.shape),
        )
    if labels.dtype not in (torch.int64, torch.int32):
        raise DtypeError(
            "labels must be integers",
            argument="labels",
            expected="int64 or int32",
            got=str(labels.dtype),
        )
    check_devices(x, weight=weight, labels=labels)


def _once(x: Tensor, weight: Tensor, labels: Tensor) -> Callable[..., None]:
    _checked(x, weight, labels)
    return lambda *tensors: None


_checks = Plans(_once)  # for tensors of each signature once


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
    """Return the gradients of `x` and `weight` from those of the losses, some classes at a time."""
    step = max(128, _AT_ONCE // max(1, len(x)) // 128 * 128)
    to_x = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    to_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    grad = grad.float()
    for first in range(0, len(weight), step):  # classes: each gradient of a weight is one sum
        part = weight[first : first + step]
        logits = matmul(x, part.mT)
        known = (grad, logits, labels - first, logsum, None, ignore_index - first)
        slope = gradient_of_logits(*known, x.dtype)
        to_x += matmul(slope, part, out_dtype=torch.float32)
        matmul(slope.mT, x, out=to_weight[first : first + step])
    return to_x.to(x.dtype), to_weight


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
    if labels.is_cpu:
        check_labels(labels, len(weight), ignore_index)
    losses, logsum = (torch.empty(len(x), dtype=torch.float32, device=x.device) for _ in "ab")
    for part in _parts(x, weight):
        logits = matmul(x[part], weight.mT)
        losses[part], logsum[part] = losses_of(logits, labels[part], ignore_index, True)
    return losses, logsum


def _forward(
    ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, ignore_index: int, mean: bool
) -> Tensor:
    """Return the loss of each row or their mean past torch's dispatcher; `ctx` is None where no gradient is wanted."""
    _checks(key(x, weight, labels), x, weight, labels)
    size = len(x) * len(weight)
    logits, inverse = None, None
    if 0 < size <= _AT_ONCE:
        logits = matmul(x, weight.mT)
        if mean:
            loss, inverse, logsum = mean_loss_of(logits, labels, ignore_index, ctx is not None)
        else:
            loss, logsum = losses_of(logits, labels, ignore_index, ctx is not None)
    else:
        loss, logsum = _losses.function(x, weight, labels, ignore_index)
        if mean:
            inverse = 1 / (labels != ignore_index).sum()
            loss = loss.sum() * inverse
    if ctx is not None:
        slope = None
        if logits is not None and x.dtype == torch.float16:
            # Probabilities that are divided by thousands of labels are too small for it: the factor comes later.
            known = (None, logits, labels, logsum, None, ignore_index)
            slope, logits = gradient_of_logits(*known, x.dtype), None
        ctx.to_save = (x, weight, labels, logsum, inverse, logits, slope)
    result: Tensor = loss
    return result


def _gradients_of(ctx: Any, grad: Tensor, ignored: int) -> tuple[Any, ...]:
    """Return the gradients of `x` and `weight`."""
    x, weight, labels, logsum, inverse, logits, slope = ctx.saved_tensors
    needs = ctx.needs_input_grad
    if logits is None and slope is None:
        of_rows = grad if inverse is None else (grad * inverse).expand(len(x))
        to_x, to_weight = _gradient.function(of_rows, x, weight, labels, logsum, ignored)
        return to_x, to_weight, None
    factor = None
    if slope is None:
        slope = gradient_of_logits(grad, logits, labels, logsum, inverse, ignored, x.dtype)
    else:  # that of losses that are added up
        factor = grad if inverse is None else grad * inverse.clamp_max(1)  # no label may count
        factor = factor[:, None] if factor.ndim else factor
    to_x = matmul(slope, weight) if needs[0] else None
    if needs[1]:
        scaled = x if factor is None else (x * factor).to(x.dtype)
        to_weight = matmul(slope.mT, scaled)
    else:
        to_weight = None
    if to_x is not None and factor is not None:
        to_x *= factor
    return to_x, to_weight, None


@lru_cache(maxsize=256)
def _watched(ignore_index: int, mean: bool) -> Callable[..., Tensor]:
    """Return `f(x, weight, labels) -> losses or their mean` with a gradient."""
    return direct(
        lambda ctx, x, weight, labels: _forward(ctx, x, weight, labels, ignore_index, mean),
        lambda ctx, grad: _gradients_of(ctx, grad, ignore_index),
    )


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of `x @ weight.mT` with labels, some rows of logits at a time.

    Logits have the dtype of `x`; losses are computed of them in float32. Gradients flow to `x` and `weight`. For them, up to 268 million logits are kept, those
    of float16 as their gradient; more are computed again, some classes at a time.

    Args:
        x: [rows, width], float16, bfloat16 or float32.
        weight: [classes, width] of the same dtype.
        labels: int64 or int32 [rows], each below `classes` or `ignore_index`. The loss of another label on a GPU is NaN.
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
    if type(ignore_index) is not int:
        check_integers(ignore_index=ignore_index)
    mean = reduction == "mean"
    losses: Tensor
    way = 0 if is_compiling() else route(x, weight, labels)
    if way == 1:
        losses = _forward(None, x, weight, labels, ignore_index, mean)
    elif way == 2:
        losses = _watched(ignore_index, mean)(x, weight, labels)
    else:
        _checked(x, weight, labels)
        losses = _losses(x, weight, labels, ignore_index)[0]
        if mean:
            return losses.sum() / (labels != ignore_index).sum()
    return losses.sum() if reduction == "sum" else losses
