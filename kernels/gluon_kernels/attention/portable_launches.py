"""The plans of attention on any device, for batches and packed sequences: blocks and prepared launches for each key."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_kernels.attention import portable_backward, portable_forward
from gluon_kernels.attention.decode_launches import GRID
from gluon_kernels.attention.masks import LOG2E, Mask
from gluon_kernels.plans import Launch, allocator, current_target, least_depth

__all__ = ["backward_plan", "forward_plan"]

Plan = Callable[..., Any]
Lists = Optional[tuple[Tensor, Tensor]]


def _power(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())


def _parts(width: int) -> tuple[int, int]:
    """Return the blocks that cover a width of queries: two where that leaves less padding."""
    whole = _power(width)
    if whole >= 64 and width <= whole // 2 + whole // 4:
        return whole // 2, whole // 4
    return whole, 0


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Return the strides of batches, rows and heads: of [batch, heads, length, ...], or [tokens, heads, ...]."""
    return (x.stride(0), x.stride(2), x.stride(1)) if x.ndim == 4 else (0, x.stride(0), x.stride(1))


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _forward_blocks(depth: int, width: int) -> dict[str, int]:
    target = current_target()
    if target.has("nvidia.wgmma") or target.has("nvidia.tcgen05"):
        rows, warps = (64, 4) if width <= 128 else (128, 8)
        # Masks of columns take registers: a tile of 64 keys would spill 190 bytes.
        padded = width > 128 and sum(_parts(depth)) > depth
        keys = 32 if padded and target.has("nvidia.tcgen05") else 64
        return {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": warps}
    warps = 8 if target.has("amd.wmma_v1") else 4
    if depth <= 128 and width <= 128:
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": warps}
    keys = 32 if width <= 128 and depth <= 192 else least_depth()
    return {"BLOCK_M": 32, "BLOCK_N": keys, "num_warps": warps}


def _backward_blocks(depth: int, width: int) -> dict[str, int]:
    target = current_target()
    warps = 8 if target.has("amd.wmma_v1") else 4
    wide = max(depth, width)
    if wide > 128 and target.has("nvidia.wgmma"):
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8}
    rows, keys = (32, 64) if wide <= 128 else (least_depth(), 32)
    return {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": warps}


def _most(lists: Lists) -> int:
    return 0 if lists is None else _power(max(lists[0].shape[0] - 1, 1), 32)


def _tiles(length: int, lists: Lists, block: int) -> int:
    """Return the number of tiles: of packed sequences, as many as there may be."""
    return -(-length // block) if lists is None else length // block + lists[0].shape[0] - 1


def _slices(batch: int) -> list[slice]:
    """Return as many batches at a time as the third axis of a grid has programs, from multiples of 16 bytes on."""
    size = GRID // 16 * 16
    return [slice(first, first + size) for first in range(0, batch, size)]


def _forward_of_slices(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], mask: Mask, scale: float, keep: bool,
    out: Optional[Tensor], score: Any, extra: Any,
) -> Plan:  # fmt: skip
    """Return the plan of more batches than the third axis of a grid has programs."""
    places = _slices(q.shape[0])

    def part(x: Optional[Tensor], place: slice) -> Optional[Tensor]:
        return None if x is None else x[place]

    plans = [
        forward_plan(q[i], k[i], v[i], sinks, None, mask, scale, keep, part(out, i), score, extra)
        for i in places
    ]

    def run(
        q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], lists: Any, out: Optional[Tensor], *more: Any
    ) -> Any:  # fmt: skip
        done = [
            plan(q[i], k[i], v[i], sinks, None, part(out, i), *more)
            for plan, i in zip(plans, places)
        ]
        result = torch.cat([x for x, _ in done]) if out is None else out
        return result, torch.cat([x for _, x in done]) if keep else None

    return run


def _backward_of_slices(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, mask: Mask, scale: float
) -> Plan:  # fmt: skip
    """Return the plan of the gradients of more batches than the third axis of a grid has programs."""
    places = _slices(q.shape[0])
    plans = [
        backward_plan(grad[i], q[i], k[i], v[i], out[i], logsums[i], None, mask, scale)
        for i in places
    ]

    def run(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, lists: Any
    ) -> Any:
        done = [
            plan(grad[i], q[i], k[i], v[i], out[i], logsums[i], None)
            for plan, i in zip(plans, places)
        ]
        return tuple(torch.cat(parts) for parts in zip(*done))

    return run


def forward_plan(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], lists: Lists, mask: Mask, scale: float, keep: bool,
    out: Optional[Tensor], score: Any = None, extra: Any = None,
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, lists, out) -> (result, logarithms of sums)`, the last None if `keep` is not set.

    Args:
        q, k, v: [batch, heads, length, width], or, with lists, [tokens, heads, width].
        lists: the first tokens of packed sequences, and those of their keys; None for batches.
        score: a function of scores; see `portable_forward.attend`.
        extra: its last argument: tensors and numbers, or a tuple of them.
    """
    if lists is None and q.shape[0] > GRID:
        return _forward_of_slices(q, k, v, sinks, mask, scale, keep, out, score, extra)
    depth, width = q.shape[-1], v.shape[-1]
    shape = (*q.shape[:-1], width)
    empty = allocator(shape, q.dtype, q.device)
    empty_logsums = allocator(shape[:-1], torch.float32, q.device)
    target = None if out is None or out.stride(-1) != 1 else out
    tensors = (_dense(q), _dense(k), _dense(v))
    written = empty() if target is None else target
    logsums = empty_logsums() if keep else None
    heads = q.shape[1]
    rows, keys = (q.shape[2], k.shape[2]) if lists is None else (q.shape[0], k.shape[0])
    strides = tuple(_strides(x) for x in (*tensors, written))
    strides = (*strides, (0, 0, 0) if logsums is None else _strides(logsums[..., None]))
    if lists is None:
        counted: tuple[Any, ...] = (rows, keys)
    else:
        counted = (*lists, lists[0].shape[0] - 1)
    most = _most(lists)
    blocks = _forward_blocks(depth, width)
    bounds = (mask.left is not None, mask.right is not None)
    extras = extra if isinstance(extra, tuple) else (extra,)
    more = [x for x in extras if isinstance(x, Tensor)]
    launch = Launch(
        portable_forward.attend,
        (_tiles(rows, lists, blocks["BLOCK_M"]), heads, q.shape[0] if lists is None else 1),
        (
            *tensors, written, logsums, sinks, counted, strides, heads, (depth, width), scale * LOG2E,
            (mask.left or 0, mask.right or 0), mask.cap or 1.0, extra if extra is not None else 0, _parts(depth),
            _power(width), heads // k.shape[1], bounds, lists is not None, bool(mask.cap), score, most,
            blocks["BLOCK_M"], blocks["BLOCK_N"], 2,
        ),
        (*tensors, written, logsums, sinks, *(lists or ()), *more),
        num_warps=blocks["num_warps"],
    )  # fmt: skip

    def run(
        q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], lists: Any, out: Optional[Tensor], *more: Any
    ) -> Any:  # fmt: skip
        result = empty() if target is None or out is None else out
        logsums = empty_logsums() if keep else None
        launch(_dense(q), _dense(k), _dense(v), result, logsums, sinks, *(lists or ()), *more)
        if out is not None and result is not out:
            result = out.copy_(result)
        return result, logsums

    return run


def backward_plan(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsums: Tensor,
    lists: Lists,
    mask: Mask,
    scale: float,
) -> Plan:
    """Return `run(grad, q, k, v, out, logsums, lists) -> (gradients of q, k and v)`."""
    if lists is None and q.shape[0] > GRID:
        return _backward_of_slices(grad, q, k, v, out, logsums, mask, scale)
    depth, width = q.shape[-1], v.shape[-1]
    new = [allocator(tuple(x.shape), q.dtype, q.device) for x in (q, k, v)]
    heads, heads_of_keys = q.shape[1], k.shape[1]
    tensors = (_dense(q), _dense(k), _dense(v), _dense(grad))
    deltas = torch.empty_like(logsums)
    to_q, to_k, to_v = (f() for f in new)
    rows, keys = (q.shape[2], k.shape[2]) if lists is None else (q.shape[0], k.shape[0])
    batches = q.shape[0] if lists is None else 1
    blocks = _backward_blocks(depth, width)
    strides = tuple(_strides(x) for x in (*tensors, logsums[..., None]))
    constants = (
        _power(depth), _power(width), heads // heads_of_keys, (mask.left is not None, mask.right is not None),
        lists is not None, bool(mask.cap), _most(lists), blocks["BLOCK_M"], blocks["BLOCK_N"],
    )  # fmt: skip
    numbers = (
        (depth, width),
        (scale, scale * LOG2E),
        (mask.left or 0, mask.right or 0),
        mask.cap or 1.0,
    )

    def prepared(
        kernel: Any, outs: tuple[Tensor, ...], own: int, own_heads: int, swap: bool
    ) -> Launch:
        counted: tuple[Any, ...] = (rows, keys) if lists is None else lists
        counted = tuple(reversed(counted)) if swap else counted
        if lists is not None:
            counted = (*counted, lists[0].shape[0] - 1)
        block = blocks["BLOCK_N"] if swap else blocks["BLOCK_M"]
        return Launch(
            kernel,
            (_tiles(own, lists, block), own_heads, batches),
            (
                *tensors, logsums, deltas, *outs, counted, (*strides, *(_strides(x) for x in outs)), *numbers,
                *constants,
            ),
            (*tensors, logsums, deltas, *outs, *(lists or ())),
            num_warps=blocks["num_warps"],
        )  # fmt: skip

    of_keys = prepared(portable_backward.key_gradients, (to_k, to_v), keys, heads_of_keys, True)
    of_queries = prepared(portable_backward.query_gradients, (to_q,), rows, heads, False)

    def run(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor, lists: Any
    ) -> Any:
        deltas = (out.float() * grad.float()).sum(-1).contiguous()
        tensors = (_dense(q), _dense(k), _dense(v), _dense(grad))
        to_q, to_k, to_v = (f() for f in new)
        rest = lists or ()
        of_keys(*tensors, logsums, deltas, to_k, to_v, *rest)
        of_queries(*tensors, logsums, deltas, to_q, *rest)
        return to_q, to_k, to_v

    return run
