"""The gradients of Mamba-2's scan: those of linear attention, and what the steps and the weight of `x` make of them."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.ops import linear_backward
from gluon_kernels.plans import Launch, Plans, allocator, key

__all__ = ["scan_gradients", "token_gradients"]

ROWS = 32  # of a program


@gluon.jit
def token_gradients(
    to_values, x, grad, rates, d, to_x, to_rates, to_d, steps, rows, sizes, ROWS: gl.constexpr, P: gl.constexpr
):  # fmt: skip
    """Store the gradients of some tokens' x, rates and weights of x from those of values, `x` times rate; the grid has groups of rows.

    A row is a token's head. `to_values`, `to_x` [rows, width], and `rates`, `to_rates` and `to_d` [rows], float32, are contiguous; `steps` are the
    strides of batches, tokens and heads of `x` and of `grad`; `sizes` are length, heads and width.
    """
    length, heads, width = sizes
    dtype: gl.constexpr = x.dtype.element_ty
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, P], dtype)
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, P, gl.SliceLayout(0, layout))[None, :]
    inside = (row < rows)[:, None] & (column < width)
    head = row % heads
    token = row // heads
    batch = (token // length).to(gl.int64)
    near = token % length
    place = row.to(gl.int64)[:, None] * width + column
    of_x = batch * steps[0][0] + near * steps[0][1] + head * steps[0][2]
    of_grad = batch * steps[1][0] + near * steps[1][1] + head * steps[1][2]
    value = gl.load(to_values + place, mask=inside, other=0.0).to(gl.float32)
    own = gl.load(x + of_x[:, None] + column, mask=inside, other=0.0).to(gl.float32)
    rate = gl.load(rates + row, mask=row < rows, other=0.0)
    gl.store(to_rates + row, gl.sum(value * own, 1), mask=row < rows)
    result = value * rate[:, None]
    if d is not None:
        change = gl.load(grad + of_grad[:, None] + column, mask=inside, other=0.0).to(gl.float32)
        gl.store(to_d + row, gl.sum(change * own, 1), mask=row < rows)
        result += change * gl.load(d + head).to(gl.float32)[:, None]
    gl.store(to_x + place, result.to(dtype), mask=inside)


def _build(to_values: Tensor, x: Tensor, grad: Tensor, rates: Tensor, d: Optional[Tensor]) -> Any:
    rows, width = rates.numel(), x.shape[3]
    new_x = allocator(tuple(x.shape), x.dtype, x.device)
    new_rates = allocator(tuple(rates.shape), torch.float32, x.device)

    def results() -> tuple[Tensor, Tensor, Optional[Tensor]]:
        return new_x(), new_rates(), None if d is None else new_rates()

    if not rows:
        return lambda *arguments: results()
    steps = tuple(t.stride()[:3] for t in (x, grad))
    tensors = (to_values, x, grad, rates, d, *results())
    launch: Callable[..., Any] = Launch(
        token_gradients,
        (-(-rows // ROWS),),
        (
            *tensors, steps, rows, (x.shape[1], x.shape[2], width), ROWS, max(16, 1 << (width - 1).bit_length()),
        ),
        tensors,
        num_warps=4,
    )  # fmt: skip

    def run(to_values: Tensor, x: Tensor, grad: Tensor, rates: Tensor, d: Optional[Tensor]) -> Any:
        done = results()
        launch(to_values, x, grad, rates, d, *done)
        return done

    return run


_plans = Plans(_build)


def scan_gradients(
    grad: Tensor, grad_state: Optional[Tensor], x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor],
    bias: Optional[Tensor], softplus: bool, initial: Optional[Tensor],
) -> tuple[Optional[Tensor], ...]:  # fmt: skip
    """Return the gradients of all tensors, in their order; those of states, `grad_state` and of `initial`, are transposed."""
    before = dt.float() if bias is None else dt.float() + bias
    rates = F.softplus(before) if softplus else before
    rates = rates.contiguous()
    values = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(x, rates[..., None], out=values)
    to_c, to_b, to_values, to_gates, _, to_initial = linear_backward(
        grad, grad_state, c, b, values, rates * a, None, initial, 1.0
    )
    if grad.stride(3) != 1 or x.stride(3) != 1:
        grad, x = grad.contiguous(), x.contiguous()
    tensors = (to_values.contiguous(), x, grad, rates, d)
    to_x, to_rates, to_d = _plans(key(*tensors), *tensors)
    to_rates = to_rates + to_gates * a
    to_before = to_rates * torch.sigmoid(before) if softplus else to_rates
    return (
        to_x,
        to_before.to(dt.dtype),
        (to_gates * rates).sum((0, 1)).to(a.dtype),
        to_b,
        to_c,
        None if d is None or to_d is None else to_d.sum((0, 1)).to(d.dtype),
        None if bias is None else to_before.sum((0, 1)).to(bias.dtype),
        None if initial is None else to_initial,
    )
