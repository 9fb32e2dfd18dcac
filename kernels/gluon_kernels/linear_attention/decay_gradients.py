"""The plan of the gradients of linear attention without the delta rule on Hopper: two walks for states and their gradients, then all chunks at a time."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.linear_attention.decay_launches import (
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
from gluon_kernels.linear_attention.shared_heads import (
    chunks_plan,
    heads_of_group,
    shared_plan,
    stages_and_writers,
)
from gluon_kernels.plans import Launch, allocator, multiprocessors

__all__ = ["Results", "decaying_backward_plan"]

Plan = Callable[..., Any]


class Results(NamedTuple):
    """The gradients: those of gates, float32, or of steps, of their dtype, and of `slopes`, `bias` and `skip`, float32 [3, heads], None without steps."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor
    sums: Optional[Tensor]
    initial: Tensor


def _chunks_launch(
    sizes: Sizes, each: int, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, walked: Tensor, gates: Gates,
    skip: Optional[Tensor], results: Any, scale: float,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, v, grad, walked, gates, skip, results)`; `walked` are S and G, `results` gradients of q, k, v and gates, and sums."""
    if each == 1 and gates.slopes is None:
        return _heads_launch(sizes, q, k, v, grad, walked, gates, results, scale)
    from gluon_kernels.linear_attention.decays_backward import decaying_gradients

    def flat(q: Any, k: Any, v: Any, grad: Any, walked: Any, gates: Gates, skip: Any, results: Any) -> Any:  # fmt: skip
        states = (x.view(-1, sizes.width) for x in walked)
        return (q, k, v, grad, *states, *gates[:3], skip, *results)

    tensors = flat(q, k, v, grad, walked, gates, skip, results)
    of_keys, of_values = (1, CHUNK, 1, sizes.width), (1, CHUNK, 1, TILE)
    of_states = (TILE, sizes.width)
    blocks = [of_keys, of_keys, of_values, of_values, of_states, of_states]
    blocks += [(), (), (), (), (), (), of_values, (), ()]
    groups = sizes.chunks * (sizes.heads // each) * sizes.batch
    keys = 2 if each == 1 else 1
    own = [(CHUNK, CHUNK)] * 2 + [of_values] + [(CHUNK * 2,)] * 17 + [of_keys] * 2 * keys
    stages, written = stages_and_writers(results[0], blocks[2:6], own, of_keys)
    if written:
        blocks[10:12] = [of_keys, of_keys]
    described = [descriptor_of(x, *b) if b else x for x, b in zip(tensors, blocks)]
    launch = Launch(
        decaying_gradients,
        (min(groups, multiprocessors(v)),),
        (
            *described, sizes.length, sizes.heads, sizes.chunks, groups, each, sizes.shared, scale, sizes.columns // TILE,
            gates.softplus, sizes.length % CHUNK == 0, written, keys, stages,
        ),
        tensors,
        num_warps=4,
        launch_pdl=True,
    )  # fmt: skip
    return lambda *arguments: launch(*flat(*arguments))


def _heads_launch(
    sizes: Sizes, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, walked: Tensor, gates: Gates, results: Any, scale: float
) -> Plan:  # fmt: skip
    """Return what `_chunks_launch` does, for chunks of one head with logarithms of decays."""
    from gluon_kernels.linear_attention.heads_backward import head_gradients

    def flat(q: Any, k: Any, v: Any, grad: Any, walked: Any, gates: Gates, skip: Any, results: Any) -> Any:  # fmt: skip
        states = (x.view(-1, sizes.width) for x in walked)
        return (q, k, v, grad, *states, gates.values, *results[:4])

    tensors = flat(q, k, v, grad, walked, gates, None, results)
    of_keys, of_values = (1, CHUNK, 1, sizes.width), (1, CHUNK, 1, TILE)
    of_states = (TILE, sizes.width)
    blocks: list[tuple[int, ...]] = [of_keys, of_keys, of_values, of_values, of_states, of_states]
    blocks += [(), (), (), of_values, ()]
    groups = sizes.chunks * sizes.heads * sizes.batch
    keys = 2
    own = [(CHUNK, CHUNK)] * 2 + [of_values] + [(CHUNK * 2,)] * 12 + [of_keys] * 2 * keys
    stages, written = stages_and_writers(results[0], blocks[2:6], own, of_keys)
    if written:
        blocks[7:9] = [of_keys, of_keys]
    described = [descriptor_of(x, *b) if b else x for x, b in zip(tensors, blocks)]
    launch = Launch(
        head_gradients,
        (min(groups, multiprocessors(v)),),
        (
            *described, sizes.length, sizes.heads, sizes.chunks, groups, sizes.shared, scale, sizes.columns // TILE,
            sizes.length % CHUNK == 0, written, keys, stages,
        ),
        tensors,
        num_warps=4,
        launch_pdl=True,
    )  # fmt: skip
    return lambda *arguments: launch(*flat(*arguments))


def decaying_backward_plan(
    grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor],
    initial: Optional[Tensor], scale: float, kept: Optional[Tensor] = None,
) -> Plan:  # fmt: skip
    """Return `run(grad, grad_state, q, k, v, gates, skip, initial, kept) -> Results`; states are [batch, heads, V, K].

    Without the states before chunks that forward `kept`, a walk computes them again while those of gradients walk back.
    """
    assert gates.values is not None
    sizes = Sizes.of(k, v, gates.values, False)
    width, columns, of_keys = k.shape[3], v.shape[3], k.shape[2]
    new = Workspace(sizes, v.dtype, v.device)
    each = heads_of_group(sizes, multiprocessors(v))
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
    back = kept is not None
    states, to_initial = new.states() if back else new.states_of_both(), new.state()

    def walked(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Any, Any, Any, Any]:
        return (None, q, grad, None) if back else (q, k, v, grad)

    operands = walked(q, k, v, grad)
    ends = (None if back else initial, last, to_initial)
    segments = segments_of(sizes, *operands, gates, ends, new, scale, back)
    walks = walk_decaying_launch(
        sizes, *operands, gates, (None, states), segments.between, ends, None, scale, False, back
    )
    results = gradients()
    states = states if kept is None else (kept, states)
    chunks = _chunks_launch(sizes, each, q, k, v, grad, states, gates, skip, results, scale)
    added = None if results[4] is None else chunks_plan(results[4])
    shared = shared_plan(results[0], results[1], (*tokens, of_keys, width), v.dtype)

    def run(
        grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor],
        initial: Optional[Tensor], kept: Optional[Tensor] = None,
    ) -> Results:  # fmt: skip
        q, k, v, grad = operands_of(sizes, q, k, v, grad)
        initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
        states, to_initial = new.states() if back else new.states_of_both(), new.state()
        operands = walked(q, k, v, grad)
        ends = (None if back else initial, last, to_initial)
        between = segments.run(*operands, gates, ends)
        walks(*operands, gates, (None, states), between, ends, None)
        states = states if kept is None else (kept, states)
        to_q, to_k, to_v, to_gates, sums = done = gradients()
        chunks(q, k, v, grad, states, gates, skip, done)
        return Results(
            *shared(to_q, to_k), to_v[..., :columns].contiguous(), to_gates,
            None if sums is None or added is None else added(sums), to_initial[..., :columns, :width].contiguous(),
        )  # fmt: skip

    return run
