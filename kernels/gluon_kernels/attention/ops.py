"""Attention over batches of sequences as an operator of PyTorch: checks, registration, gradients."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.attention import routes
from gluon_kernels.attention.masks import Mask, checked_window
from gluon_kernels.attention.sinks import check_sinks, gradient_of_sinks
from gluon_kernels.checks import (
    FLOATS,
    check_apart,
    check_devices,
    check_flags,
    check_numbers,
    check_one_dtype,
    check_out,
    check_query_heads,
    check_tensors,
)
from gluon_kernels.eager import is_compiling, is_plain, planned, wants_gradient
from gluon_kernels.plans import Plans, bound, is_sequence, key

__all__ = ["attention"]

WIDEST = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_tensors("attention", q=q, k=k, v=v)
    check_one_dtype("attention", FLOATS, q=q, k=k, v=v)
    check_devices(q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ShapeError(
                "attention takes tensors of four dimensions",
                argument=name,
                expected="[batch, heads, length, width]",
                got=list(x.shape),
            )
    if k.shape[:3] != v.shape[:3]:
        raise ShapeError(
            "keys and values have different shapes",
            argument="v",
            expected=f"{[*k.shape[:3]]} and a width",
            got=list(v.shape),
        )
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(
            "queries and keys must have the same batch and head width",
            argument="k",
            expected=f"[{q.shape[0]}, heads, length, {q.shape[3]}]",
            got=list(k.shape),
        )
    check_query_heads(q.shape[1], k.shape[1])
    for name, x in (("q", q), ("v", v)):
        if not 0 < x.shape[3] <= WIDEST:
            raise ShapeError(
                "the head width is out of range",
                argument=name,
                expected=f"1 to {WIDEST} elements",
                got=x.shape[3],
            )
    if not k.shape[2] and q.numel():
        raise ShapeError("there are no keys to attend to", argument="k", got=list(k.shape))


def _build(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], causal: bool, window: Any, softcap: float, scale: float,
    keep: bool, out: Optional[Tensor],
) -> Any:  # fmt: skip
    _check(q, k, v)
    check_sinks(sinks, q)
    mask = Mask.of(causal, window, softcap).shortened(k.shape[2] + q.shape[2])
    if not q.numel():

        def nothing(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
            logsums = q.new_empty(q.shape[:3], dtype=torch.float32)
            result = q.new_empty((*q.shape[:3], v.shape[3])) if rest[-1] is None else rest[-1]
            return result, logsums

        return nothing
    plan = routes.batch_forward(q, k, v, sinks, mask, scale, keep, out)
    if is_sequence(plan):
        return plan
    return lambda q, k, v, sinks, causal, window, softcap, scale, keep, out: plan(
        q, k, v, sinks, out
    )


def _build_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, causal: bool, window: Any,
    softcap: float, scale: float, repeatable: bool,
) -> Any:  # fmt: skip
    mask = Mask.of(causal, window, softcap).shortened(k.shape[2] + q.shape[2])
    if not q.numel():
        return lambda grad, q, k, v, *rest: (
            torch.zeros_like(q),
            torch.zeros_like(k),
            torch.zeros_like(v),
        )
    plan = routes.batch_backward(grad, q, k, v, out, logsums, mask, scale, repeatable)
    if is_sequence(plan):
        return plan
    return lambda grad, q, k, v, out, logsums, *settings: plan(grad, q, k, v, out, logsums)


_plans = Plans(_build, vectors=(3,))
_gradient_plans = Plans(_build_gradients)


def _bounds(left: Optional[int], right: Optional[int]) -> Any:
    return None if left is None and right is None else (left, right)


@gluon.torch.op(
    "gluon_kernels::attention_backward",
    shape=lambda grad, q, k, v, out, logsums, causal, scale, left, right, softcap: [
        q.shape,
        k.shape,
        v.shape,
    ],
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
    left: Optional[int] = None,
    right: Optional[int] = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    repeatable = torch.are_deterministic_algorithms_enabled()
    settings = (causal, _bounds(left, right), softcap, scale, repeatable)
    to_q, to_k, to_v = _gradient_plans(
        (key(grad, q, k, v, out, logsums), *settings), grad, q, k, v, out, logsums, *settings
    )
    return to_q, to_k, to_v


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *ctx.settings, sinks = inputs
    ctx.save_for_backward(q, k, v, *output, *(() if sinks is None else (sinks,)))
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Any) -> Any:
    q, k, v, out, logsums, *sinks = ctx.saved_tensors
    gradients = _backward(grad, q, k, v, out, logsums, *ctx.settings)
    of_sinks = gradient_of_sinks(sinks[0], grad, out, logsums) if sinks else None
    return (*gradients, *(None for _ in ctx.settings), of_sinks)


@gluon.torch.op(
    "gluon_kernels::attention",
    shape=lambda q, k, v, causal, scale, left, right, softcap, sinks: [
        (*q.shape[:3], v.shape[3]),
        (q.shape[:3], torch.float32),
    ],
    backward=_gradients,
    setup_context=_keep,
    vmap="one_by_one",
)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    left: Optional[int] = None,
    right: Optional[int] = None,
    softcap: float = 0.0,
    sinks: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Return the result, and the logarithm (base 2) of each row's sum."""
    settings = (causal, _bounds(left, right), softcap, scale, True)
    result, logsums = _plans((key(q, k, v, sinks), *settings), q, k, v, sinks, *settings, None)
    return result, logsums


@lru_cache(maxsize=256)
def _watched(
    causal: bool, window: Any, softcap: float, scale: float
) -> Callable[[Tensor, Tensor, Tensor, None], Tensor]:
    """Return `f(q, k, v, None) -> result` with a gradient."""
    settings = causal, window, softcap, scale

    def plan_of(q: Tensor, k: Tensor, v: Tensor, sinks: None) -> Callable[..., Any]:
        more = (*settings, True, None)
        known_by = (key(q, k, v, sinks), *more[:-1])
        return bound(_plans.find(known_by, q, k, v, sinks, *more), *more)

    def gradient_plan_of(needs: Any, *_: Tensor) -> Callable[..., Any]:
        plans: dict[bool, Callable[..., Any]] = {}

        def run(*tensors: Tensor) -> Any:
            repeatable = torch.are_deterministic_algorithms_enabled()
            plan = plans.get(repeatable)
            if plan is None:
                more = (*settings, repeatable)
                plan = _gradient_plans.find((key(*tensors), *more), *tensors, *more)
                plan = plans[repeatable] = bound(plan, *more)
            return plan(*tensors)

        return run

    return planned(plan_of, gradient_plan_of, keep=(0, 1, 2, 4, 5))


@gluon.torch.op("gluon_kernels::attention_out", mutates_args=("out",))
def _attention_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    left: Optional[int],
    right: Optional[int],
    softcap: float,
    out: Tensor,
    sinks: Optional[Tensor] = None,
) -> None:
    check_apart(out, q=q, k=k, v=v)
    settings = (causal, _bounds(left, right), softcap, scale, False)
    _plans((key(q, k, v, sinks, out), *settings), q, k, v, sinks, *settings, out)


def _build_scored(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    window: Any,
    scale: float,
    score: Any,
    extra: Any,
    *more: Tensor,
) -> Any:
    _check(q, k, v)
    mask = Mask.of(causal, window, 0.0).shortened(k.shape[2] + q.shape[2])
    tensors = iter(more)
    extra = tuple(next(tensors) if isinstance(x, Tensor) else x for x in extra)
    if len(extra) == 1:
        (extra,) = extra
    plan = routes.score_forward(q, k, v, mask, scale, None, score, extra)
    return lambda q, k, v, causal, window, scale, score, extra, *more: plan(q, k, v, None, *more)


_score_plans = Plans(_build_scored)


def _scored(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: Any, scale: float, score: Any, extra: Any
) -> Tensor:
    _check(q, k, v)
    if q.dtype == torch.float32:
        raise DtypeError(
            "score_mod takes tensors of 16 bits",
            argument="q",
            expected="float16 or bfloat16",
            got=str(q.dtype),
            remedy="Convert them: q.bfloat16().",
        )
    more = tuple(x for x in extra if isinstance(x, Tensor))
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *more)):
        raise ArgumentError(
            "score_mod does not support gradients",
            argument="score_mod",
            expected="tensors that need none",
            got="requires_grad=True",
            remedy="Call it under torch.no_grad().",
        )
    numbers = tuple(x for x in extra if not isinstance(x, Tensor))
    if not q.numel():
        return q.new_empty((*q.shape[:3], v.shape[3]))
    known_by = (key(q, k, v), key(*more), causal, window, scale, score, numbers)
    result: Tensor = _score_plans(known_by, q, k, v, causal, window, scale, score, extra, *more)
    return result


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Optional[Sequence[Optional[int]]] = None,
    softcap: float = 0.0,
    scale: Optional[float] = None,
    sinks: Optional[Tensor] = None,
    score_mod: Any = None,
    score_args: Sequence[Any] = (),
    out: Optional[Tensor] = None,
) -> Tensor:
    """Return `softmax(q @ k.mT * scale) @ v` of each head.

    Scores and sums are float32. Gradients flow to `q`, `k` and `v`; on Hopper those of `q` are added up in any order in heads of up to 128, unless
    `torch.use_deterministic_algorithms` asks for equal bits. Under `torch.autocast` operands are cast. On Hopper, TMA reads tensors whose
    strides are multiples of 16 bytes in place; others, and heads of other widths than 64 and 128, are copied.

    Args:
        q: [batch, heads, length, width], float16, bfloat16 or float32 of any strides, up to 256 wide. Products of float32 have its precision.
            On Hopper these are products of bfloat16, six for one, in heads of up to 128 with 64 queries or more, without a window or a cap, where
            an infinite value makes NaN; else scores are in memory, those of some rows at a time.
        k: [batch, heads of keys, length of keys, width] of the same dtype; the heads of queries are a multiple of those of keys (GQA).
        v: like `k`, of any width up to 256.
        causal: a query sees the keys up to its own place.
        window: `(before, after)`: a query at place i sees the keys from `i - before` to `i + after`; None or -1 is no bound. A query
            that sees no key has a result of zeros.
        softcap: scores become `softcap * tanh(score / softcap)`; 0 leaves them.
        scale: of the scores; 1 / sqrt(width) by default.
        sinks: [heads], a floating-point dtype: a score that each query of the head has in addition, of no key and without a value. Gradients
            flow to it.
        score_mod: a jit function `f(score, row, key, head, extra) -> score`, called for tiles of scores times log2(e) with the places of
            their queries and keys; of 16 bits, without gradients, and not together with `softcap`, `sinks` and `out`.
        score_args: tensors and numbers that it gets as `extra`; one alone is passed by itself.
        out: the result is stored here, of the shape of the result; not for calls with gradients.

    Returns:
        [batch, heads, length, width of values].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, a window or cap that is none, or `out` where a gradient is wanted.
    """
    direct = out is None and score_mod is None and not is_compiling()
    plain = direct and is_plain(q, k, v, *(() if sinks is None else (sinks,)))
    watched = direct and not plain and sinks is None and wants_gradient(q, k, v)
    if type(causal) is not bool or type(softcap) is not float:
        check_flags(causal=causal)
        check_numbers(softcap=softcap)
    if not (plain or watched) or q is None:
        check_tensors("attention", {"sinks": sinks, "out": out}, q=q, k=k, v=v)
        if not q.is_meta and torch.is_autocast_enabled(q.device.type):
            dtype = torch.get_autocast_dtype(q.device.type)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1)) if q.ndim else 1.0
    elif type(scale) is not float:
        check_numbers(scale=scale)
    if window is not None and type(window) is not tuple:
        window = checked_window(window)
    result: Tensor
    if plain:
        settings = (causal, window, softcap, scale, False)
        result, _ = _plans((key(q, k, v, sinks), *settings), q, k, v, sinks, *settings, None)
        return result
    if watched:
        return _watched(causal, window, softcap, scale)(q, k, v, None)
    if score_mod is not None:
        if not callable(score_mod):
            raise ArgumentError(
                "the argument has the wrong type",
                argument="score_mod",
                expected="a function of the language, or one decorated with @gluon.jit",
                got=f"{score_mod!r} ({type(score_mod).__name__})",
            )
        if softcap or out is not None or sinks is not None:
            tensors = ("None" if x is None else "a tensor" for x in (out, sinks))
            raise ArgumentError(
                "score_mod cannot be combined with softcap, out or sinks",
                argument="score_mod",
                got="softcap={}, out={}, sinks={}".format(softcap, *tensors),
                remedy="Let the function cap the scores.",
            )
        return _scored(q, k, v, causal, window, scale, score_mod, tuple(score_args))
    _check(q, k, v)
    mask = Mask.of(False, window, softcap)
    settings = (causal, scale, mask.left, mask.right, mask.cap)
    check_sinks(sinks, q)
    if out is None:
        result, _ = _attention(q, k, v, *settings, sinks)
        return result
    check_devices(q, out=out)
    check_out(out, (*q.shape[:3], v.shape[3]), q.dtype, q, k, v)
    _attention_out(q, k, v, *settings, out, sinks)
    return out
