"""Attention as an op of torch: two results, a gradient that is an op itself, float64 for its checks.

A program of the forward pass makes one row of the result, keeping what the softmax of the keys so far
needs; the backward pass makes a row of each gradient with the logarithm of the sums that was kept.
"""

from __future__ import annotations

import torch

import gluon_core as gluon
from gluon_core import language as gl

LAYOUT = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
BLOCK = 16  # keys, or queries, at a time


@gluon.jit
def rows_of(x, rows, columns, width, mask, dtype: gl.constexpr):
    offsets = rows[:, None] * width + columns[None, :]
    return gl.load(x + offsets, mask=mask[:, None] & (columns < width)[None, :], other=0.0).to(
        dtype
    )


@gluon.jit
def row_of(x, row, columns, width, dtype: gl.constexpr):
    return gl.load(x + row * width + columns, mask=columns < width, other=0.0).to(dtype)


@gluon.jit
def scored(
    k, v, query, first, start, i, n, column, width, scale,
    CAUSAL: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The keys and values from `start` on, and what query `i` makes of them; -inf for those it does not see."""
    j = start + gl.arange(0, BLOCK, gl.SliceLayout(1, LAYOUT))
    seen = j < n
    if CAUSAL:
        seen = seen & (j <= i)
    keys = rows_of(k, first + j, column, width, seen, query.dtype)
    values = rows_of(v, first + j, column, width, seen, query.dtype)
    score = gl.where(seen, gl.sum(keys * query[None, :], 1) * scale, -float("inf"))
    return keys, values, score


@gluon.jit
def forward_kernel(
    q, k, v, out, lse, n, width, scale,
    CAUSAL: gl.constexpr, WIDTH: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = lse.dtype.element_ty
    i, head = gl.program_id(0), gl.program_id(1)
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    first = head * n
    query = row_of(q, first + i, column, width, dtype)
    result = query * 0.0
    total = gl.sum(result, 0)
    most = total - float("inf")
    for start in range(0, n, BLOCK):
        keys, values, score = scored(
            k, v, query, first, start, i, n, column, width, scale, CAUSAL, BLOCK, LAYOUT
        )
        higher = gl.maximum(most, gl.max(score, 0))
        weight = gl.exp(score - higher)
        shrink = gl.exp(most - higher)
        total = total * shrink + gl.sum(weight, 0)
        result = result * shrink + gl.sum(weight[:, None] * values, 0)
        most = higher
    gl.store(lse + first + i, most + gl.log(total))
    where = out + (first + i) * width + column
    gl.store(where, (result / total).to(out.dtype.element_ty), mask=column < width)


@gluon.jit
def query_gradient_kernel(
    grad, q, k, v, lse, delta, grad_q, n, width, scale,
    CAUSAL: gl.constexpr, WIDTH: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = lse.dtype.element_ty
    i, head = gl.program_id(0), gl.program_id(1)
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    first = head * n
    query = row_of(q, first + i, column, width, dtype)
    upper = row_of(grad, first + i, column, width, dtype)
    normal, own = gl.load(lse + first + i), gl.load(delta + first + i)
    result = query * 0.0
    for start in range(0, n, BLOCK):
        keys, values, score = scored(
            k, v, query, first, start, i, n, column, width, scale, CAUSAL, BLOCK, LAYOUT
        )
        change = gl.exp(score - normal) * (gl.sum(values * upper[None, :], 1) - own)
        result += gl.sum(change[:, None] * keys, 0) * scale
    where = grad_q + (first + i) * width + column
    gl.store(where, result.to(grad_q.dtype.element_ty), mask=column < width)


@gluon.jit
def key_gradient_kernel(
    grad, q, k, v, lse, delta, grad_k, grad_v, n, width, scale,
    CAUSAL: gl.constexpr, WIDTH: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = lse.dtype.element_ty
    j, head = gl.program_id(0), gl.program_id(1)
    column = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    first = head * n
    key = row_of(k, first + j, column, width, dtype)
    value = row_of(v, first + j, column, width, dtype)
    for_key, for_value = key * 0.0, key * 0.0
    for start in range(0, n, BLOCK):
        i = start + gl.arange(0, BLOCK, gl.SliceLayout(1, LAYOUT))
        seen = i < n
        if CAUSAL:
            seen = seen & (j <= i)
        queries = rows_of(q, first + i, column, width, seen, dtype)
        upper = rows_of(grad, first + i, column, width, seen, dtype)
        normal = gl.load(lse + first + i, mask=seen, other=0.0)
        own = gl.load(delta + first + i, mask=seen, other=0.0)
        score = gl.sum(queries * key[None, :], 1) * scale - normal
        weight = gl.exp(gl.where(seen, score, -float("inf")))
        for_value += gl.sum(weight[:, None] * upper, 0)
        change = weight * (gl.sum(upper * value[None, :], 1) - own)
        for_key += gl.sum(change[:, None] * queries, 0) * scale
    offsets = (first + j) * width + column
    gl.store(grad_k + offsets, for_key.to(grad_k.dtype.element_ty), mask=column < width)
    gl.store(grad_v + offsets, for_value.to(grad_v.dtype.element_ty), mask=column < width)


def _constants(width: int, causal: bool) -> dict:
    wide = 8
    while wide < width:
        wide *= 2
    return dict(CAUSAL=causal, WIDTH=wide, BLOCK=BLOCK, LAYOUT=LAYOUT)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


@gluon.torch.op(
    "gluon_tests::attention_backward",
    shape=lambda grad, q, k, v, lse, delta, causal: [q.shape, k.shape, v.shape],
)
def attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, n, width = q.shape
    grad_q, grad_k, grad_v = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in "qkv")
    tensors = [x.contiguous() for x in (grad, q, k, v, lse, delta)]
    rest = (n, width, width**-0.5)
    constants = _constants(width, causal)
    query_gradient_kernel[(n, batch * heads)](*tensors, grad_q, *rest, **constants)
    key_gradient_kernel[(n, batch * heads)](*tensors, grad_k, grad_v, *rest, **constants)
    return grad_q, grad_k, grad_v


def _keep(ctx, inputs, output):
    q, k, v, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad, _):
    q, k, v, out, lse = ctx.saved_tensors
    delta = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    return (*attention_backward(grad, q, k, v, lse, delta, ctx.causal), None)


@gluon.torch.op(
    "gluon_tests::attention",
    shape=lambda q, k, v, causal: [q.shape, (q.shape[:-1], _wide(q.dtype))],
    backward=_gradients,
    setup_context=_keep,
)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of q, k, v of shape (batch, heads, n, width), and the logarithms of the sums."""
    batch, heads, n, width = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=_wide(q.dtype), device=q.device)
    tensors = [x.contiguous() for x in (q, k, v)]
    forward_kernel[(n, batch * heads)](
        *tensors, out, lse, n, width, width**-0.5, **_constants(width, causal)
    )
    return out, lse
