"""The gradients of Mamba-2's scan, by those of linear attention with steps."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from gluon_kernels.linear_attention.decay_gradients import decaying_backward_plan
from gluon_kernels.linear_attention.decay_launches import Gates
from gluon_kernels.plans import Plans, key

__all__ = ["scan_gradients"]


def _build(
    grad: Tensor, grad_state: Optional[Tensor], x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor],
    bias: Optional[Tensor], softplus: bool, initial: Optional[Tensor],
) -> Any:  # fmt: skip
    plan = decaying_backward_plan(
        grad, grad_state, c, b, x, Gates(dt, a, bias, softplus), d, initial, 1.0
    )

    def run(
        grad: Any, grad_state: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, bias: Any, softplus: Any, initial: Any
    ) -> Any:  # fmt: skip
        return plan(grad, grad_state, c, b, x, Gates(dt, a, bias), d, initial)

    return run


_plans = Plans(_build)


def scan_gradients(
    grad: Tensor, grad_state: Optional[Tensor], x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor],
    bias: Optional[Tensor], softplus: bool, initial: Optional[Tensor],
) -> tuple[Optional[Tensor], ...]:  # fmt: skip
    """Return the gradients of all tensors, in their order; those of states, `grad_state` and of `initial`, are transposed."""
    if not x.numel():
        zeros = (None if t is None else torch.zeros_like(t) for t in (x, dt, a, b, c, d, bias))
        unchanged = (
            grad_state if initial is None or grad_state is not None else torch.zeros_like(initial)
        )
        return *zeros, None if initial is None else unchanged
    of_heads = tuple(None if t is None else t.contiguous() for t in (d, bias))
    tensors = (grad, grad_state, x, dt.contiguous(), a.contiguous(), b, c, *of_heads)
    results = _plans((key(*tensors, initial), softplus), *tensors, softplus, initial)
    to_a, to_bias, to_d = results.sums
    return (
        results.v,
        results.gates,
        to_a.to(a.dtype),
        results.k,
        results.q,
        None if d is None else to_d.to(d.dtype),
        None if bias is None else to_bias.to(bias.dtype),
        None if initial is None else results.initial,
    )
