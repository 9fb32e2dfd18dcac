"""Attention over sequences of any lengths packed one behind the other, as an operator of PyTorch."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels.attention import routes
from gluon_kernels.attention.masks import Mask, checked_window
from gluon_kernels.attention.ops import WIDEST
from gluon_kernels.attention.sinks import check_sinks, gradient_of_sinks
from gluon_kernels.checks import (
    HALVES,
    check_apart,
    check_devices,
    check_flags,
    check_numbers,
    check_one_dtype,
    check_out,
    check_query_heads,
    check_tensors,
)
from gluon_kernels.eager import (  # fmt: skip
    is_compiling,
    is_plain,
    is_transformed,
    kept,
    wants_gradient,
)
from gluon_kernels.plans import Plans, key

__all__ = ["attention_varlen"]


def _check(q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor) -> None:
    check_tensors("attention_varlen", q=q, k=k, v=v, cu_seqlens_q=of_queries, cu_seqlens_k=of_keys)
    check_one_dtype("attention_varlen", HALVES, q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3 or not 0 < x.shape[2] <= WIDEST:
            raise ShapeError(
                "attention_varlen takes packed tokens of three dimensions",
                argument=name,
                expected=f"[tokens, heads, width], 1 to {WIDEST} wide",
                got=list(x.shape),
            )
    if k.shape[2] != q.shape[2]:
        raise ShapeError(
            "queries and keys must have the same head width",
            argument="k",
            expected=q.shape[2],
            got=k.shape[2],
        )
    if k.shape[:2] != v.shape[:2]:
        raise ShapeError(
            "keys and values have different shapes",
            argument="v",
            expected=[*k.shape[:2], "width"],
            got=list(v.shape),
        )
    check_query_heads(q.shape[1], k.shape[1])
    for name, x in (("cu_seqlens_q", of_queries), ("cu_seqlens_k", of_keys)):
        if x.dtype != torch.int32:
            raise DtypeError(
                "cumulative lengths must be int32",
                argument=name,
                expected="int32",
                got=str(x.dtype),
                remedy=f"Convert them: {name}.int().",
            )
        if x.ndim != 1 or not x.shape[0]:
            raise ShapeError(
                "expected the offset of each sequence and the total number of tokens",
                argument=name,
                expected="[sequences + 1]",
                got=list(x.shape),
            )
    if of_queries.shape != of_keys.shape:
        raise ShapeError(
            "queries and keys must have the same number of sequences",
            argument="cu_seqlens_k",
            expected=list(of_queries.shape),
            got=list(of_keys.shape),
        )
    check_devices(q, k=k, v=v, cu_seqlens_q=of_queries, cu_seqlens_k=of_keys)
    if (
        q.device.type == "cpu" and not is_compiling()
    ):  # elsewhere a look at the values would wait for the device
        _check_values("cu_seqlens_q", of_queries, q.shape[0])
        _check_values("cu_seqlens_k", of_keys, k.shape[0])


def _check_values(name: str, firsts: Tensor, tokens: int) -> None:
    if (
        type(firsts) is not Tensor or is_transformed()
    ):  # a fake one, or one of `vmap`, has no values
        return
    values = firsts.tolist()
    if values[0] != 0 or values[-1] != tokens or values != sorted(values):
        raise ArgumentError(
            "cumulative lengths must not decrease",
            argument=name,
            expected=f"numbers from 0 up to {tokens}",
            got=values[:8],
        )


def _is_empty(q: Tensor, k: Tensor, of_queries: Tensor) -> bool:
    return not q.numel() or not k.shape[0] or of_queries.shape[0] == 1


def _build(
    q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor, sinks: Optional[Tensor], causal: bool, window: Any,
    softcap: float, scale: float, keep: bool, out: Optional[Tensor],
) -> Any:  # fmt: skip
    _check(q, k, v, of_queries, of_keys)
    check_sinks(sinks, q)
    mask = Mask.of(causal, window, softcap).shortened(k.shape[0] + q.shape[0])
    if _is_empty(q, k, of_queries):

        def nothing(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
            logsums = q.new_full(q.shape[:2], -math.inf, dtype=torch.float32)
            out = rest[-1]
            return q.new_zeros((*q.shape[:2], v.shape[2])) if out is None else out.zero_(), logsums

        return nothing
    plan = routes.packed_forward(q, k, v, sinks, of_queries, of_keys, mask, scale, keep, out)

    def run(
        q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor, sinks: Optional[Tensor], causal: Any,
        window: Any, softcap: Any, scale: Any, keep: Any, out: Optional[Tensor],
    ) -> Any:  # fmt: skip
        return plan(q, k, v, sinks, of_queries, of_keys, out)

    return run


def _build_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor, of_keys: Tensor,
    causal: bool, window: Any, softcap: float, scale: float, repeatable: bool,
) -> Any:  # fmt: skip
    mask = Mask.of(causal, window, softcap).shortened(k.shape[0] + q.shape[0])
    if _is_empty(q, k, of_queries):
        return lambda grad, q, k, v, *rest: tuple(torch.zeros_like(x) for x in (q, k, v))
    plan = routes.packed_backward(
        grad, q, k, v, out, logsums, of_queries, of_keys, mask, scale, repeatable
    )
    return lambda grad, q, k, v, out, logsums, of_queries, of_keys, *settings: plan(
        grad, q, k, v, out, logsums, of_queries, of_keys
    )


_plans = Plans(_build, vectors=(3, 4, 5))
_gradient_plans = Plans(_build_gradients, vectors=(6, 7))


@gluon.torch.op(
    "gluon_kernels::attention_varlen_backward",
    shape=lambda grad, q, k, v, out, logsums, of_queries, of_keys, causal, scale, left, right, softcap: [
        q.shape,
        k.shape,
        v.shape,
    ],
)  # fmt: skip
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsums: Tensor,
    of_queries: Tensor,
    of_keys: Tensor,
    causal: bool,
    scale: float,
    left: Optional[int],
    right: Optional[int],
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    repeatable = torch.are_deterministic_algorithms_enabled()
    settings = (causal, (left, right), softcap, scale, repeatable)
    tensors = (grad, q, k, v, out, logsums, of_queries, of_keys)
    known_by = (key(grad, q, k, v, out, of_queries, of_keys), *settings)
    to_q, to_k, to_v = _gradient_plans(known_by, *tensors, *settings)
    return to_q, to_k, to_v


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, of_queries, of_keys, *ctx.settings, sinks = inputs
    more = () if sinks is None else (sinks,)
    ctx.save_for_backward(q, k, v, *output, of_queries, of_keys, *more)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Any) -> Any:
    *tensors, of_queries, of_keys = ctx.saved_tensors[:7]
    sinks = ctx.saved_tensors[7:]
    gradients = _backward(grad, *tensors, of_queries, of_keys, *ctx.settings)
    of_sinks = gradient_of_sinks(sinks[0], grad, *tensors[3:]) if sinks else None
    return (*gradients, None, None, *(None for _ in ctx.settings), of_sinks)


@gluon.torch.op(
    "gluon_kernels::attention_varlen",
    shape=lambda q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale, left, right, softcap, sinks: [
        (*q.shape[:2], v.shape[2]),
        (q.shape[:2], torch.float32),
    ],
    backward=_gradients,
    setup_context=_keep,
)
def _varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    scale: float,
    left: Optional[int],
    right: Optional[int],
    softcap: float,
    sinks: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Return the result, and the logarithm (base 2) of each row's sum."""
    settings = (causal, (left, right), softcap, scale, True)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, sinks)
    result, logsums = _plans((key(*tensors), *settings), *tensors, *settings, None)
    return result, logsums


def _kept_forward(
    q: Tensor, k: Tensor, v: Tensor, of_queries: Tensor, of_keys: Tensor, *settings: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    tensors = (q, k, v, of_queries, of_keys, None)
    settings = (*settings, True)
    result, logsums = _plans((key(*tensors), *settings), *tensors, *settings, None)
    return result, (q, k, v, result, logsums, of_queries, of_keys)


def _kept_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, of_queries: Tensor, of_keys: Tensor,
    *settings: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    settings = (*settings, torch.are_deterministic_algorithms_enabled())
    tensors = (grad, q, k, v, out, logsums, of_queries, of_keys)
    known_by = (key(grad, q, k, v, out, of_queries, of_keys), *settings)
    result: tuple[Tensor, ...] = _gradient_plans(known_by, *tensors, *settings)
    return result


_watched = kept(_kept_forward, _kept_gradients)


@gluon.torch.op("gluon_kernels::attention_varlen_out", mutates_args=("out",))
def _varlen_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    scale: float,
    left: Optional[int],
    right: Optional[int],
    softcap: float,
    out: Tensor,
    sinks: Optional[Tensor] = None,
) -> None:
    check_apart(out, q=q, k=k, v=v)
    settings = (causal, (left, right), softcap, scale, False)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, sinks)
    _plans((key(*tensors, out), *settings), *tensors, *settings, out)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Optional[Tensor] = None,
    *,
    causal: bool = False,
    window: Optional[Sequence[Optional[int]]] = None,
    softcap: float = 0.0,
    scale: Optional[float] = None,
    sinks: Optional[Tensor] = None,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Return the attention of each of several sequences, packed one behind the other.

    With fewer or more queries than keys, the last query of a sequence is at the place of its last key. Scores and sums are float32.
    Gradients flow to `q`, `k` and `v`; on Hopper those of `q` are added up in any order in heads of up to 128, unless
    `torch.use_deterministic_algorithms` asks for equal bits. Values must be finite, those of padding tokens included. Under
    `torch.autocast` operands are cast. The host reads no lengths: a CUDA graph serves any of them.

    Args:
        q: [tokens, heads, width], float16 or bfloat16, up to 256 wide.
        k: [tokens of keys, heads of keys, width] of the same dtype; the heads of queries are a multiple of those of keys (GQA).
        v: like `k`, of any width up to 256.
        cu_seqlens_q: int32 [sequences + 1]: the offset of each sequence and the total number of tokens.
        cu_seqlens_k: the same of keys; `cu_seqlens_q` by default.
        causal: a query sees the keys up to its own place.
        window: `(before, after)`: a query at place i sees the keys from `i - before` to `i + after`; None or -1 is no bound. A query
            that sees no key has a result of zeros.
        softcap: scores become `softcap * tanh(score / softcap)`; 0 leaves them.
        scale: of the scores; 1 / sqrt(width) by default.
        sinks: [heads], a floating-point dtype: a score that each query of the head has in addition, of no key and without a value. Gradients
            flow to it.
        out: the result is stored here; not for calls with gradients.

    Returns:
        [tokens, heads, width of values].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, a window or cap that is none, first tokens on a CPU that do not ascend, or
            `out` where a gradient is wanted.
    """
    if cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    direct = out is None and not is_compiling()
    plain = direct and is_plain(*tensors, *(() if sinks is None else (sinks,)))
    watched = direct and not plain and sinks is None and wants_gradient(*tensors)
    if type(causal) is not bool or type(softcap) is not float:
        check_flags(causal=causal)
        check_numbers(softcap=softcap)
    if not (plain or watched) or q is None:
        check_tensors("attention_varlen", {"sinks": sinks, "out": out}, q=q, k=k, v=v)
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
        result, _ = _plans((key(*tensors, sinks), *settings), *tensors, sinks, *settings, None)
        return result
    if watched:
        return _watched(causal, window, softcap, scale)(*tensors)
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    _check(*tensors)
    mask = Mask.of(False, window, softcap)
    rest = (causal, scale, mask.left, mask.right, mask.cap)
    check_sinks(sinks, q)
    if out is None:
        result, _ = _varlen(*tensors, *rest, sinks)
        return result
    check_devices(q, out=out)
    check_out(out, (*q.shape[:2], v.shape[2]), q.dtype, q, k, v)
    _varlen_out(*tensors, *rest, out, sinks)
    return out
