"""Mamba-2's scan in chunks (state space duality; Dao and Gu, arXiv:2405.21060), by linear attention with decays."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_core.errors import ShapeError
from gluon_kernels.checks import (
    HALVES,
    check_devices,
    check_flags,
    check_floats,
    check_one_dtype,
    check_tensors,
)
from gluon_kernels.eager import direct, is_compiling, is_plain, wants_gradient
from gluon_kernels.linear_attention import ops
from gluon_kernels.linear_attention.decay_launches import Gates, decaying_plan, fits
from gluon_kernels.linear_attention.ops import WIDEST, autocast, check_state, gated_linear_attention
from gluon_kernels.linear_attention.ssd_gradients import scan_gradients
from gluon_kernels.plans import Plans, key

__all__ = ["ssd"]


def _check(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor], dt_bias: Optional[Tensor],
    initial: Optional[Tensor],
) -> None:  # fmt: skip
    check_tensors("ssd", {"d": d}, x=x, dt=dt, a=a, b=b, c=c)
    check_one_dtype("ssd", HALVES, x=x, b=b, c=c)
    if x.ndim != 4 or not x.shape[3]:
        raise ShapeError(
            "the scan takes tensors of four dimensions",
            argument="x",
            expected="[batch, length, heads, width]",
            got=list(x.shape),
        )
    heads = x.shape[2]
    shapes = (
        ("dt", dt, [*x.shape[:3]]),
        ("a", a, [heads]),
        ("d", d, [heads]),
        ("dt_bias", dt_bias, [heads]),
    )
    check_floats("gates must be floating-point", dt=dt, a=a, d=d, dt_bias=dt_bias)
    check_devices(x, dt=dt, a=a, b=b, c=c, d=d, dt_bias=dt_bias, initial_state=initial)
    for name, tensor, wanted in shapes:
        if tensor is None:
            continue
        if list(tensor.shape) != wanted:
            raise ShapeError(
                "expected one number for each head",
                argument=name,
                expected=wanted,
                got=list(tensor.shape),
            )
    if b.ndim != 4 or b.shape[:2] != x.shape[:2] or not b.shape[2] or heads % b.shape[2]:
        raise ShapeError(
            "the number of heads must be a multiple of the number of groups",
            argument="b",
            expected=f"{[*x.shape[:2]]}, a divisor of {heads} heads, state size",
            got=list(b.shape),
        )
    if not 0 < b.shape[3] <= WIDEST:
        raise ShapeError(
            "the state size is not supported",
            argument="b",
            expected=f"1 to {WIDEST} columns",
            got=b.shape[3],
        )
    if c.shape != b.shape:
        raise ShapeError(
            "b and c must have the same shape",
            argument="c",
            expected=list(b.shape),
            got=list(c.shape),
        )
    check_state(initial, x, b)


def _build(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor], bias: Optional[Tensor],
    softplus: bool, initial: Optional[Tensor], keep: bool,
) -> Any:  # fmt: skip
    if not x.numel():
        shape = (x.shape[0], x.shape[2], x.shape[3], b.shape[3])

        def nothing(x: Tensor, *arguments: Any) -> Any:
            initial = arguments[-2]
            state = x.new_zeros(shape, dtype=torch.float32) if initial is None else initial.clone()
            return torch.empty_like(x), state, None

        return nothing
    walk = decaying_plan(c, b, x, Gates(dt, a, bias, softplus), d, initial, 1.0, keep)

    def run(
        x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, bias: Any, softplus: Any, initial: Any, keep: Any
    ) -> Any:  # fmt: skip
        return walk(c, b, x, Gates(dt, a, bias), d, initial)

    return run


_plans = Plans(_build)


def _scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Optional[Tensor], bias: Optional[Tensor],
    initial_state: Optional[Tensor], softplus: bool, keep: bool = False,
) -> Any:  # fmt: skip
    """Return the result, final states, transposed, and with `keep` those before chunks, by walks that apply the steps and `d` themselves."""
    if x.shape[0] > ops.BATCHES:
        whole = (x, dt, a, b, c, d, bias, initial_state)
        parts = ops.in_slices(partial(_scan, softplus=softplus), whole, (2, 5, 6))
        return tuple(map(ops.joined, parts))
    initial = None if initial_state is None else initial_state.mT.contiguous()
    rows = [None if t is None else t.contiguous() for t in (a, d, bias)]
    tensors = (x, dt.contiguous(), rows[0], b, c, rows[1], rows[2])
    known_by = (key(*tensors, initial), softplus, keep)
    return _plans(known_by, *tensors, softplus, initial, keep)


def _forward_and_keep(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    out, final, states = _scan(*arguments, keep=True)
    *tensors, ctx.softplus = arguments
    ctx.save_for_backward(*tensors, states)
    ctx.set_materialize_grads(False)
    return out, final


def _gradients(ctx: Any, grad: Optional[Tensor], grad_state: Optional[Tensor]) -> Any:
    *tensors, initial_state, kept = ctx.saved_tensors
    if grad is None:
        grad = torch.zeros_like(tensors[0])
    initial = None if initial_state is None else initial_state.mT.contiguous()
    results = scan_gradients(
        grad, grad_state, *tensors, softplus=ctx.softplus, initial=initial, kept=kept
    )
    to_initial = results[-1]
    return *results[:-1], None if to_initial is None else to_initial.mT, None


_watched = direct(_forward_and_keep, _gradients, whole_context=True)


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    d: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    dt_softplus: bool = False,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Return the outputs of Mamba-2's scan, in chunks of 64 tokens.

    Each head has a state S of N x P, zeros at first. Token by token

        S = exp(dt * a) * S + dt * b x^T;  y = S^T c + d * x

    Gradients flow to all tensors, as `gated_delta_rule` says.

    Args:
        x: [batch, length, heads, P], float16 or bfloat16.
        dt: [batch, length, heads], the steps.
        a: [heads], negative.
        b, c: [batch, length, groups, N] of the dtype of `x`, N as K of `gated_delta_rule`; the heads are a multiple of the groups.
        d: [heads], the weight of `x` in the result.
        dt_bias: [heads], added to `dt` first.
        dt_softplus: `dt` becomes `softplus(dt)`.
        initial_state: float32 [batch, heads, N, P].
        return_state: return the states after the last token, too.

    Returns:
        [batch, length, heads, P]; with `return_state` also float32 [batch, heads, N, P].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices.
    """
    check_tensors("ssd", {"dt_bias": dt_bias, "initial_state": initial_state}, x=x, b=b, c=c)
    check_flags(dt_softplus=dt_softplus, return_state=return_state)
    x, b, c = autocast(x, b, c)
    _check(x, dt, a, b, c, d, dt_bias, initial_state)
    tensors = (x, dt, a, b, c, d, dt_bias, initial_state)
    if fits(b) and not is_compiling():
        known = None
        if is_plain(*tensors):
            known = _scan(*tensors, dt_softplus)[:2]
        elif wants_gradient(*tensors):
            known = _watched(*tensors, dt_softplus)
        if known is not None:
            return (known[0], known[1].mT) if return_state else known[0]
    step = dt.float()
    if dt_bias is not None:
        step = step + dt_bias
    if dt_softplus:
        step = F.softplus(step)
    values = (x * step[..., None]).to(x.dtype)
    result = gated_linear_attention(
        c, b, values, step * a, scale=1.0, initial_state=initial_state, return_state=return_state
    )
    if d is None:
        return result
    if isinstance(result, tuple):
        out, state = result
        return torch.addcmul(out, x, d.to(x.dtype)[:, None]), state
    return torch.addcmul(result, x, d.to(x.dtype)[:, None])
