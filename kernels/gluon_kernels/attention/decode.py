"""Attention of one new token of each sequence against pages, as an operator of PyTorch."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

from torch import Tensor

import gluon_core as gluon
from gluon_core.errors import ShapeError
from gluon_kernels.attention import decode_launches, full_precision
from gluon_kernels.attention.decode_launches import ROWS, WIDTHS
from gluon_kernels.attention.masks import Mask, checked_window
from gluon_kernels.attention.sinks import check_sinks
from gluon_kernels.checks import (
    FLOATS,
    check_contiguous,
    check_devices,
    check_entries,
    check_numbers,
    check_one_dtype,
    check_pages,
    check_tensors,
)
from gluon_kernels.eager import is_compiling, is_plain
from gluon_kernels.plans import Plans, allocator, key

__all__ = ["attention_decode"]


def _check(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor) -> None:
    check_tensors(
        "attention_decode", q=q, k_cache=k_cache, v_cache=v_cache, page_table=table, lengths=lengths
    )
    check_one_dtype("attention_decode", FLOATS, q=q, k_cache=k_cache, v_cache=v_cache)
    if q.ndim != 3 or q.shape[2] not in WIDTHS:
        raise ShapeError(
            "decoding takes one query token for each sequence",
            argument="q",
            expected=f"[sequences, heads, width], {WIDTHS} wide",
            got=list(q.shape),
        )
    pages = k_cache.ndim == 4 and (k_cache.shape[0] or not q.shape[0])
    if not pages or k_cache.shape[3] != q.shape[2]:
        raise ShapeError(
            "the cache must be paged",
            argument="k_cache",
            expected=f"[pages, tokens of a page, heads, {q.shape[2]}]",
            got=list(k_cache.shape),
        )
    if v_cache.shape != k_cache.shape:
        raise ShapeError(
            "the caches must have the same shape",
            argument="v_cache",
            expected=list(k_cache.shape),
            got=list(v_cache.shape),
        )
    heads = k_cache.shape[2]
    if not heads or q.shape[1] % heads or q.shape[1] // heads > ROWS:
        raise ShapeError(
            f"the number of query heads must be a multiple of the number of key heads, at most {ROWS}",
            argument="k_cache",
            expected=f"a divisor of {q.shape[1]} heads",
            got=heads,
        )
    check_entries(q.shape[0], page_table=(table, 2), lengths=(lengths, 1))
    check_devices(q, k_cache=k_cache, v_cache=v_cache, page_table=table, lengths=lengths)
    check_contiguous(k_cache=k_cache, v_cache=v_cache)


def _build(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor, sinks: Optional[Tensor], window: Any,
    softcap: float, scale: float,
) -> Any:  # fmt: skip
    _check(q, k_cache, v_cache, table, lengths)
    check_sinks(sinks, q)
    mask = Mask.of(False, window, softcap).shortened(table.shape[1] * k_cache.shape[1])
    (sequences, queries, width), heads = q.shape, k_cache.shape[2]
    empty = allocator((sequences, queries, width), q.dtype, q.device)
    if not q.numel():
        return lambda *unused: empty()
    if not decode_launches.takes(q.dtype):
        attend = full_precision.decode_plan(mask, scale)
        return lambda q, k, v, table, lengths, sinks, *settings: attend(q, k, v, table, lengths, sinks)  # fmt: skip

    def grouped(x: Tensor) -> Tensor:
        return x.unflatten(1, (heads, queries // heads))

    def dense(x: Tensor) -> Tensor:
        return x if x.stride(-1) == 1 else x.contiguous()

    caches, pages = (k_cache, v_cache), dense(table)
    launch = decode_launches.plan(
        grouped(dense(q)), caches, pages, lengths, grouped(empty()), None, sinks, 1, mask, scale
    )

    def run(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor, sinks: Optional[Tensor],
        *settings: Any,
    ) -> Tensor:  # fmt: skip
        out = empty()
        launch(dense(q), k_cache, v_cache, dense(table), lengths, out, None, sinks)
        return out

    return run


_plans = Plans(_build, vectors=(4, 5))


@gluon.torch.op(
    "gluon_kernels::attention_decode",
    shape=lambda q, k_cache, v_cache, page_table, lengths, scale, left, softcap, sinks: q.shape,
)
def _decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    scale: float,
    left: Optional[int] = None,
    softcap: float = 0.0,
    sinks: Optional[Tensor] = None,
) -> Tensor:
    check_pages(page_table, lengths, k_cache.shape[1], k_cache.shape[0] if left is None else None)
    tensors = (q, k_cache, v_cache, page_table, lengths, sinks)
    settings = (None if left is None else (left, None), softcap, scale)
    result: Tensor = _plans((key(*tensors), *settings), *tensors, *settings)
    return result


def attention_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    *,
    window: Optional[Sequence[Optional[int]]] = None,
    softcap: float = 0.0,
    scale: Optional[float] = None,
    sinks: Optional[Tensor] = None,
) -> Tensor:
    """Return the attention of one new token of each sequence against its keys and values in pages.

    Equal inputs give equal bits. There are no gradients. A cache of sequences in a row, [sequences, longest, heads of keys, width], is one of
    pages of `longest` tokens, with a table of one page for each.

    Args:
        q: [sequences, heads, width], float16, bfloat16 or float32; 16, 32, 64, 128 or 256 wide.
        k_cache, v_cache: contiguous [pages, tokens of a page, heads of keys, width] of the same dtype; up to 16 heads of
            queries share one of keys (GQA).
        page_table: int32 [sequences, pages of the longest]: the pages of each sequence, in order.
        lengths: int32 [sequences]: the tokens of each; a sequence without tokens has a result of zeros.
        window: `(before, after)`: the new token, a sequence's last, sees itself and `before` tokens; None or -1 is no bound.
        softcap: scores become `softcap * tanh(score / softcap)`; 0 leaves them.
        scale: of the scores; 1 / sqrt(width) by default.
        sinks: [heads], a floating-point dtype: a score that each query of the head has in addition, of no key and without a value.

    Returns:
        [sequences, heads, width].

    Raises:
        DtypeError, ShapeError: tensors of other dtypes or shapes.
        ArgumentError: tensors on different devices, caches that are not contiguous, a window or cap that is none, or lengths and pages on a CPU that
            do not fit the cache.
    """
    tensors = (q, k_cache, v_cache, page_table, lengths)
    if type(q) is not Tensor or q.is_nested or not q.ndim:
        _check(*tensors)
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    elif type(scale) is not float:
        check_numbers(scale=scale)
    if type(softcap) is not float:
        check_numbers(softcap=softcap)
    if window is not None and type(window) is not tuple:
        window = checked_window(window)
    result: Tensor
    if not is_compiling() and is_plain(*tensors, *(() if sinks is None else (sinks,))):
        settings = (window, softcap, scale)
        result = _plans((key(*tensors, sinks), *settings), *tensors, sinks, *settings)
        return result
    _check(*tensors)
    check_sinks(sinks, q)
    mask = Mask.of(False, window, softcap)
    result = _decode(*tensors, scale, mask.left, mask.cap, sinks)
    return result
