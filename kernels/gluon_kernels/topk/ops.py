"""`topk` as an operator of PyTorch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError
from gluon_kernels.checks import (
    check_devices,
    check_dtype,
    check_flags,
    check_integers,
    check_out,
)
from gluon_kernels.eager import direct, is_compiling, route
from gluon_kernels.plans import Plans, key
from gluon_kernels.topk import launches

__all__ = ["TopK", "topk"]


class TopK(NamedTuple):
    """The largest or smallest elements along a dimension, and where they are."""

    values: Tensor
    indices: Tensor


def _check(x: Tensor, k: int, dim: int) -> None:
    check_dtype("topk", x)
    if not -x.ndim <= dim < x.ndim:
        raise ArgumentError(
            "the dimension is out of range",
            argument="dim",
            expected=f"{-x.ndim} to {x.ndim - 1}",
            got=dim,
        )
    if not isinstance(k, (int, torch.SymInt)) or isinstance(k, bool) or not 0 <= k <= x.shape[dim]:
        raise ArgumentError(
            "k is out of range",
            argument="k",
            expected=f"0 to {x.shape[dim]}, the size of the dimension",
            got=k,
        )


def _build(x: Tensor, k: int, largest: bool) -> Any:
    _check(x, k, -1)
    return launches.topk_plan(x, k, largest)


_plans = Plans(_build)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.size = inputs[0].shape[-1]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, grad: Tensor, _: Any) -> Any:
    (indices,) = ctx.saved_tensors
    to_x = grad.new_zeros((*grad.shape[:-1], ctx.size))
    return to_x.scatter(-1, indices, grad), None, None


@gluon.torch.op(
    "gluon_kernels::topk",
    shape=lambda x, k, largest: [
        ((*x.shape[:-1], k), x.dtype),
        ((*x.shape[:-1], k), torch.int64),
    ],
    backward=_gradient,
    setup_context=_keep,
    vmap="one_by_one",
)
def _topk(x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    values, indices = _plans((key(x), k, largest), x, k, largest)
    return values, indices


@lru_cache(maxsize=256)
def _watched(k: int, largest: bool, columns: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `f(x) -> (values, indices)` with a gradient."""

    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = _plans((key(x), k, largest), x, k, largest)
        ctx.to_save = (indices,)
        ctx.mark_non_differentiable(indices)
        ctx.set_materialize_grads(False)  # else torch makes zeros for the indices
        return values, indices

    def gradients_of(ctx: Any, grad: Optional[Tensor], _: Any) -> Any:
        if grad is None:
            return None
        (indices,) = ctx.saved_tensors
        return grad.new_zeros((*grad.shape[:-1], columns)).scatter_(-1, indices, grad)

    return direct(forward, gradients_of, gradients_of, whole_context=True)


def topk(
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    *,
    out: Optional[tuple[Tensor, Tensor]] = None,
) -> TopK:
    """Return the `k` largest or smallest elements along a dimension, in their order.

    The elements of lower indices come first among equals; NaN is larger than all numbers. Memory is read once for `k` up to
    256, and up to 1024 in rows of at most 64 KB; beyond, `torch.topk` selects. Gradients flow to `x`.

    Args:
        x: float16, bfloat16 or float32 of any shape and strides.
        k: 0 to the size of the dimension.
        dim: the dimension to look along.
        largest: False for the smallest.
        out: values, of the dtype of `x`, and int64 indices are stored here; not for calls with gradients.

    Returns:
        `(values, indices)`, of the shape of `x` with `k` elements along `dim`.

    Raises:
        DtypeError, ShapeError: no tensor of floats, a scalar, or an `out` of another shape or dtype.
        ArgumentError: the dimension is out of range, `k` is, or `out` is on another device or has a gradient.
    """
    if type(k) is not int or type(dim) is not int or type(largest) is not bool:
        check_integers(k=k, dim=dim)
        check_flags(largest=largest)
    if out is None and dim == -1 and not is_compiling():
        way = route(x)
        if way == 1:
            return TopK(*_plans((key(x), k, largest), x, k, largest))
        if way == 2 and x.ndim:
            return TopK(*_watched(k, largest, x.shape[-1])(x))
    _check(x, k, dim)
    last = dim in (-1, x.ndim - 1)
    result = _topk(x if last else x.movedim(dim, -1), k, largest)
    if not last:
        result = tuple(part.movedim(-1, dim) for part in result)
    if out is None:
        return TopK(*result)
    for part, target in zip(result, out, strict=True):
        check_out(target, part.shape, part.dtype, x)
        check_devices(x, out=target)
        target.copy_(part)
    return TopK(*out)
