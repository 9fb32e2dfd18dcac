"""The gradients of Mamba-2's scan, by those of linear attention with steps."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from gluon_kernels.linear_attention import ops
from gluon_kernels.linear_attention.decay_gradients import decaying_backward_plan
from gluon_kernels.linear_attention.decay_launches import Gates
from gluon_kernels.plans import Plans, key

__all__ = ["scan_gradients"]


def _build(
    grad: Tensor, grad_state: Optional[Tensor], x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor],
    bias: Optional[Tensor], softplus: bool, initial: Optional[Tensor], kept: Optional[Tensor],
) -> Any:  # fmt: skip
    plan = decaying_backward_plan(
        grad, grad_state, c, b, x, Gates(dt, a, bias, softplus), d, initial, 1.0, kept
    )

    def run(
        grad: Any, grad_state: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, bias: Any, softplus: Any, initial: Any,
        kept: Any,
    ) -> Any:  # fmt: skip
        return plan(grad, grad_state, c, b, x, Gates(dt, a, bias), d, initial, kept)

    return run


_plans = Plans(_build)


def _gradients_of_slices(*arguments: Any) -> tuple[Optional[Tensor], ...]:
    """Return the gradients of more batches than a launch takes; those of what all batches share, which are `a`, `d` and `bias`, are added up."""
    *tensors, softplus = arguments

    def part(*tensors: Any) -> tuple[Optional[Tensor], ...]:
        *of_call, initial = tensors
        return scan_gradients(*of_call, softplus=softplus, initial=initial, kept=None)

    results = []
    for i, parts in enumerate(ops.in_slices(part, tensors, (4, 7, 8))):
        if i in (2, 5, 6) and parts[0] is not None:
            total = torch.stack([x.float() for x in parts if x is not None]).sum(0)
            results.append(total.to(parts[0].dtype))
        else:
            results.append(ops.joined(parts))
    return tuple(results)


def scan_gradients(
    grad: Tensor, grad_state: Optional[Tensor], x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor],
    bias: Optional[Tensor], softplus: bool, initial: Optional[Tensor], kept: Optional[Tensor],
) -> tuple[Optional[Tensor], ...]:  # fmt: skip
    """Return the gradients of all tensors, in their order, by the states that forward `kept`; those of states, `grad_state` and of `initial`, are transposed."""
    if not x.numel():
        zeros = (None if t is None else torch.zeros_like(t) for t in (x, dt, a, b, c, d, bias))
        unchanged = (
            grad_state if initial is None or grad_state is not None else torch.zeros_like(initial)
        )
        return *zeros, None if initial is None else unchanged
    if x.shape[0] > ops.BATCHES:
        return _gradients_of_slices(grad, grad_state, x, dt, a, b, c, d, bias, initial, softplus)
    of_heads = tuple(None if t is None else t.contiguous() for t in (d, bias))
    tensors = (grad, grad_state, x, dt.contiguous(), a.contiguous(), b, c, *of_heads)
    results = _plans((key(*tensors, initial, kept), softplus), *tensors, softplus, initial, kept)
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
