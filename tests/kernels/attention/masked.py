"""Attention in float64 with a mask, as a reference."""

from __future__ import annotations

import torch


def masked(q, k, v, left=None, right=None, softcap=0.0, scores=lambda s: s):
    """Return attention in float64, and 0 for queries that see no key."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = scores(q @ k.mT * q.shape[-1] ** -0.5)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    keys, queries = (torch.arange(x.shape[2], device=x.device) for x in (k, q))
    away = keys - queries[:, None]
    seen = torch.ones_like(away, dtype=torch.bool)
    if left is not None:
        seen &= away >= -left
    if right is not None:
        seen &= away <= right
    return score.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0) @ v
