"""Attention of float32 where no kernel multiplies thirds (`thirds.py`): products are those of `bmm`, and scores of some rows at a time are in memory."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.masks import LOG2E, Mask
from gluon_kernels.gemm.ops import bmm

__all__ = ["backward_plan", "decode_plan", "forward_plan"]

SCORES = 1 << 26  # in memory at a time, at most, where a row of each head has no more


def _folded(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[2:])


class _Rows:
    """Some rows of queries of all heads, and their scores.

    Args:
        q: [batch, heads, length, width].
        k: [batch, heads of keys, keys, width].
        begin, end: the rows.
        mask, scale: of the scores.
        lengths: keys of each sequence of the batch, or None for all.
    """

    def __init__(
        self, q: Tensor, k: Tensor, begin: int, end: int, mask: Mask, scale: float, lengths: Optional[Tensor] = None
    ) -> None:  # fmt: skip
        self.place = slice(begin, end)
        self.keys = (
            slice(0, k.shape[2]) if lengths is not None else _seen(begin, end, k.shape[2], mask)
        )
        batch, heads, keys = q.shape[0], k.shape[1], self.keys.stop - self.keys.start
        self.shape = (batch, heads, q.shape[1] // heads, end - begin)
        self.queries = self.of(q)
        score = bmm(self.queries * scale, self.matrices(k).mT).view(*self.shape, keys)
        self.slope = None
        if mask.cap:
            bent = torch.tanh(score / mask.cap)
            score, self.slope = bent * mask.cap, 1 - bent * bent
        row = torch.arange(begin, end, device=q.device)[:, None]
        key = torch.arange(self.keys.start, self.keys.stop, device=q.device)
        if lengths is not None:  # a row is the last token of its sequence
            row = lengths.view(-1, 1, 1, 1, 1) - 1
            score = score.masked_fill(key > row, -torch.inf)
        if mask.left is not None:
            score = score.masked_fill(key < row - mask.left, -torch.inf)
        if mask.right is not None:
            score = score.masked_fill(key > row + mask.right, -torch.inf)
        self.score = score

    def matrices(self, x: Tensor) -> Tensor:
        """Return the keys that some row sees, or their values, as matrices."""
        return _folded(x[:, :, self.keys])

    def of(self, x: Tensor) -> Tensor:
        """Return these rows of [batch, heads, length, width] as matrices, one for each head of keys."""
        return x[:, :, self.place].reshape(
            self.shape[0] * self.shape[1], self.shape[2] * self.shape[3], -1
        )

    def back(self, matrices: Tensor) -> Tensor:
        """Return matrices as rows of [batch, heads, length, width]."""
        return matrices.view(self.shape[0], -1, self.shape[3], matrices.shape[-1])

    def weights(self, logsums: Tensor) -> Tensor:
        """Return the weights of keys from logarithms of sums, [batch, heads, rows]; zeros in a row that sees none."""
        sums = logsums.view(*self.shape, 1)
        return torch.exp(self.score - sums.masked_fill(sums == -torch.inf, 0.0))


def _seen(begin: int, end: int, keys: int, mask: Mask) -> slice:
    """Return the keys that some of the rows may see, at least one."""
    first = 0 if mask.left is None else min(max(begin - mask.left, 0), keys - 1)
    last = keys if mask.right is None else min(end + mask.right, keys)
    return slice(first, max(last, first + 1))


def _rows(q: Tensor, k: Tensor, mask: Mask) -> Iterator[tuple[int, int]]:
    most = max(1, SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    if mask.left is not None or mask.right is not None:  # a part of the keys for each eighth
        most = min(most, max(128, -(-q.shape[2] // 8)))
    for begin in range(0, q.shape[2], most):
        yield begin, min(begin + most, q.shape[2])


def _attended(rows: _Rows, v: Tensor, sinks: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the result of rows, and the natural logarithms of their sums, [batch, heads, rows]."""
    logsums = torch.logsumexp(rows.score, -1).flatten(1, 2)
    if sinks is not None:
        logsums = torch.logaddexp(logsums, sinks.float()[:, None])
    weights = rows.weights(logsums).view(*rows.queries.shape[:2], -1)
    return rows.back(bmm(weights, rows.matrices(v))), logsums


def forward_plan(mask: Mask, scale: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `run(q, k, v, sinks, out) -> (result, logarithms of sums)` for [batch, heads, length, width]."""

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Optional[Tensor]) -> Any:
        result = q.new_empty(*q.shape[:3], v.shape[3]) if out is None else out
        logsums = q.new_empty(q.shape[:3])
        for begin, end in _rows(q, k, mask):
            part, sums = _attended(_Rows(q, k, begin, end, mask, scale), v, sinks)
            result[:, :, begin:end] = part
            logsums[:, :, begin:end] = sums * LOG2E
        return result, logsums

    return run


def backward_plan(mask: Mask, scale: float) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return `run(grad, q, k, v, out, logsums) -> (gradients of q, k and v)`."""

    def run(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        to_q = torch.empty_like(q)
        to_k, to_v = (torch.zeros(_folded(x).shape, device=x.device) for x in (k, v))
        for begin, end in _rows(q, k, mask):
            rows = _Rows(q, k, begin, end, mask, scale)
            weights = rows.weights(logsums[:, :, begin:end].contiguous() / LOG2E)
            of_rows = rows.of(grad)
            delta = (of_rows * rows.of(out)).sum(-1, keepdim=True)
            flat = weights.view(*rows.queries.shape[:2], -1)
            to_v[:, rows.keys] += bmm(flat.mT, of_rows)
            change = flat * (bmm(of_rows, rows.matrices(v).mT) - delta) * scale
            if rows.slope is not None:
                change = change * rows.slope.view(change.shape)
            to_k[:, rows.keys] += bmm(change.mT, rows.queries)
            to_q[:, :, begin:end] = rows.back(bmm(change, rows.matrices(k)))
        return to_q, to_k.view(k.shape), to_v.view(v.shape)

    return run


def decode_plan(mask: Mask, scale: float) -> Callable[..., Tensor]:
    """Return `run(q, k_cache, v_cache, table, lengths, sinks) -> result`, which gathers the pages of each sequence."""

    def run(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor, sinks: Optional[Tensor]
    ) -> Tensor:  # fmt: skip
        page = k_cache.shape[1]
        starts = torch.arange(0, table.shape[1] * page, page, device=q.device)
        pages = table.masked_fill(starts >= lengths[:, None], 0).long()
        k, v = (x[pages].flatten(1, 2).transpose(1, 2) for x in (k_cache, v_cache))
        v = v.masked_fill(
            torch.arange(v.shape[2], device=q.device)[:, None] >= lengths.view(-1, 1, 1, 1), 0.0
        )  # of pages that hold no number yet
        rows = _Rows(q[:, :, None], k, 0, 1, mask, scale, lengths)
        return _attended(rows, v, sinks)[0][:, :, 0]

    return run
