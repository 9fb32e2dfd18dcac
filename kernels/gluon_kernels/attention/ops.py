"""Attention over whole sequences as an operator of PyTorch: checks, registration, gradients."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, CapabilityError, DtypeError, ShapeError
from gluon_kernels.eager import differentiable, is_compiling, is_plain, wants_gradient
from gluon_kernels.norm.views import check_apart, check_out
from gluon_kernels.plans import Plans, current_target, key

__all__ = ["attention"]

WIDEST = 128


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in (torch.float16, torch.bfloat16) or x.dtype != q.dtype:
            raise DtypeError(
                "attention takes tensors of one 16-bit dtype",
                argument=name,
                expected="float16 or bfloat16, as q has" if name != "q" else "float16 or bfloat16",
                got=str(x.dtype),
                remedy="Convert them: q.bfloat16().",
            )
        if x.ndim != 4:
            raise ShapeError(
                "attention takes heads of sequences",
                argument=name,
                expected="[batch, heads, length, width]",
                got=list(x.shape),
            )
        if x.device != q.device:
            raise ArgumentError(
                "the tensors are on different devices",
                argument=name,
                expected=str(q.device),
                got=str(x.device),
            )
    if k.shape != v.shape:
        raise ShapeError(
            "keys and values have one shape",
            argument="v",
            expected=list(k.shape),
            got=list(v.shape),
        )
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(
            "queries and keys have the same batch and width",
            argument="k",
            expected=f"[{q.shape[0]}, heads, length, {q.shape[3]}]",
            got=list(k.shape),
        )
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ShapeError(
            "each head of keys serves as many heads of queries",
            argument="k",
            expected=f"a divisor of {q.shape[1]} heads",
            got=k.shape[1],
        )
    if not 0 < q.shape[3] <= WIDEST:
        raise ShapeError(
            "heads are too wide", argument="q", expected=f"1 to {WIDEST} elements", got=q.shape[3]
        )
    if not k.shape[2] and q.numel():
        raise ShapeError("there is no key to attend to", argument="k", got=list(k.shape))


def _launches() -> Any:
    target = current_target()
    if not (target.has("nvidia.wgmma") and target.has("nvidia.tma")):
        raise CapabilityError(
            "this attention is written for Hopper",
            argument="target",
            expected="a device with wgmma and TMA, such as sm_90",
            got=str(target),
        )
    from gluon_kernels.attention import launches

    return launches


def _build(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, keep: bool, out: Optional[Tensor]
) -> Any:
    _check(q, k, v)
    launches = _launches()
    if not q.numel():

        def nothing(q: Tensor, *rest: Any) -> Any:
            logsums = q.new_empty(q.shape[:3], dtype=torch.float32)
            return (torch.empty_like(q) if rest[-1] is None else rest[-1]), logsums

        return nothing
    return launches.forward_plan(q, k, v, causal, scale, keep, out)


def _build_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, causal: bool, scale: float,
    repeatable: bool,
) -> Any:  # fmt: skip
    if not q.numel():
        return lambda grad, q, k, v, *rest: (
            torch.zeros_like(q),
            torch.zeros_like(k),
            torch.zeros_like(v),
        )
    plan = _launches().backward_plan
    return plan(grad, q, k, v, out, logsums, causal, scale, repeatable)


_plans = Plans(_build)
_gradient_plans = Plans(_build_gradients)


@gluon.torch.op(
    "gluon_kernels::attention_backward",
    shape=lambda grad, q, k, v, out, logsums, causal, scale: [q.shape, k.shape, v.shape],
)
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsums: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    repeatable = torch.are_deterministic_algorithms_enabled()
    known_by = (key(q, k, v), causal, scale, repeatable)
    arguments = (grad, q, k, v, out, logsums, causal, scale, repeatable)
    to_q, to_k, to_v = _gradient_plans(known_by, *arguments)
    return to_q, to_k, to_v


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Any) -> Any:
    return (*_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None)


@gluon.torch.op(
    "gluon_kernels::attention",
    shape=lambda q, k, v, causal, scale: [q.shape, (q.shape[:3], torch.float32)],
    backward=_gradients,
    setup_context=_keep,
    vmap="one_by_one",
)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the result, and the logarithm (base 2) of each row's sum."""
    known_by = (key(q, k, v), causal, scale, True)
    result, logsums = _plans(known_by, q, k, v, causal, scale, True, None)
    return result, logsums


_watched = differentiable(_attention.function, _keep, _gradients)


@gluon.torch.op("gluon_kernels::attention_out", mutates_args=("out",))
def _attention_out(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, out: Tensor
) -> None:
    check_apart(out, q=q, k=k, v=v)
    known_by = (key(q, k, v, out), causal, scale)
    _plans(known_by, q, k, v, causal, scale, False, out)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: Optional[float] = None,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Return `softmax(q @ k.mT * scale) @ v` of each head, on Hopper.

    Scores and sums are float32. Gradients flow to `q`, `k` and `v`; those of `q` are added up in any order, unless
    `torch.use_deterministic_algorithms` asks for equal bits. Under `torch.autocast` operands are cast. TMA reads tensors whose strides
    are multiples of 16 bytes in place; others, and heads of other widths than 64 and 128, are copied.

    Args:
        q: [batch, heads, length, width], float16 or bfloat16 of any strides, up to 128 wide.
        k, v: [batch, heads of keys, length of keys, width] of the same dtype; the heads of queries are a multiple of
            those of keys (GQA).
        causal: a query sees the keys up to its own place.
        scale: of the scores; 1 / sqrt(width) by default.
        out: the result is stored here, of the shape of `q`; not for calls with gradients.

    Returns:
        [batch, heads, length, width].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, or `out` where a gradient is wanted.
        CapabilityError: another device than Hopper.
    """
    plain = out is None and not is_compiling() and is_plain(q, k, v)
    if not plain and not q.is_meta and torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if q.ndim else 1.0
    result: Tensor
    if plain:
        known_by = (key(q, k, v), causal, scale, False)
        result, _ = _plans(known_by, q, k, v, causal, scale, False, None)
        return result
    _check(q, k, v)
    if out is None:
        result, _ = (_watched if wants_gradient(q, k, v) else _attention)(q, k, v, causal, scale)
        return result
    check_out(out, q.shape, q.dtype, q, k, v)
    _attention_out(q, k, v, causal, scale, out)
    return out
