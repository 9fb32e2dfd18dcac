"""The plan of the gradients of linear attention without the delta rule on Hopper: two walks for states and their gradients, then all chunks at a time."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.linear_attention.decay_launches import (
    SHARED_REGISTERS,
    Gates,
    segments_of,
    walk_decaying_launch,
)
from gluon_kernels.linear_attention.launches import (
    CHUNK,
    TILE,
    Sizes,
    Workspace,
    operands_of,
    padded_state,
)
from gluon_kernels.linear_attention.shared_heads import shared_plan
from gluon_kernels.plans import Launch, allocator, multiprocessors, registers

__all__ = ["Results", "decaying_backward_plan"]

Plan = Callable[..., Any]
# Microseconds on an H200, as far as they tell numbers of heads of a program apart: of a head, of the rest of a program, and how much longer programs
# take that share a processor; bytes of sums in float32 in a microsecond.
HEAD, PROGRAM, TOGETHER, BYTES = 4.0, 4.0, 1.6, 3.5e6


class Results(NamedTuple):
    """The gradients: those of gates, float32, or of steps, of their dtype, and of `slopes`, `bias` and `skip`, float32 [3, heads], None without steps."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor
    sums: Optional[Tensor]
    initial: Tensor


def _two_share(sizes: Sizes, each: int) -> bool:
    """Return True if two programs share a processor."""
    return each == 1 and sizes.columns == TILE


def heads_of_program(sizes: Sizes, processors: int) -> int:
    """Return how many heads that share keys a program takes, so that all programs take the least time."""
    chunks = sizes.batch * sizes.heads * sizes.chunks

    def time(each: int) -> float:
        programs = -(-chunks // each)
        together = 2 if programs > processors and _two_share(sizes, each) else 1
        rounds = -(-programs // (processors * together))
        sums = 0 if each == sizes.shared else programs * CHUNK * sizes.width * 4 * 4
        longer = TOGETHER if together == 2 else 1.0
        return rounds * (PROGRAM + each * HEAD) * longer + sums / BYTES

    return min((n for n in range(1, sizes.shared + 1) if sizes.shared % n == 0), key=time)


def _chunks_launch(
    sizes: Sizes, each: int, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, walked: Any, gates: Gates,
    skip: Optional[Tensor], results: Any, scale: float,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, v, grad, walked, gates, skip, results)`; `walked` are S and G, `results` gradients of q, k, v and gates, and sums."""
    from gluon_kernels.linear_attention.decays_backward import decaying_gradients

    def flat(q: Any, k: Any, v: Any, grad: Any, walked: Any, gates: Gates, skip: Any, results: Any) -> Any:  # fmt: skip
        states = (x.view(-1, sizes.width) for x in walked)
        return (q, k, v, grad, *states, *gates[:3], skip, *results)

    tensors = flat(q, k, v, grad, walked, gates, skip, results)
    of_keys, of_values = (1, CHUNK, 1, sizes.width), (1, CHUNK, 1, TILE)
    blocks = (of_keys, of_keys, of_values, of_values, (TILE, sizes.width), (TILE, sizes.width))
    launch = Launch(
        decaying_gradients,
        (sizes.chunks, sizes.heads // each, sizes.batch),
        (
            *(descriptor_of(x, *block) for x, block in zip(tensors, blocks)), *tensors[len(blocks):], sizes.length,
            sizes.heads, scale, sizes.columns // TILE, sizes.shared, each, gates.softplus, sizes.length % CHUNK == 0,
        ),
        tensors,
        num_warps=8,
        **(registers(SHARED_REGISTERS) if _two_share(sizes, each) else {}),
    )  # fmt: skip
    return lambda *arguments: launch(*flat(*arguments))


def decaying_backward_plan(
    grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor],
    initial: Optional[Tensor], scale: float,
) -> Plan:  # fmt: skip
    """Return `run(grad, grad_state, q, k, v, gates, skip, initial) -> Results`; states are [batch, heads, V, K]."""
    assert gates.values is not None
    sizes = Sizes.of(k, v, gates.values, False)
    width, columns, of_keys = k.shape[3], v.shape[3], k.shape[2]
    new = Workspace(sizes, v.dtype, v.device)
    each = heads_of_program(sizes, multiprocessors(v))
    tokens, parts = (sizes.batch, sizes.length), sizes.heads // each
    dtype = v.dtype if parts == of_keys else torch.float32
    keys = allocator((*tokens, parts, sizes.width), dtype, v.device)
    values = allocator((*tokens, sizes.heads, sizes.columns), v.dtype, v.device)
    summed = allocator((3, sizes.batch, sizes.chunks, sizes.heads), torch.float32, v.device)
    steps = gates.slopes is not None
    to_steps = gates.values.dtype if steps else torch.float32
    rates = allocator((*tokens, sizes.heads), to_steps, v.device)

    def gradients() -> tuple[Tensor, Tensor, Tensor, Tensor, Optional[Tensor]]:
        return keys(), keys(), values(), rates(), summed() if steps else None

    q, k, v, grad = operands_of(sizes, q, k, v, grad)
    initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
    states, changes, to_initial = new.states(), new.states(), new.state()
    segments = segments_of(sizes, k, v, gates, new)
    walk = walk_decaying_launch(
        sizes, None, k, v, gates, (None, states), segments.between, initial, None, None, scale, False
    )  # fmt: skip
    back = segments_of(sizes, q, grad, Gates(*gates), new, scale, True)
    walk_back = walk_decaying_launch(
        sizes, None, q, grad, gates, (None, changes), back.between, last, to_initial, None, scale, False, True
    )  # fmt: skip
    results = gradients()
    chunks = _chunks_launch(
        sizes, each, q, k, v, grad, (states, changes), gates, skip, results, scale
    )
    shared = shared_plan(results[0], results[1], (*tokens, of_keys, width), v.dtype)

    def run(
        grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor],
        initial: Optional[Tensor],
    ) -> Results:  # fmt: skip
        q, k, v, grad = operands_of(sizes, q, k, v, grad)
        initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
        states, changes, to_initial = new.states(), new.states(), new.state()
        # The first walk back overlaps `walk`: what that reads keeps its memory.
        taken = segments.run(k, v, gates)
        walk(None, k, v, gates, (None, states), taken, initial, None, None)
        taken_back = back.run(q, grad, gates)
        walk_back(None, q, grad, gates, (None, changes), taken_back, last, to_initial, None)
        to_q, to_k, to_v, to_gates, sums = done = gradients()
        chunks(q, k, v, grad, (states, changes), gates, skip, done)
        return Results(
            *shared(to_q, to_k), to_v[..., :columns].contiguous(), to_gates,
            None if sums is None else sums.sum((1, 2)), to_initial[..., :columns, :width].contiguous(),
        )  # fmt: skip

    return run
