"""Attention and grouped products of float32, against torch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gluon_core.errors import DtypeError
from gluon_kernels import attention, attention_decode, grouped_matmul
from gluon_kernels.attention import full_precision
from tests.kernels.launched import on_target

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def simulated():
    with on_target("sim:sm_90"):
        yield


def close(result, right):
    torch.testing.assert_close(result.double(), right, rtol=1e-5, atol=1e-5)


def scores(q, k, left=None, right=None, cap=0.0):
    """Return masked scores in float64, [batch, heads, queries, keys]."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    score = q.double() @ k.mT * q.shape[-1] ** -0.5
    score = cap * torch.tanh(score / cap) if cap else score
    place = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
    hidden = torch.zeros_like(place, dtype=torch.bool)
    hidden = hidden if left is None else hidden | (place < -left)
    hidden = hidden if right is None else hidden | (place > right)
    return score.masked_fill(hidden, -torch.inf)


def attended(score, v, sinks=None):
    """Return the result in float64; zeros in rows that see no key."""
    v = v.double().repeat_interleave(score.shape[1] // v.shape[1], 1)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(*score.shape[:3], 1)
        score, v = torch.cat([score, column], -1), F.pad(v, (0, 0, 0, 1))
    return torch.nan_to_num(score.softmax(-1)) @ v


MASKS = {
    "all keys": ({}, {}),
    "causal": ({"causal": True}, {"right": 0}),
    "a window": ({"window": (3, 2)}, {"left": 3, "right": 2}),
    "rows without keys": ({"window": (0, 0)}, {"left": 0, "right": 0}),
    "a cap": ({"softcap": 2.0, "causal": True}, {"cap": 2.0, "right": 0}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask, monkeypatch):
    q, k, v = (torch.randn(1, h, n, 8, requires_grad=True) for h, n in ((4, 7), (2, 6), (2, 6)))
    monkeypatch.setattr(full_precision, "SCORES", 4 * 6 * 4)  # of four rows
    options, meaning = MASKS[mask]
    sinks = torch.randn(4, requires_grad=True)
    grad = torch.randn(1, 4, 7, 8)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, sinks)]
    for with_sinks in (False, True):
        result = attention(q, k, v, **options, sinks=sinks if with_sinks else None)
        right = attended(scores(*wide[:2], **meaning), wide[2], wide[3] if with_sinks else None)
        close(result, right)
        count = 4 if with_sinks else 3
        gradients = torch.autograd.grad(result, (q, k, v, sinks)[:count], grad)
        for ours, theirs in zip(gradients, torch.autograd.grad(right, wide[:count], grad.double())):
            close(ours, theirs)


# Heads, heads of keys, queries, keys, width, if causal, and if with sinks: partial tiles, both widths of kernels, and rows of one tile.
FUSED = [
    (2, 1, 70, 70, 40, True, True),
    (1, 1, 150, 90, 80, False, False),
    (2, 2, 66, 130, 128, True, False),
    (2, 1, 5, 40, 16, False, True),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("heads, of_keys, queries, keys, width, causal, with_sinks", FUSED)
def test_attention_by_thirds(heads, of_keys, queries, keys, width, causal, with_sinks):
    q = torch.randn(1, queries, heads, width).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(1, of_keys, keys, width, requires_grad=True) for _ in "kv")
    sinks = torch.randn(heads) if with_sinks else None
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    right = attended(scores(*wide[:2], right=0 if causal else None), wide[2], sinks)
    result = attention(q, k, v, causal=causal, sinks=sinks)
    grad = torch.randn(right.shape)
    pairs = zip(
        (result, *torch.autograd.grad(result, (q, k, v), grad)),
        (right, *torch.autograd.grad(right, wide, grad.double())),
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-6, atol=4e-6)


def test_attention_has_all_bits_of_large_scores():
    """Exponentials of scores of up to 40 show bits of operands beyond the 16th."""
    q, k, v = (torch.randn(1, 1, 64, 16) * size for size in (10, 1, 1))
    right = attended(scores(q, k), v)
    torch.testing.assert_close(attention(q, k, v).double(), right, rtol=0, atol=1.5e-5)


def test_attention_of_the_largest_numbers():
    q, k = torch.randn(1, 1, 64, 8), torch.randn(1, 1, 1, 8)
    v = torch.full((1, 1, 1, 8), torch.finfo(torch.float32).max)
    assert torch.equal(attention(q, k, v), v.expand(1, 1, 64, 8))


def test_attention_stores_in_memory_of_yours():
    q, k, v = (torch.randn(1, 9, 2, 16).transpose(1, 2) for _ in range(3))
    out = torch.empty(1, 9, 2, 16).transpose(1, 2)
    assert attention(q, k, v, out=out) is out
    close(out, attended(scores(q, k), v))


def test_functions_of_scores_need_16_bits():
    q = torch.randn(1, 2, 8, 16)
    with pytest.raises(DtypeError, match="16 bits"):
        attention(q, q, q, score_mod=lambda score, row, key, head, extra: score)


@pytest.mark.parametrize("window", [None, (5, 0)])
def test_attention_decode(window):
    lengths, page = [13, 0, 8, 1], 4
    table = torch.randperm(16).int().view(4, 4)
    caches = [torch.randn(16, page, 2, 16) for _ in "kv"]
    known = torch.tensor(lengths, dtype=torch.int32)
    used = torch.arange(0, 16, page) < known[:, None]
    for cache in caches:  # pages of no sequence have no numbers
        cache[table[~used].long()] = float("nan")
    table = table.masked_fill(~used, -1)
    q, sinks = torch.randn(4, 6, 16), torch.randn(6)
    result = attention_decode(q, *caches, table, known, window=window, sinks=sinks)
    for i, length in enumerate(lengths):
        if not length:
            assert not result[i].any()
            continue
        k, v = (c[table[i, used[i]].long()].flatten(0, 1)[:length].transpose(0, 1)[None] for c in caches)  # fmt: skip
        score = scores(q[i : i + 1, :, None], k)
        if window is not None:
            score[..., : max(0, length - 1 - window[0])] = -torch.inf
        close(result[i], attended(score, v, sinks)[0, :, 0])


def test_grouped_matmul():
    a, b = torch.randn(50, 20, requires_grad=True), torch.randn(3, 20, 12, requires_grad=True)
    offs = torch.tensor([7, 7, 50], dtype=torch.int32)
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    parts = wide[0].tensor_split([7, 7])
    right = torch.cat([part @ matrix for part, matrix in zip(parts, wide[1])])
    result, grad = grouped_matmul(a, b, offs), torch.randn(50, 12)
    close(result, right)
    gradients = torch.autograd.grad(result, (a, b), grad)
    for ours, theirs in zip(gradients, torch.autograd.grad(right, wide, grad.double())):
        close(ours, theirs)
