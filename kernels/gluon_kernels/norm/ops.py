"""Softmax and norms of rows as operators of PyTorch: checks, registration, gradients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.checks import (
    FLOATS,
    check_apart,
    check_devices,
    check_dtype,
    check_dtypes,
    check_integers,
    check_numbers,
    check_out,
    check_tensors,
)
from gluon_kernels.eager import differentiable, is_compiling, planned, route
from gluon_kernels.norm import composite, gradient_launches, launches
from gluon_kernels.norm.columns import (
    columns_plan,
    softmax_backward_of_columns,
    softmax_of_columns,
)
from gluon_kernels.norm.views import check_vector
from gluon_kernels.plans import Plans, bound, key

__all__ = ["layer_norm", "rms_norm", "softmax"]


def _result_dtype(x: Tensor, dtype: Optional[torch.dtype]) -> torch.dtype:
    """Return the dtype of a result: float32 under autocast, as torch has it for sums of many numbers."""
    if dtype is None:
        kind = x.device.type
        return torch.float32 if kind != "meta" and torch.is_autocast_enabled(kind) else x.dtype
    if dtype not in FLOATS:
        raise DtypeError(
            "unsupported dtype of the result",
            argument="dtype",
            expected="float16, bfloat16 or float32",
            got=str(dtype),
        )
    return dtype


# -- softmax -----------------------------------------------------------------------------------------


def _build_softmax(x: Tensor, dtype: torch.dtype, out: Optional[Tensor]) -> Any:
    check_dtype("softmax", x)
    return launches.softmax_plan(x, dtype, out)


def _build_columns(x: Tensor, dim: int, dtype: torch.dtype) -> Any:
    check_dtype("softmax", x)
    return columns_plan(softmax_of_columns, (x,), dim, dtype) or (
        lambda x, dim, dtype: _softmax_of(x.movedim(dim, -1), dtype).movedim(-1, dim)
    )


def _build_columns_gradient(grad: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Any:
    def transposed(grad: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        rows = (grad.movedim(dim, -1), result.movedim(dim, -1))
        gradient: Tensor = _softmax_gradients((key(*rows), dtype), *rows, dtype)
        return gradient.movedim(-1, dim)

    return columns_plan(softmax_backward_of_columns, (grad, result), dim, dtype) or transposed


def _softmax_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    result: Tensor = _softmaxes((key(x), dtype), x, dtype, None)
    return result


_softmaxes = Plans(_build_softmax)
_softmaxes_of_columns = Plans(_build_columns)
_column_gradients = Plans(_build_columns_gradient)
_softmax_gradients = Plans(launches.softmax_gradient_plan)


@gluon.torch.op(
    "gluon_kernels::softmax_backward",
    shape=lambda grad, result, dtype: (result.shape, dtype),
    vmap="one_by_one",
)
def _softmax_backward(grad: Tensor, result: Tensor, dtype: torch.dtype) -> Tensor:
    gradient: Tensor = _softmax_gradients((key(grad, result), dtype), grad, result, dtype)
    return gradient


def _keep_softmax(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.dtype = inputs[0].dtype
    ctx.save_for_backward(output)


def _softmax_gradient(ctx: Any, grad: Tensor) -> Any:
    (result,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        return composite.softmax_gradient(grad, result, ctx.dtype), None
    return _softmax_backward(grad, result, ctx.dtype), None


@gluon.torch.op(
    "gluon_kernels::softmax",
    shape=lambda x, dtype: (x.shape, dtype),
    backward=_softmax_gradient,
    setup_context=_keep_softmax,
    vmap="one_by_one",
)
def _softmax(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _softmax_of(x, dtype)


@gluon.torch.op("gluon_kernels::softmax_out", mutates_args=("out",))
def _softmax_out(x: Tensor, out: Tensor) -> None:
    check_apart(out, in_place="x", x=x)
    _softmaxes(key(x, out), x, out.dtype, out)


def _softmax_of_rows(x: Tensor) -> Callable[..., Tensor]:
    return bound(_softmaxes.find(key(x), x, x.dtype, None), x.dtype, None)


def _softmax_gradient_of_rows(needs: Any, grad: Tensor, result: Tensor) -> Callable[..., Any]:
    dtype = result.dtype
    return bound(_softmax_gradients.find(key(grad, result), grad, result, dtype), dtype)


def _softmax_gradients_again(ctx: Any, grad: Tensor) -> Any:
    (result,) = ctx.saved_tensors
    return composite.softmax_gradient(grad, result, result.dtype)


_watched_softmax = planned(
    _softmax_of_rows, _softmax_gradient_of_rows, _softmax_gradients_again, keep=(1,)
)


@lru_cache(maxsize=64)
def _watched_columns(dim: int) -> Callable[..., Tensor]:
    """Return `f(x) -> softmax along dim` with a gradient."""

    def plan_of(x: Tensor) -> Callable[..., Tensor]:
        more = dim, x.dtype
        return bound(_softmaxes_of_columns.find((key(x), *more), x, *more), *more)

    def gradient_plan_of(needs: Any, grad: Tensor, result: Tensor) -> Callable[..., Any]:
        more = dim, result.dtype
        known_by = key(grad, result), dim
        return bound(_column_gradients.find(known_by, grad, result, *more), *more)

    def gradients_again(ctx: Any, grad: Tensor) -> Any:
        (result,) = ctx.saved_tensors
        return composite.softmax_gradient(grad, result, result.dtype, dim)

    return planned(plan_of, gradient_plan_of, gradients_again, keep=(1,))


def softmax(
    x: Tensor,
    dim: int = -1,
    *,
    dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Return `exp(x) / sum(exp(x))` along a dimension, computed in float32.

    Args:
        x: float16, bfloat16 or float32 of any shape and strides; rows of any width are read once where `dim` is the last one.
        dim: the dimension of the sum.
        dtype: of the result; that of `x` by default, and float32 under `torch.autocast`.
        out: the result is stored here; not for calls with gradients. `out` may be `x`.

    Returns:
        A tensor of the shape of `x`.

    Raises:
        DtypeError, ShapeError: no tensor of floats, a scalar, or an `out` of another shape or dtype.
        ArgumentError: the dimension is out of range, or `out` is on another device or has a gradient.
    """
    result: Tensor
    if type(dim) is not int or dtype is not None:
        check_integers(dim=dim)
        check_dtypes(dtype=dtype)
    if not (x is None or out is not None or is_compiling()):
        way = route(x)
        if way == 1:
            kind = x.dtype if dtype is None else _result_dtype(x, dtype)
            if dim == -1 or dim == x.ndim - 1:
                known_by = key(x) if dtype is None else (key(x), kind)
                plan = _softmaxes.get(known_by)  # a frame less than a call of the plans
                if plan is None:
                    plan = _softmaxes.find(known_by, x, kind, None)
                result = plan(x, kind, None)
                return result
            if -x.ndim <= dim < x.ndim:
                dim %= x.ndim
                result = _softmaxes_of_columns((key(x), dim, kind), x, dim, kind)
                return result
        elif way == 2 and (dtype is None or dtype == x.dtype):
            if dim == -1 or dim == x.ndim - 1:
                result = _watched_softmax(x)
                return result
            if -x.ndim <= dim < x.ndim:
                result = _watched_columns(dim % x.ndim)(x)
                return result
    check_dtype("softmax", x)
    if not -x.ndim <= dim < x.ndim:
        raise ArgumentError(
            "the dimension is out of range",
            argument="dim",
            expected=f"{-x.ndim} to {x.ndim - 1}",
            got=dim,
        )
    kind = _result_dtype(x, dtype)
    if out is not None:
        check_tensors("softmax", out=out)
        check_out(out, x.shape, kind if dtype is not None else out.dtype, x)
        check_dtype("softmax", out, "out")
        check_devices(x, out=out)
    if dim not in (-1, x.ndim - 1):
        if out is None:
            return softmax(x.movedim(dim, -1), dtype=kind).movedim(-1, dim)
        softmax(x.movedim(dim, -1), out=out.movedim(dim, -1))
        return out
    if out is None:
        result = _softmax(x, kind)
        return result
    _softmax_out(x, out)
    return out


# -- norms -------------------------------------------------------------------------------------------


def _check_norm(
    op: str, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor]
) -> None:
    check_dtype(op, x)
    check_vector("weight", weight, x.shape[-1])
    check_vector("bias", bias, x.shape[-1])
    if residual is not None:
        check_dtype(op, residual, "residual")
        if residual.shape != x.shape:
            raise ShapeError(
                "the residual must have the shape of x",
                argument="residual",
                expected=list(x.shape),
                got=list(residual.shape),
            )
    check_devices(x, weight=weight, bias=bias, residual=residual)


def _build_norm(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor], epsilon: float,
    centred: bool, dtype: torch.dtype, keep: bool, out: Optional[Tensor],
) -> Any:  # fmt: skip
    _check_norm("layer_norm" if centred else "rms_norm", x, weight, bias, residual)
    return launches.norm_plan(x, weight, bias, residual, epsilon, centred, dtype, keep, out)


def _build_norm_alone(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], epsilon: float, centred: bool
) -> Any:
    _check_norm("layer_norm" if centred else "rms_norm", x, weight, bias, None)
    return launches.norm_alone_plan(x, weight, bias, epsilon, centred)


_norms = Plans(_build_norm)
_norms_alone = Plans(_build_norm_alone)
_norm_gradients = Plans(gradient_launches.norm_gradient_plan)


def _normalized(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor], epsilon: float,
    centred: bool, dtype: torch.dtype, keep: bool, out: Optional[Tensor],
) -> Any:  # fmt: skip
    known_by = (key(x, weight, bias, residual, out), epsilon, centred, dtype, keep)
    return _norms(known_by, x, weight, bias, residual, epsilon, centred, dtype, keep, out)


def _gradient_shapes(
    grad: Tensor, x: Tensor, weight: Optional[Tensor], statistics: Tensor, centred: bool, wanted: list[bool]
) -> Any:  # fmt: skip
    columns = x.shape[-1]
    sizes = [((columns if one else 0,), torch.float32) for one in wanted]
    return [(x.shape, x.dtype), *sizes]


@gluon.torch.op("gluon_kernels::norm_backward", shape=_gradient_shapes)
def _norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Optional[Tensor],
    statistics: Tensor,
    centred: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `x`, and in float32 those of weight and bias, empty where `wanted` says no."""
    kinds = [torch.float32 if one else None for one in wanted]
    known_by = (key(grad, x, weight, statistics), centred, *kinds)
    parts = _norm_gradients(known_by, grad, x, weight, statistics, centred, *kinds)
    none = [torch.empty(0, dtype=torch.float32, device=x.device) for one in parts if one is None]
    of_x, of_weight, of_bias = (none.pop() if part is None else part for part in parts)
    return of_x, of_weight, of_bias


def _norm_shapes(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor], epsilon: float,
    centred: bool, dtype: torch.dtype,
) -> Any:  # fmt: skip
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    summed = x.shape if residual is not None else (0,)
    return [(x.shape, dtype), (summed, x.dtype), ((2 * rows if centred else rows,), torch.float32)]


def _keep_norm(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, residual, ctx.epsilon, ctx.centred, _ = inputs
    ctx.dtypes = (
        None if bias is None else bias.dtype,
        None if residual is None else residual.dtype,
    )
    _, summed, statistics = output
    ctx.save_for_backward(summed if residual is not None else x, weight, statistics)
    ctx.mark_non_differentiable(statistics)


def _norm_gradient(ctx: Any, grad: Tensor, of_sum: Tensor, *_: Any) -> Any:
    x, weight, statistics = ctx.saved_tensors
    bias_dtype, residual_dtype = ctx.dtypes
    needs = ctx.needs_input_grad
    wanted = [weight is not None and needs[1], bias_dtype is not None and needs[2]]
    parts: Any
    if torch.is_grad_enabled():
        kinds = [torch.float32 if one else None for one in wanted]
        statistics = composite.norm_statistics(x, ctx.centred, ctx.epsilon)
        parts = composite.norm_gradient(grad, x, weight, statistics, ctx.centred, *kinds)
    else:
        dense = weight if weight is None else weight.contiguous()
        parts = _norm_backward(grad, x, dense, statistics, ctx.centred, wanted)
    to_x, to_weight, to_bias = parts
    if residual_dtype is not None:
        to_x = to_x + of_sum
    return (
        to_x,
        to_weight.to(weight.dtype) if wanted[0] else None,
        to_bias.to(bias_dtype) if wanted[1] else None,
        to_x.to(residual_dtype) if residual_dtype is not None else None,
        None,
        None,
        None,
    )


@gluon.torch.op(
    "gluon_kernels::norm", shape=_norm_shapes, backward=_norm_gradient, setup_context=_keep_norm
)
def _norm(
    x: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    residual: Optional[Tensor],
    epsilon: float,
    centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm, the sum with the residual, empty where there is none, and the statistics of `portable.norm`."""
    result, summed, statistics = _normalized(
        x, weight, bias, residual, epsilon, centred, dtype, True, None
    )
    return result, x.new_empty(0) if summed is None else summed, statistics


_watched_norm = differentiable(_norm.function, _keep_norm, _norm_gradient, again=True)


@lru_cache(maxsize=256)
def _watched_norm_alone(
    epsilon: float, centred: bool, bias_dtype: Optional[torch.dtype]
) -> Callable[..., Tensor]:
    """Return `f(x, weight, bias) -> norm` with a gradient."""
    settings = (epsilon, centred)

    def plan_of(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> Callable[..., Any]:
        more = None, epsilon, centred, x.dtype, True, None
        known_by = (key(x, weight, bias), settings)
        return bound(_norms.find(known_by, x, weight, bias, *more), *more)

    def kinds(needs: Any, weight: Optional[Tensor]) -> tuple[Any, ...]:
        _, to_weight, to_bias = needs
        return (
            centred,
            weight.dtype if to_weight and weight is not None else None,
            bias_dtype if to_bias else None,
        )

    def gradient_plan_of(
        needs: Any, grad: Tensor, x: Tensor, weight: Optional[Tensor], statistics: Tensor
    ) -> Callable[..., Any]:
        wanted = kinds(needs, weight)
        strided = weight is not None and not weight.is_contiguous()
        if weight is not None and strided:
            weight = weight.contiguous()
        known_by = (key(grad, x, weight), wanted)
        plan = _norm_gradients.find(known_by, grad, x, weight, statistics, *wanted)
        if strided:
            return lambda grad, x, weight, statistics: plan(grad, x, weight.contiguous(), statistics, *wanted)  # fmt: skip
        return bound(plan, *wanted)

    def gradients_again(ctx: Any, grad: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        statistics = composite.norm_statistics(x, centred, epsilon)
        wanted = kinds(ctx.needs_input_grad, weight)
        return composite.norm_gradient(grad, x, weight, statistics, *wanted)

    return planned(plan_of, gradient_plan_of, gradients_again, keep=(0, 1, 5))


@gluon.torch.op("gluon_kernels::norm_out", mutates_args=("out",))
def _norm_out(
    x: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    residual: Optional[Tensor],
    epsilon: float,
    centred: bool,
    out: Tensor,
) -> Tensor:
    """Return the sum with the residual, empty where there is none."""
    check_apart(out, in_place="x", x=x, weight=weight, bias=bias, residual=residual)
    _, summed, _ = _normalized(x, weight, bias, residual, epsilon, centred, out.dtype, False, out)
    return x.new_empty(0) if summed is None else summed


_norm_out.register_fake(
    lambda x, weight, bias, residual, epsilon, centred, out: x.new_empty(
        0 if residual is None else x.shape
    )
)


def _any_norm(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor], epsilon: float,
    centred: bool, out: Optional[Tensor],
) -> Any:  # fmt: skip
    if type(epsilon) is not float:
        check_numbers(eps=epsilon)
    way = 0 if out is not None or is_compiling() else route(x, weight, bias, residual)
    if way == 1:
        if residual is None:
            known_by = (key(x, weight, bias), epsilon, centred)
            return _norms_alone(known_by, x, weight, bias, epsilon, centred)
        result, summed, _ = _normalized(
            x, weight, bias, residual, epsilon, centred, x.dtype, False, None
        )
        return result, summed
    if way == 2 and residual is None:
        bias_dtype = None if bias is None else bias.dtype
        return _watched_norm_alone(epsilon, centred, bias_dtype)(x, weight, bias)
    _check_norm("layer_norm" if centred else "rms_norm", x, weight, bias, residual)
    if out is None:
        kind = _result_dtype(x, None)
        call = _watched_norm if way == 2 else _norm
        result, summed, _ = call(x, weight, bias, residual, epsilon, centred, kind)
    else:
        check_dtype("a norm", out, "out")
        check_out(out, x.shape, out.dtype, x, weight, bias, residual)
        check_devices(x, out=out)
        summed = _norm_out(x, weight, bias, residual, epsilon, centred, out)
        result = out
    return result if residual is None else (result, summed)


def rms_norm(
    x: Tensor,
    weight: Optional[Tensor] = None,
    eps: float = 1e-6,
    *,
    residual: Optional[Tensor] = None,
    out: Optional[Tensor] = None,
) -> Any:
    """Return `x / sqrt(mean(x * x) + eps) * weight` along the last dimension, computed in float32.

    Gradients flow to `x`, `weight` and `residual`, with equal bits for equal inputs.

    Args:
        x: [..., columns], float16, bfloat16 or float32 of any strides.
        weight: [columns], of any of these dtypes.
        eps: added to the mean of squares.
        residual: of the shape of `x`, added first; the sum, rounded to the dtype of `x`, is a second result.
        out: the result is stored here, of the shape of `x`; not for calls with gradients. `out` may be `x`.

    Returns:
        A tensor of the shape and dtype of `x`, float32 under `torch.autocast`; with `residual`, that and the sum.

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, or `out` where a gradient is wanted.
    """
    return _any_norm(x, weight, None, residual, eps, False, out)


def layer_norm(
    x: Tensor,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *,
    residual: Optional[Tensor] = None,
    out: Optional[Tensor] = None,
) -> Any:
    """Return `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` along the last dimension, computed in float32.

    Gradients flow to `x`, `weight`, `bias` and `residual`, with equal bits for equal inputs.

    Args:
        x: [..., columns], float16, bfloat16 or float32 of any strides.
        weight, bias: [columns], of any of these dtypes.
        eps: added to the variance.
        residual: of the shape of `x`, added first; the sum, rounded to the dtype of `x`, is a second result.
        out: the result is stored here, of the shape of `x`; not for calls with gradients. `out` may be `x`.

    Returns:
        A tensor of the shape and dtype of `x`, float32 under `torch.autocast`; with `residual`, that and the sum.

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, or `out` where a gradient is wanted.
    """
    return _any_norm(x, weight, bias, residual, eps, True, out)
