"""The plans of attention over packed sequences on Hopper: descriptors, tiles and prepared launches for each key."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_kernels.attention import hopper_varlen
from gluon_kernels.attention.launches import (
    COMPUTED,
    STAGES,
    columns_of,
    descriptor_of,
    is_readable,
    readable,
)
from gluon_kernels.attention.masks import Mask
from gluon_kernels.attention.order import CACHE, GROUP
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Counters, Launch, allocator, multiprocessors

__all__ = ["blocks_of", "bound_of", "forward_plan", "lists_of", "most_in_launch"]

Plan = Callable[..., Any]
LONG = 768  # tokens of a sequence on average, from which on tiles of 192 rows pay
NARROW = 320  # keys around a query that a window lets it see, up to which small tiles pay
SEQUENCES = 256  # of one launch: each thread of a producer holds 8 of them


def blocks_of(depth: int, width: int) -> tuple[int, int]:
    """Return the widths of queries and values that a kernel has for these."""
    if depth <= 64 and width <= 64:
        return 64, 64
    if depth <= 128 and width <= 128:
        return 128, 128
    return (192, 128) if depth <= 192 and width <= 128 else (256, 256)


def bound_of(count: int) -> int:
    """Return the power of two that bounds the sequences of a launch."""
    return max(32, 1 << (count - 1).bit_length())


def most_in_launch(count: int) -> int:
    """Return the most sequences that a launch takes."""
    return min(count, SEQUENCES)


def _slices(count: int) -> list[tuple[int, int]]:
    """Return the first sequence and the number of sequences of each launch."""
    return [(first, min(SEQUENCES, count - first)) for first in range(0, count, SEQUENCES)]


def lists_of(lists: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """Return the lists of each launch."""
    if count <= SEQUENCES:
        return [lists]
    return [tuple(x[first : first + many + 1] for x in lists) for first, many in _slices(count)]


def _rows_of(wide: int, tokens: int, count: int, heads: int, causal: bool, processors: int) -> int:
    """Return the queries of a tile."""
    # Tiles of 128 rows in all sequences, on average.
    tiles = (tokens / 128 + count / 2) * heads
    if tiles + tokens / 128 * heads <= processors or (causal and tiles <= 1.5 * processors):
        return 64  # by one group of warps, which takes less time alone on a processor
    # Three groups of warps have registers for sums of 64 columns; short sequences would leave many of their rows empty, and a causal mask gives the last tile
    # of the longest sequence more work than a processor's share of few tiles.
    rounds = 2.0 if count == 1 else 2.6
    long = tokens >= LONG * count and not (causal and tiles <= rounds * processors)
    return 192 if wide == 64 and long else 128


def _tile_of(
    wide: int, narrow: int, tokens: int, count: int, heads: int, mask: Mask, processors: int
) -> tuple[int, int]:
    """Return the queries and keys of a tile."""
    if wide == 64 and mask.left is not None and mask.right is not None:
        if mask.left + mask.right <= NARROW:
            return 128, 64  # fewer of the keys that a tile covers are seen by no row
    rows = _rows_of(wide, tokens, count, heads, mask.right is not None, processors)
    return rows, 64 if narrow > 128 else 128


def _heads_together(heads: int, bytes_of_head: int) -> int:
    """Return how many heads are walked together: all, since programs end together then, where the cache holds their keys and values."""
    most = heads if heads * bytes_of_head <= CACHE else GROUP
    return -(-heads // -(-heads // most))


def forward_plan(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], of_queries: Tensor, of_keys: Tensor, mask: Mask,
    scale: float, keep: bool, out: Optional[Tensor],
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, of_queries, of_keys, out) -> (result, logarithms of sums)`, the last None if `keep` is not set."""
    (tokens, heads, depth), width = q.shape, v.shape[2]
    wide, narrow = blocks_of(depth, width)
    columns = columns_of(width)
    plain = is_readable(q) and is_readable(k) and is_readable(v)
    exact = width == columns
    target = out if out is not None and exact and out.is_contiguous() else None
    if target is not None and target.data_ptr() % 16:
        target = None
    empty = allocator((tokens, heads, columns), q.dtype, q.device)
    empty_logsums = allocator((tokens, heads), torch.float32, q.device)
    count = of_queries.shape[0] - 1

    def new(out: Optional[Tensor]) -> Tensor:
        return empty() if target is None or out is None else out

    tensors = (readable(q), readable(k), readable(v))
    written, logsums = new(out), empty_logsums() if keep else None
    processors = multiprocessors(q)
    rows, keys = _tile_of(wide, narrow, tokens, count, heads, mask, processors)

    by_thirds = max(depth, width) <= 96 and min(depth, width) > 64

    def parts(x: Tensor, size: int, width: int, block: int) -> Any:
        """Return the descriptors of heads of `width`: of two parts if a block of 64 or 128 columns does not hold or fill them."""
        if block <= 128:
            widths = (64, 32) if 64 < width <= 96 and by_thirds else (block,)
        else:
            widths = (128, 64 if width <= 192 else 128)
        return tuple(descriptor_of(x, size, 1, part) for part in widths)

    descriptors = (
        parts(tensors[0], 64, depth, wide),
        parts(tensors[1], keys, depth, wide),
        parts(tensors[2], keys, width, narrow),
        descriptor_of(written, 64, 1, 32 if by_thirds else 64 if wide > 128 else narrow),
    )
    programs = min(processors, (tokens // rows + most_in_launch(count)) * heads)
    counters = Counters(1)
    together = _heads_together(heads, 2 * k.shape[0] * (depth + width) // (heads // k.shape[1]))
    factors = mask.scales(scale)

    def prepared(lists: tuple[Tensor, ...]) -> Launch:
        many = lists[0].shape[0] - 1
        sizes = (many, heads, together, columns, *factors)
        window = (mask.left, mask.right)
        constants = (
            heads // k.shape[1],
            rows,
            keys,
            STAGES,
            window,
            bool(mask.cap),
            bound_of(many),
            scale > 0,
            COMPUTED[96 if by_thirds else narrow] if wide <= 128 else 0,
        )
        own = (written, logsums, sinks, counters(q.device), *lists)
        return Launch(
            hopper_varlen.attention_varlen,
            (programs,),
            (*descriptors, *own, *sizes, *constants),
            (*tensors, *own),
            num_warps=4,
            **overlapping_tensors(*tensors, written),
        )  # fmt: skip

    launches = [prepared(lists) for lists in lists_of((of_queries, of_keys), count)]
    (launch, *others) = launches

    def run(
        q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], of_queries: Tensor, of_keys: Tensor, out: Optional[Tensor],
    ) -> Any:  # fmt: skip
        result = new(out)
        logsums = empty_logsums() if keep else None
        if not plain:
            q, k, v = readable(q), readable(k), readable(v)
        if not others:
            launch(q, k, v, result, logsums, sinks, counters(q.device), of_queries, of_keys)
        else:
            for each, lists in zip(launches, lists_of((of_queries, of_keys), count)):
                each(q, k, v, result, logsums, sinks, counters(q.device), *lists)
        if out is not None and result is not out:
            result = out.copy_(result[..., :width])
        elif not exact and out is None:
            result = result[..., :width].contiguous()
        return result, logsums

    return run
