"""`swiglu` as an operator of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import DtypeError, ShapeError
from gluon_kernels.checks import check_devices, check_dtype
from gluon_kernels.eager import is_compiling, planned, route
from gluon_kernels.norm import composite, gated_launches
from gluon_kernels.plans import Plans, key

__all__ = ["swiglu"]


def _check_dtypes(gate: Tensor, up: Tensor) -> None:
    for name, x in (("gate", gate), ("up", up)):
        check_dtype("swiglu", x, name)


def _check(gate: Tensor, up: Tensor) -> None:
    _check_dtypes(gate, up)
    if up.shape != gate.shape:
        raise ShapeError(
            "gate and up must have the same shape",
            argument="up",
            expected=list(gate.shape),
            got=list(up.shape),
        )
    if up.dtype != gate.dtype:
        raise DtypeError(
            "gate and up must have the same dtype",
            argument="up",
            expected=str(gate.dtype),
            got=str(up.dtype),
        )
    check_devices(gate, up=up)


def _build(gate: Tensor, up: Tensor) -> Any:
    _check(gate, up)
    return gated_launches.swiglu_plan(gate, up)


_plans = Plans(_build)
_gradient_plans = Plans(gated_launches.swiglu_gradient_plan)


@gluon.torch.op("gluon_kernels::swiglu_backward", shape=lambda grad, gate, up: [gate.shape] * 2)
def _backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    to_gate, to_up = _gradient_plans(key(grad, gate, up), grad, gate, up)
    return to_gate, to_up


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> Any:
    if torch.is_grad_enabled():
        return _gradients_again(ctx, grad)
    return _backward(grad, *ctx.saved_tensors)


def _gradients_again(ctx: Any, grad: Tensor) -> Any:
    return composite.swiglu_gradient(grad, *ctx.saved_tensors)


@gluon.torch.op(
    "gluon_kernels::swiglu",
    shape=lambda gate, up: gate.shape,
    backward=_gradient,
    setup_context=_keep,
    vmap="one_by_one",
)
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    result: Tensor = _plans(key(gate, up), gate, up)
    return result


_watched = planned(
    lambda *tensors: _plans.find(key(*tensors), *tensors),
    lambda needs, *tensors: _gradient_plans.find(key(*tensors), *tensors),
    _gradients_again,
    keep=(0, 1),
)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, computed in float32; gradients flow to both.

    Args:
        gate, up: float16, bfloat16 or float32 of one shape and dtype, such as the halves of a projection: rows of any
            stride are read in place.

    Returns:
        A contiguous tensor of their shape and dtype.

    Raises:
        DtypeError, ShapeError: no tensors of floats, or two of different dtypes or shapes.
        ArgumentError: tensors on different devices.
    """
    result: Tensor
    way = 0 if is_compiling() else route(gate, up)
    if way == 1:
        result = _plans(key(gate, up), gate, up)
        return result
    if way == 2:
        result = _watched(gate, up)
        return result
    _check_dtypes(gate, up)
    if not gate.is_meta and torch.is_autocast_enabled(gate.device.type):
        dtype = torch.promote_types(gate.dtype, up.dtype)
        gate, up = gate.to(dtype), up.to(dtype)
    _check(gate, up)
    result = _swiglu(gate, up)
    return result
