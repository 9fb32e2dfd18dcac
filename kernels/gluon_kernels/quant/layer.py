"""`linear`: a layer whose weights are floats, or quantized to 8 or 4 bits, as an operator of PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.checks import (
    FLOATS,
    check_apart,
    check_devices,
    check_no_gradients,
    check_out,
    check_tensors,
)
from gluon_kernels.eager import differentiable, gradients_through, route
from gluon_kernels.gemm.call import (  # fmt: skip
    check_activation,
    check_bias,
    check_settings,
    result_dtype,
)
from gluon_kernels.gemm.ops import activated, matmul
from gluon_kernels.plans import Plans, current_target, multiprocessors
from gluon_kernels.quant import launches

__all__ = ["linear"]

is_plain, signature, is_compiling = (
    gluon.torch.is_plain,
    gluon.torch.signature,
    torch.compiler.is_compiling,
)
_FORMATS = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


class Layer(NamedTuple):
    """The checked arguments of a layer.

    Args:
        format: "int8", "int4", "mxfp4", "e4m3" or "e5m2".
        rows, n, k: of `x`, of the weights, and of both.
        group: weights along K that share a scale; 0 where all of a row do, or none has one.
        shape, dtype: of the result.
    """

    format: str
    rows: int
    n: int
    k: int
    group: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _format(weight: Tensor, scales: Optional[Tensor]) -> str:
    if weight.dtype is torch.uint8:
        return "mxfp4" if scales is not None and scales.dtype is torch.uint8 else "int4"
    if weight.dtype not in _FORMATS:
        raise DtypeError(
            "unsupported dtype of the weights",
            argument="weight",
            expected="the dtype of x, int8, float8_e4m3fn, float8_e5m2, or uint8 of two weights of 4 bits",
            got=str(weight.dtype),
        )
    return _FORMATS[weight.dtype]


def _checked(
    x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out_dtype: Optional[torch.dtype], out: Optional[Tensor] = None,
) -> Layer:  # fmt: skip
    tensors = {"scales": scales, "bias": bias, "out": out}
    check_tensors("linear", tensors, x=x, weight=weight)
    if x.dtype not in FLOATS:
        raise DtypeError(
            "activations must be floating-point",
            argument="x",
            expected="float16, bfloat16 or float32",
            got=str(x.dtype),
        )
    format = _format(weight, scales)
    if x.ndim < 1 or weight.ndim != 2:
        raise ShapeError(
            "linear takes rows and the weights of a layer",
            argument="x, weight",
            expected="[..., K] and [N, K]",
            got=f"{list(x.shape)} and {list(weight.shape)}",
        )
    k, n = x.shape[-1], weight.shape[0]
    packed = 2 if format in ("int4", "mxfp4") else 1
    if weight.shape[1] * packed != k:
        raise ShapeError(
            "the weights and x have different numbers of columns",
            argument="weight",
            expected=f"[N, {k}]" if packed == 1 else f"[N, {k} / 2] of two weights in a byte",
            got=list(weight.shape),
        )
    group = _group(scales, format, n, k)
    check_bias(bias, n)
    check_activation(activation)
    shape, dtype = (*x.shape[:-1], n), result_dtype(x, out_dtype)
    check_devices(x, weight=weight, scales=scales, bias=bias, out=out)
    if out is not None:
        check_out(out, shape, dtype)
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    return Layer(format, rows, n, k, group, shape, dtype)


def _group(scales: Optional[Tensor], format: str, n: int, k: int) -> int:
    """Return how many weights along K share a scale, 0 for all of a row."""
    if scales is None:
        if format in ("int8", "int4", "mxfp4"):
            raise ArgumentError(
                "integer weights need scales",
                argument="scales",
                expected=f"[{n}] or [{n}, groups]",
                got=None,
            )
        return 0
    exponents = format == "mxfp4"
    if not exponents and scales.dtype not in FLOATS:
        raise DtypeError(
            "the scales have the wrong dtype",
            argument="scales",
            expected="float16, bfloat16 or float32; uint8 exponents for weights of 4 bits",
            got=str(scales.dtype),
        )
    groups = 1 if scales.ndim < 2 else scales.shape[-1]
    if tuple(scales.shape) not in ((n,), (n, groups)) or groups < 1 or k % groups:
        raise ShapeError(
            "scales must be per row of the weights, or per group of its columns",
            argument="scales",
            expected=f"[{n}] or [{n}, groups], where groups divide {k} columns",
            got=list(scales.shape),
        )
    if groups == 1:
        return 0
    if k // groups % 32:
        raise ShapeError(
            "groups must be multiples of 32 columns",
            argument="scales",
            expected=f"[{n}, {k} / group]",
            got=f"{list(scales.shape)}, groups of {k // groups}",
        )
    return k // groups


def _build(
    x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out_dtype: Optional[torch.dtype], out: Optional[Tensor],
) -> Callable[..., Tensor]:  # fmt: skip
    layer = _checked(x, weight, scales, bias, activation, out_dtype, out)
    within = min(layer.rows, layer.n, layer.k) > 0 and x.dtype in (torch.float16, torch.bfloat16)
    hopper = current_target().has("nvidia.wgmma")
    if within:
        processors = multiprocessors(x)
        plan = launches.converting(
            layer, x, weight, scales, bias, activation, out, processors, hopper
        )
        if plan is not None:
            return plan

    def run(x: Tensor, weight: Tensor, scales: Any, bias: Any, out: Optional[Tensor]) -> Tensor:
        numbers = _restore(weight, scales, x.dtype, layer.k)
        return _plain(x, numbers, bias, activation, out, layer.dtype)

    return run


def _build_restoring(
    weight: Tensor, scales: Optional[Tensor], dtype: torch.dtype, k: int
) -> Callable[..., Tensor]:
    format = _format(weight, scales)
    group = _group(scales, format, weight.shape[0], k)
    return launches.restoring(weight, scales, format, dtype, k, group)


plans, restoring = Plans(_build), Plans(_build_restoring)


@gluon.torch.op(
    "gluon_kernels::restore_weights",
    shape=lambda weight, scales, dtype, k: ((weight.shape[0], k), dtype),
)
def _restored(weight: Tensor, scales: Optional[Tensor], dtype: torch.dtype, k: int) -> Tensor:
    """Return weights times their scales, [N, K]."""
    return _restore(weight, scales, dtype, k)


def _restore(weight: Tensor, scales: Optional[Tensor], dtype: torch.dtype, k: int) -> Tensor:
    result: Tensor = restoring((signature(weight, scales), dtype), weight, scales, dtype, k)
    return result


def _run(
    x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out_dtype: Optional[torch.dtype], out: Optional[Tensor] = None,
) -> Tensor:  # fmt: skip
    known_by = (signature(x, weight, scales, bias, out), activation, out_dtype)
    plan = plans.find(known_by, x, weight, scales, bias, activation, out_dtype, out)
    result: Tensor = plan(x, weight, scales, bias, out)
    return result


def _fake(
    x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    layer = _checked(x, weight, scales, bias, activation, out_dtype)
    return x.new_empty(layer.shape, dtype=layer.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.activation, _ = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients of `x` and of the bias; quantized weights have none."""
    x, weight, scales, bias = ctx.saved_tensors
    direct = not is_compiling() and is_plain(grad, weight, scales)
    restore = _restore if direct else _restored
    numbers = restore(weight, scales, x.dtype, x.shape[-1])
    if ctx.activation is not None:
        before = matmul(x.reshape(-1, x.shape[-1]), numbers.mT, bias=bias, out_dtype=torch.float32)
        activation = partial(activated, activation=ctx.activation)
        (grad,) = gradients_through(activation, [before.view(grad.shape)], grad.float())
    needs = ctx.needs_input_grad
    to_x = to_bias = None
    if needs[0]:
        own = grad if grad.dtype is x.dtype else grad.to(x.dtype)
        if own.ndim == 2:
            to_x = matmul(own, numbers)
        else:
            to_x = matmul(own.reshape(-1, grad.shape[-1]), numbers).view(x.shape)
    if bias is not None and needs[3]:
        to_bias = grad.float().reshape(-1, grad.shape[-1]).sum(0).to(bias.dtype)
    return to_x, None, None, to_bias, None, None


@gluon.torch.op("gluon_kernels::linear", fake=_fake, backward=_gradients, setup_context=_keep)
def _linear(
    x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    return _run(x, weight, scales, bias, activation, out_dtype)


_watched = differentiable(_run, _keep, _gradients, again=True)


@gluon.torch.op("gluon_kernels::linear_out", mutates_args=("out",))
def _linear_out(
    x: Tensor, weight: Tensor, scales: Optional[Tensor], bias: Optional[Tensor],
    activation: Optional[str], out: Tensor,
) -> None:  # fmt: skip
    check_apart(out, x=x, weight=weight)
    _run(x, weight, scales, bias, activation, out.dtype, out)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    scales: Optional[Tensor] = None,
    activation: Optional[str] = None,
    out: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Apply a layer: `activation(x @ weight.mT + bias)`, with weights that are floats or quantized.

    Hopper converts quantized weights within the product, so that memory sends 8 or 4 bits of each, where that takes less time than to restore
    them first, as with many rows and on other devices. Sums are float32. Equal inputs give equal bits. Gradients flow to `x` and `bias`, and to weights of
    the dtype of `x`; `torch.autocast` casts `x` as that of `torch.nn.functional.linear`.

    Args:
        x: [..., K], float16, bfloat16 or float32.
        weight: [N, K] of the dtype of `x`, int8, float8_e4m3fn or float8_e5m2; or uint8 [N, K / 2] of two weights of 4 bits, the
            low half first: signed integers, or with scales of uint8 the elements of mxfp4 (OCP Microscaling, 2023).
        bias: [N], floating-point, of any stride.
        scales: of each row, [N], or of each group of its columns, [N, groups], which are multiples of 32 columns; floating-point,
            or uint8 exponents for mxfp4. Optional for floats of 8 bits; none for weights of the dtype of `x`. Those of groups may count
            as infinite from 2^43 on if `x` is bfloat16.
        activation: "relu", "silu", "gelu" or "gelu_tanh".
        out: the result is stored here, [..., N]; not for calls with gradients.
        out_dtype: of the result, that of `x` by default.

    Returns:
        [..., N].

    Raises:
        ShapeError, DtypeError, ArgumentError: the arguments do not fit each other.
    """
    if activation is not None or out_dtype is not None:
        check_settings(activation, out_dtype)
    if out is None and not (is_compiling() or x is None or weight is None):
        way = route(x, weight, scales, bias)
        if way and weight.dtype is not x.dtype and (bias is None or bias.is_contiguous()):
            call = _run if way == 1 else _watched
            result: Tensor = call(x, weight, scales, bias, activation, out_dtype)
            return result
    check_tensors("linear", {"scales": scales, "bias": bias, "out": out}, x=x, weight=weight)
    if not x.is_meta and torch.is_autocast_enabled(x.device.type) and x.is_floating_point():
        dtype = torch.get_autocast_dtype(x.device.type)
        weight = weight.to(dtype) if weight.dtype == x.dtype else weight
        x = x.to(dtype)
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    if weight.dtype == x.dtype:
        if scales is not None:
            raise ArgumentError(
                "weights of the dtype of x take no scales", argument="scales", expected=None, got=list(scales.shape)
            )  # fmt: skip
        return _plain(x, weight, bias, activation, out, out_dtype)
    if out is not None:
        if out_dtype is not None and out_dtype != out.dtype:
            check_out(out, out.shape, out_dtype)
        check_devices(x, out=out)
        check_no_gradients(x, bias, out)
        if not is_compiling() and is_plain(x, weight, scales, bias, out):
            check_apart(out, x=x, weight=weight)
            torch.autograd.graph.increment_version(out)
            return _run(x, weight, scales, bias, activation, out.dtype, out)
        _linear_out.overload(x, weight, scales, bias, activation, out)
        return out
    way = 0 if is_compiling() else route(x, weight, scales, bias)
    call = (_linear, _run, _watched)[way]
    result = call(x, weight, scales, bias, activation, out_dtype)
    return result


def _plain(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], activation: Optional[str],
    out: Optional[Tensor], out_dtype: Optional[torch.dtype],
) -> Tensor:  # fmt: skip
    if weight.ndim != 2:
        raise ShapeError("the weights must be a matrix", argument="weight", expected="[N, K]", got=list(weight.shape))  # fmt: skip
    rows = x[None] if x.ndim == 1 else x
    to = out[None] if out is not None and x.ndim == 1 else out
    result = matmul(rows, weight.mT, bias=bias, activation=activation, out=to, out_dtype=out_dtype)
    if out is not None:
        return out
    return result[0] if x.ndim == 1 else result
