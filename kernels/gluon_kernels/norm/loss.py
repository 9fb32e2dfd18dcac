"""Cross entropy of rows as an operator of PyTorch: checks, registration, gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError, did_you_mean
from gluon_kernels.checks import (
    check_devices,
    check_dtype,
    check_integers,
    check_tensors,
)
from gluon_kernels.eager import direct, is_compiling, route
from gluon_kernels.norm import composite, loss_launches
from gluon_kernels.plans import Plans, key

__all__ = ["check_labels", "cross_entropy", "gradient_of_logits", "losses_of", "mean_loss_of"]

REDUCTIONS = ("none", "sum", "mean")


def _build_loss(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Any:
    _check_loss(x, labels)
    return loss_launches.cross_entropy_plan(x, labels, ignored, keep)


def _build_mean_loss(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Any:
    _check_loss(x, labels)
    return loss_launches.mean_loss_plan(x, labels, ignored, keep)


def _check_loss(x: Tensor, labels: Tensor) -> None:
    check_tensors("cross_entropy", x=x, labels=labels)
    check_dtype("cross_entropy", x)
    if x.ndim != 2 or not x.shape[1]:
        raise ShapeError(
            "logits must have one row for each label",
            argument="x",
            expected="[rows, classes], at least one class",
            got=list(x.shape),
        )
    composite.check_classes(x)
    if labels.dtype not in (torch.int64, torch.int32):
        raise DtypeError(
            "labels must be integers",
            argument="labels",
            expected="int64 or int32",
            got=str(labels.dtype),
        )
    if tuple(labels.shape) != (x.shape[0],):
        raise ShapeError(
            "expected one label for each row",
            argument="labels",
            expected=[x.shape[0]],
            got=list(labels.shape),
        )
    check_devices(x, labels=labels)


_losses = Plans(_build_loss)
_mean_losses = Plans(_build_mean_loss)
_loss_gradients = Plans(loss_launches.loss_gradient_plan)


def check_labels(labels: Tensor, classes: int, ignored: int) -> None:
    """Check labels that the host can read; a label of a GPU that is no class gives NaN.

    Raises:
        ArgumentError: one is no class.
    """
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != ignored)]
    if len(wrong):
        raise ArgumentError(
            "a label is no class",
            argument="labels",
            expected=f"0 to {classes - 1}, or {ignored} for rows that do not count",
            got=int(wrong[0]),
        )


def losses_of(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Any:
    """Return the losses of rows of logits, and for gradients the logarithms of their sums, float32."""
    if not x.shape[0]:
        return x.new_empty(0, dtype=torch.float32), x.new_empty(0, dtype=torch.float32)
    return _losses((key(x, labels), ignored, keep), x, labels, ignored, keep)


def mean_loss_of(x: Tensor, labels: Tensor, ignored: int, keep: bool) -> Any:
    """Return the mean, and for gradients 1 / the number of labels that count and the logarithms of sums."""
    if not x.shape[0]:
        nothing = x.new_full((), float("nan"), dtype=torch.float32)
        return nothing, nothing.clone(), x.new_empty(0, dtype=torch.float32)
    return _mean_losses((key(x, labels), ignored, keep), x, labels, ignored, keep)


def gradient_of_logits(
    grad: Optional[Tensor], x: Tensor, labels: Tensor, logsum: Tensor, inverse: Optional[Tensor], ignored: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Return the gradient of logits in a dtype; see `loss_launches.loss_gradient_plan`."""
    if not x.numel():
        return torch.empty_like(x, dtype=dtype)
    known_by = (key(grad, x, labels, inverse), ignored, dtype)
    result: Tensor = _loss_gradients(known_by, grad, x, labels, logsum, inverse, ignored, dtype)
    return result


@gluon.torch.op(
    "gluon_kernels::cross_entropy_backward",
    shape=lambda grad, x, labels, logsum, ignored: x.shape,
)
def _loss_backward(grad: Tensor, x: Tensor, labels: Tensor, logsum: Tensor, ignored: int) -> Tensor:
    return gradient_of_logits(grad, x, labels, logsum, None, ignored, x.dtype)


def _keep_loss(ctx: Any, inputs: Any, output: Any) -> None:
    x, labels, ctx.ignored, ctx.mean = inputs
    ctx.save_for_backward(x, labels, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _loss_gradient(ctx: Any, grad: Tensor, *_: Any) -> Any:
    x, labels, logsum, inverse = ctx.saved_tensors
    if torch.is_grad_enabled():
        return composite.loss_gradient(grad, x, labels, ctx.ignored, ctx.mean), None, None, None
    if ctx.mean:
        grad = grad * inverse
    return _loss_backward(grad, x, labels, logsum, ctx.ignored), None, None, None


@gluon.torch.op(
    "gluon_kernels::cross_entropy",
    shape=lambda x, labels, ignored, mean: [
        (() if mean else x.shape[:1], torch.float32),
        (x.shape[:1], torch.float32),
        (() if mean else (0,), torch.float32),
    ],
    backward=_loss_gradient,
    setup_context=_keep_loss,
)
def _cross_entropy(
    x: Tensor, labels: Tensor, ignored: int, mean: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each row or their mean, the logarithms of sums, and 1 / the number of labels that count."""
    if labels.is_cpu:
        check_labels(labels, x.shape[1], ignored)
    if mean:
        middle, inverse, logsum = mean_loss_of(x, labels, ignored, True)
        return middle, logsum, inverse
    loss, logsum = losses_of(x, labels, ignored, True)
    return loss, logsum, loss.new_empty(0)


@lru_cache(maxsize=256)
def _watched_loss(ignored: int, mean: bool) -> Callable[..., Tensor]:
    """Return `f(x, labels) -> losses or their mean` with a gradient."""

    def forward(ctx: Any, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor
        inverse: Optional[Tensor] = None
        if mean:
            loss, inverse, logsum = mean_loss_of(x, labels, ignored, True)
        else:
            loss, logsum = losses_of(x, labels, ignored, True)
        ctx.to_save = (x, labels, logsum, inverse)
        return loss

    def gradients_of(ctx: Any, grad: Tensor) -> Any:
        x, labels, logsum, inverse = ctx.saved_tensors
        return gradient_of_logits(grad, x, labels, logsum, inverse, ignored, x.dtype), None

    def gradients_again(ctx: Any, grad: Tensor) -> Any:
        x, labels, _, _ = ctx.saved_tensors
        return composite.loss_gradient(grad, x, labels, ignored, mean), None

    return direct(forward, gradients_of, gradients_again)


def cross_entropy(
    x: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of rows of logits with their labels, computed in float32.

    Gradients flow to `x`, with equal bits for equal inputs.

    Args:
        x: [rows, classes], float16, bfloat16 or float32 of any strides.
        labels: int64 or int32 [rows], each below `classes` or `ignore_index`. The loss of another label on a GPU is NaN.
        ignore_index: rows with this label have the loss 0 and do not count for the mean.
        reduction: "none" for the loss of each row, "sum", or "mean" over the rows that count.

    Returns:
        float32, [rows] or a scalar.

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, an unknown reduction, or a label on a CPU that is no class.
    """
    if reduction not in REDUCTIONS:
        raise ArgumentError(
            "unknown reduction",
            argument="reduction",
            expected=", ".join(REDUCTIONS),
            got=repr(reduction),
            remedy=did_you_mean(reduction, REDUCTIONS) or None,
        )
    mean = reduction == "mean"
    loss: Tensor
    if type(ignore_index) is not int:
        check_integers(ignore_index=ignore_index)
    if type(x) is not Tensor or x.is_nested:
        check_tensors("cross_entropy", x=x)
    way = 0 if is_compiling() else route(x, labels)
    if way == 1:
        if mean:
            loss = mean_loss_of(x, labels, ignore_index, False)[0]
        else:
            loss = losses_of(x, labels, ignore_index, False)[0]
    elif way == 2:
        loss = _watched_loss(ignore_index, mean)(x, labels)
    else:
        _check_loss(x, labels)
        loss, _, _ = _cross_entropy(x, labels, ignore_index, mean)
    return loss.sum() if reduction == "sum" else loss
