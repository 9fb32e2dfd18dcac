"""The plan of attention of float32 on Hopper: its launches, and the shapes that it takes."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

import gluon_core as gluon
from gluon_kernels.attention import hopper_float32, hopper_float32_backward
from gluon_kernels.attention.decode_launches import GRID
from gluon_kernels.attention.launches import LOG2E, Plan, descriptor_of, width_of
from gluon_kernels.attention.masks import Mask
from gluon_kernels.attention.order import UNMASKED, order_of
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, allocator, multiprocessors

__all__ = ["backward_plan", "forward_plan", "takes"]

ROWS = 128  # of a tile
LEAST = 64  # queries: fewer leave most rows of a tile empty
SPLIT = 32  # rows of a program that splits numbers
# By the width of heads: keys of a tile, slots of keys and values, and thirds of queries in registers.
FORMS = {64: (64, 6, 3), 128: (64, 2, 0)}
# Groups of warps, rows of a step and slots of its operands, for the gradients of queries and for those of keys.
BACKWARD_FORMS = {64: ((2, 64, 4), (2, 64, 4)), 128: ((1, 32, 4), (1, 32, 4))}


def takes(q: Tensor, v: Tensor, mask: Mask, scale: float) -> bool:
    """Return True if the kernel takes such heads."""
    fits = q.shape[-1] == v.shape[-1] <= 128 and q.shape[2] >= LEAST
    return mask.is_plain and scale > 0 and fits and q.shape[0] * q.shape[1] <= GRID


def _split_launch(tensors: Sequence[Tensor], parts: Sequence[Tensor]) -> Launch:
    """Return `launch(*tensors, *parts)`, which stores the thirds of keys, values, and tensors of queries; `parts` are those of queries and keys."""
    (batch, of_keys, depth, width), (_, heads, length, _) = tensors[0].shape, tensors[-1].shape
    of_queries, of_both = parts
    return Launch(
        hopper_float32.split,
        (gluon.cdiv(max(length, depth), SPLIT), batch * heads, len(tensors)),
        (
            tuple(tensors), of_queries, of_both, tuple(x.stride() for x in tensors), (of_keys, heads),
            (batch * of_keys, batch * heads), (depth, length), width, SPLIT, width_of(width),
        ),
        (*tensors, *parts),
        num_warps=4,
        **overlapping_tensors(*tensors, *parts),
    )  # fmt: skip


def forward_plan(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], mask: Mask, scale: float) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, out) -> (result, logarithms of sums)`."""
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    wide, device = width_of(width), q.device
    shared, causal = heads // of_keys, mask.right is not None
    empty = allocator((batch, heads, length, width), torch.float32, device)
    empty_logsums = allocator((batch, heads, length), torch.float32, device)
    shapes = ((3 * batch * heads, length, wide), (6 * batch * of_keys, depth, wide))
    new_parts = [allocator(shape, torch.bfloat16, device) for shape in shapes]
    parts, written, logsums = [new() for new in new_parts], empty(), empty_logsums()
    split = _split_launch((k, v, q), parts)
    processors = multiprocessors(q)
    order, of_head = UNMASKED, 12 * wide * depth // shared  # bytes of keys and values
    if causal:
        order, _ = order_of(length, depth, batch * heads, ROWS, processors, of_head)
    keys, *form = FORMS[wide]
    descriptors = [descriptor_of(x, 1, n, wide) for x, n in zip(parts, (64, keys))]
    stages, held = form

    launch = Launch(
        hopper_float32.attention_float32,
        (min(gluon.cdiv(length, ROWS) * batch * heads, processors),),
        (
            *descriptors, written, written.stride(), logsums, sinks, batch * heads, length, depth, heads, order, width,
            scale * LOG2E, shared, stages, causal, held,
        ),
        (*parts, written, logsums, sinks),
        num_warps=4,
        **overlapping_tensors(*parts, written),
    )  # fmt: skip

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Optional[Tensor]) -> Any:
        parts = [new() for new in new_parts]
        result, logsums = empty(), empty_logsums()
        split(k, v, q, *parts)
        launch(*parts, result, logsums, sinks)
        return result if out is None else out.copy_(result), logsums

    return run


def backward_plan(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Plan:
    """Return `run(grad, q, k, v, out, logsums) -> (gradients of q, k and v)`."""
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    wide, device = width_of(width), q.device
    shapes = ((6 * batch * heads, length, wide), (6 * batch * of_keys, depth, wide))
    new_parts = [allocator(shape, torch.bfloat16, device) for shape in shapes]
    new_q = allocator((batch, heads, length, width), torch.float32, device)
    new_k = allocator((batch, of_keys, depth, width), torch.float32, device)
    parts, to_q, to_k, to_v = [new() for new in new_parts], new_q(), new_k(), new_k()
    new_sums = allocator((batch, heads, length), torch.float32, device)
    logsums, deltas = new_sums(), new_sums()
    split = _split_launch((k, v, q, to_q), parts)
    shared, causal = heads // of_keys, mask.right is not None
    sizes = (batch * heads, length, depth, heads, width, scale)

    def prepared(kernel: Any, form: tuple[int, int, int], outs: tuple[Tensor, ...], rows: int, own: int) -> Launch:  # fmt: skip
        groups, step, stages = form
        blocks = [64 if i == own else step for i in range(2)]
        descriptors = [descriptor_of(x, 1, n, wide) for x, n in zip(parts, blocks)]
        count = batch * (of_keys if own else heads)
        return Launch(
            kernel,
            (gluon.cdiv(rows, 64 * groups) * count,),
            (*descriptors, *outs, outs[0].stride(), logsums, deltas, *sizes, shared, groups, stages, causal),
            (*parts, *outs, logsums, deltas),
            num_warps=4,
            **overlapping_tensors(*parts, *outs),
        )  # fmt: skip

    for_queries, for_keys = BACKWARD_FORMS[wide]
    of_queries = prepared(
        hopper_float32_backward.query_gradients, for_queries, (to_q,), length, own=0
    )
    of_both = prepared(hopper_float32_backward.key_gradients, for_keys, (to_k, to_v), depth, own=1)

    def run(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsums: Tensor) -> Any:
        parts = [new() for new in new_parts]
        to_q, to_k, to_v = new_q(), new_k(), new_k()
        grad = grad.contiguous()
        deltas = (grad * out).sum(-1)
        split(k, v, q, grad, *parts)
        of_queries(*parts, to_q, logsums, deltas)
        of_both(*parts, to_k, to_v, logsums, deltas)
        return to_q, to_k, to_v

    return run
