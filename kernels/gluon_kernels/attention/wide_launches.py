"""The plans of attention over whole sequences of heads of 65 to 96 and of 129 to 256 columns, on Hopper."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from gluon_kernels.attention import hopper_wide
from gluon_kernels.attention.launches import (
    COMPUTED,
    LOG2E,
    Plan,
    columns_of,
    descriptor_of,
    forward_sequence,
    is_readable,
    readable,
)
from gluon_kernels.attention.order import rows_of
from gluon_kernels.attention.part_launches import parts_for
from gluon_kernels.dependent import overlapping_tensors
from gluon_kernels.plans import Launch, allocator, multiprocessors

__all__ = ["forward_plan"]

# By the width, rounded up to 64: the columns of both parts, the keys of a tile, their stages and those of values, and if groups of warps overlap
# and have queries in registers.
FORMS: dict[int, tuple[Any, ...]] = {
    128: ((64, 32), 128, (3, 3), True, True),
    192: ((128, 64), 64, (2, 2), False, True),
    256: ((128, 128), 64, (2, 2), False, False),
}


def forward_plan(
    q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], causal: bool, scale: float, keep: bool, out: Optional[Tensor]
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, sinks, out) -> (result, logarithms of sums)`, the last None if `keep` is not set."""
    batch, heads, length, width = q.shape
    of_keys, depth = k.shape[1:3]
    columns, device = columns_of(width), q.device
    exact = columns == width
    target = None if out is None or not is_readable(out) else out
    empty = allocator((batch, heads, length, columns), q.dtype, device)
    empty_logsums = allocator((batch, heads, length), torch.float32, device)
    processors = multiprocessors(q)
    operands = [readable(x) for x in (q, k, v)]
    written = empty() if target is None else target
    logsums = empty_logsums() if keep else None
    shared = heads // of_keys
    parts, keys, stages, *form = FORMS[-(-width // 64) * 64]
    of_head = 4 * width * depth // shared  # bytes of keys and values
    rows, order = rows_of(length, depth, batch * heads, sum(parts), causal, processors, of_head)
    count = -(-length // rows) * batch * heads
    divided = None if causal else parts_for(count, depth, rows, sum(parts), processors)
    new_parts = None if divided is None else divided.memory(device)
    stored = None if new_parts is None else new_parts()
    join = None
    if divided is not None and stored is not None:
        order, join = divided.order, divided.joining(stored, written, logsums, sinks)
    pairs = [
        tuple(descriptor_of(x, 1, 1, size, part) for part in parts)
        for x, size in zip(operands, (64, keys, keys))
    ]
    launch = Launch(
        hopper_wide.attention_wide,
        (min(count if divided is None else divided.programs, processors),),
        (
            *pairs, descriptor_of(written, 1, 1, 64, min(parts[1], 64)), logsums, stored, sinks, batch * heads, length, depth, heads, order,
            1 if divided is None else divided.splits, scale * LOG2E, shared, causal, stages, rows // 64, *form, COMPUTED.get(sum(parts), 0),
        ),
        (*operands, written, logsums, stored, sinks),
        num_warps=4,
        **overlapping_tensors(*operands, written),
    )  # fmt: skip

    if exact and out is None and all(is_readable(x) for x in (q, k, v)):
        return forward_sequence(launch, join, empty, empty_logsums if keep else None, new_parts)

    def run(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Optional[Tensor]) -> Any:
        result = empty() if target is None or out is None else out
        logsums = empty_logsums() if keep else None
        stored = None if new_parts is None else new_parts()
        launch(readable(q), readable(k), readable(v), result, logsums, stored, sinks)
        if join is not None:
            join(stored, result, logsums, sinks)
        if out is not None and result is not out:
            result = out.copy_(result[..., :width])
        elif not exact and out is None:
            result = result[..., :width].contiguous()
        return result, logsums

    return run
