"""The plans of SwiGLU and of its gradients."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from gluon_kernels.norm import composite, gates
from gluon_kernels.norm.launches import prepared, reading
from gluon_kernels.norm.tilings import blocks_of
from gluon_kernels.norm.views import Rows
from gluon_kernels.plans import allocator, sequence

__all__ = ["swiglu_gradient_plan", "swiglu_plan"]

Plan = Callable[..., Any]


def swiglu_plan(gate: Tensor, up: Tensor) -> Plan:
    """Return `run(gate, up)`."""
    if not gate.numel():
        return lambda gate, up: torch.empty_like(gate)
    if gate.shape[-1] > composite.WIDEST:
        return composite.swiglu
    first, second = Rows.of(gate), Rows.of(up)
    empty = allocator(tuple(gate.shape), gate.dtype, gate.device)
    new = empty()
    dst = Rows.of(new)
    tiles, grid = blocks_of(first, second, dst)
    tensors = (first.tensor, second.tensor, new)
    sizes = (first.count, first.columns, first.stride, second.stride, dst.stride)
    launch = prepared(gates.swiglu, grid, (*tensors, *sizes), tensors, **tiles.constants())
    return reading(sequence(2, (empty,), [(launch, (0, 1, 2))], 2), first, second)


def swiglu_gradient_plan(grad: Tensor, gate: Tensor, up: Tensor) -> Plan:
    """Return `run(grad, gate, up) -> (gradient of gate, of up)`."""
    if not gate.numel():
        return lambda grad, gate, up: (torch.empty_like(gate), torch.empty_like(up))
    if gate.shape[-1] > composite.WIDEST:
        return composite.swiglu_gradient
    views = [Rows.of(x) for x in (grad, gate, up)]
    news = [allocator(tuple(x.shape), x.dtype, x.device) for x in (gate, up)]
    written = [new() for new in news]
    every = (*views, *(Rows.of(x) for x in written))
    tiles, grid = blocks_of(*every)
    tensors = tuple(row.tensor for row in every)
    sizes = (every[0].count, every[0].columns, *(row.stride for row in every))
    launch = prepared(gates.swiglu_backward, grid, (*tensors, *sizes), tensors, **tiles.constants())
    return reading(sequence(3, news, [(launch, range(5))], (3, 4)), *views)
