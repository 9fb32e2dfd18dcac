"""The plans of the gradients of linear attention: from states that forward kept, or that are computed again, those of the result walk back."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.linear_attention import channels_backward, portable_backward
from gluon_kernels.linear_attention.launches import (
    CHUNK,
    TILE,
    Kept,
    Prepared,
    Sizes,
    Workspace,
    combine_launch,
    flagged_groups,
    operands_of,
    padded_state,
    power,
    prepare_launch,
    stages_of,
    strides_of,
    walk_launch,
)
from gluon_kernels.linear_attention.shared_heads import (
    heads_of_group,
    shared_plan,
    stages_and_writers,
)
from gluon_kernels.plans import (
    Launch,
    allocator,
    current_target,
    least_depth,
    multiprocessors,
    registers,
)

__all__ = ["backward_plan"]

Plan = Callable[..., Any]
AMPLE = 128 * 1024  # bytes of shared memory of a block that keeps queries and keys there


def _walk_back_launch(
    sizes: Sizes, prepared: Prepared, grad: Tensor, outs: Any, initial: Optional[Tensor],
    final: Optional[Tensor], scale: float, apart: bool,
) -> Plan:  # fmt: skip
    """Return `launch(prepared, grad, outs, initial, final)`; `outs` are dY, and G after chunks.

    Args:
        apart: the launch is behind a walk over states, which has waited for the results of `prepare`, reads nothing that it stores, and stores nothing
            that it reads or stores.
    """
    if sizes.hopper:
        return _hopper_launch(sizes, prepared, grad, outs, initial, final, scale, apart)
    tile = TILE if current_target().has("nvidia.cp_async") else TILE // 2
    q, k, decays, weights, _, unscaled, seen, _ = prepared
    assert q is not None
    tensors = (q, k, grad, decays, weights, unscaled, seen, *outs, initial, final)
    launch: Plan = Launch(
        portable_backward.recur_back,
        (-(-sizes.columns // tile), sizes.heads * sizes.segments, sizes.batch),
        (
            *tensors, tuple(strides_of(x) for x in (q, k, grad)), sizes.length, sizes.heads, sizes.chunks,
            sizes.per_segment, scale, (sizes.width, sizes.columns), power(sizes.width), CHUNK, tile, sizes.walked,
            sizes.delta,
        ),
        tensors,
        num_warps=8 if sizes.channels and tile * sizes.width > TILE * 64 else 4,
    )  # fmt: skip

    def run(prepared: Prepared, grad: Tensor, outs: Any, initial: Any, final: Any) -> None:
        q, k, decays, weights, _, unscaled, seen, _ = prepared
        launch(q, k, grad, decays, weights, unscaled, seen, *outs, initial, final)

    return run


def _hopper_launch(
    sizes: Sizes, prepared: Prepared, grad: Tensor, outs: Any, initial: Optional[Tensor],
    final: Optional[Tensor], scale: float, apart: bool,
) -> Plan:  # fmt: skip
    from gluon_kernels.linear_attention import hopper_backward

    width, groups = sizes.width, sizes.groups

    def flat(prepared: Prepared, grad: Tensor, changes: Any, states: Any) -> Any:
        q, k, decays, weights, _, unscaled, seen, _ = prepared
        squares = [None if x is None else x.view(-1, CHUNK) for x in (weights, unscaled)]
        columns = None if states is None else states.view(-1, width)
        return (q, k, grad, decays.view(-1), *squares, seen, changes, columns)

    tensors = flat(prepared, grad, *outs)
    of_keys, of_values = (1, CHUNK, 1, width), (1, CHUNK, 1, TILE)
    blocks = (
        of_keys, of_keys, (1, CHUNK, 1, TILE * groups), (sizes.decays,), (CHUNK, CHUNK), (CHUNK, CHUNK), of_keys,
        of_values, (TILE, width),
    )  # fmt: skip
    described = [None if x is None else descriptor_of(x, *b) for x, b in zip(tensors, blocks)]
    present = [b for x, b in zip(tensors, blocks) if x is not None]
    read, stored = (present[:-2], present[-2:] * groups) if outs[0] is not None else (present, [])
    stages = stages_of(read, stored)
    launch: Plan = Launch(
        hopper_backward.recur_back,
        (sizes.columns // (TILE * groups), sizes.heads * sizes.segments, sizes.batch),
        (
            *described, initial, final, sizes.heads, sizes.chunks, sizes.per_segment, sizes.columns, scale, sizes.walked,
            stages, groups,
        ),
        (*tensors, initial, final),
        num_warps=4,
        **({"launch_pdl": True} if apart else {}),
    )  # fmt: skip

    def run(prepared: Prepared, grad: Tensor, outs: Any, initial: Any, final: Any) -> None:
        launch(*flat(prepared, grad, *outs), initial, final)

    return run


def _channels_launch(
    sizes: Sizes, q: Tensor, k: Tensor, g: Tensor, v: Tensor, grad: Tensor, walked: Any, results: Any,
    flags: Optional[Tensor], scale: float,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, g, v, grad, walked, results, flags)` where gates have channels."""
    target = current_target()
    ample = target.has("nvidia.cp_async") and target.limits.shared_memory >= AMPLE
    grid, covering = (sizes.chunks, sizes.heads, sizes.batch), power(sizes.width)
    tensors = (q, k, g, v, grad, *walked, *results)
    strides = tuple(strides_of(x) for x in (q, k, v, grad, g))
    widths = (sizes.width, sizes.columns, k.shape[3], g.shape[3])
    constants = (covering, CHUNK, TILE if ample else least_depth(), sizes.shared, ample)
    warps = 8 if covering < 128 or not ample else 16
    bound = registers(255 if warps == 8 else 128)  # see `launches`: the assembler of CUDA 12.9
    if flags is None:
        launch: Plan = Launch(
            channels_backward.channel_gradients,
            grid,
            (*tensors, strides, sizes.length, sizes.heads, scale, widths, *constants),
            tensors,
            num_warps=warps,
            **bound,
        )
        return lambda q, k, g, v, grad, walked, results, flags: launch(
            q, k, g, v, grad, *walked, *results
        )
    from gluon_kernels.linear_attention.channels_gentle_backward import gentle_gradients

    steps = (*strides, sizes.heads * sizes.width)
    gentle = Launch(
        gentle_gradients,
        grid,
        (
            *tensors, steps, sizes.length, sizes.heads, scale, sizes.columns, sizes.width, CHUNK, TILE, sizes.shared,
            sizes.length % CHUNK == 0,
        ),
        tensors,
        num_warps=8,
    )  # fmt: skip
    total, each = flagged_groups(sizes, k)
    rest = Launch(
        channels_backward.gradients_flagged,
        (-(-total // each),),
        (
            *tensors, flags, strides, sizes.length, sizes.heads, sizes.chunks, scale, widths, total, *constants, each,
        ),
        (*tensors, flags),
        num_warps=warps,
        **bound,
    )  # fmt: skip

    def run(q: Any, k: Any, g: Any, v: Any, grad: Any, walked: Any, results: Any, flags: Any) -> None:  # fmt: skip
        tensors = (q, k, g, v, grad, *walked, *results)
        gentle(*tensors)
        rest(*tensors, flags)

    return run


def _tokens_launch(sizes: Sizes, each: int, tensors: Any, scale: float) -> Plan:
    """Return the launch of `_chunk_launch` where the kernels for Hopper take the width of keys."""
    from gluon_kernels.linear_attention.rules_backward import rule_gradients
    from gluon_kernels.linear_attention.tokens_backward import token_gradients

    def flat(q: Any, k: Any, v: Any, grad: Any, news: Any, changes: Any, states: Any, to_states: Any, decays: Any, *results: Any) -> Any:  # fmt: skip
        of_states = (x.view(-1, sizes.width) for x in (states, to_states))
        return (q, k, v, grad, news, changes, *of_states, decays.view(-1), *results)

    tensors = flat(*tensors)
    of_keys, of_values = (1, CHUNK, 1, sizes.width), (1, CHUNK, 1, TILE)
    blocks: list[tuple[int, ...]] = [of_keys] * 2 + [of_values] * 4 + [(TILE, sizes.width)] * 2
    blocks += [(4 * CHUNK,), (), (), of_values, (), ()]
    groups = sizes.chunks * (sizes.heads // each) * sizes.batch
    keys, pairs = 2, 2 if sizes.width <= 64 else 1
    own: list[tuple[int, ...]] = [of_keys] * 2 * keys + [of_values]
    own += [(CHUNK, CHUNK)] * 2 * pairs + [(4 * CHUNK,)] * 4 + [(2 * CHUNK,)] * 11
    stages, written = stages_and_writers(tensors[9], blocks[2:8], own, of_keys)
    alone = each == 1
    if written and alone:
        blocks[9:11] = [of_keys, of_keys]
    described = [descriptor_of(x, *b) if b else x for x, b in zip(tensors, blocks)]
    sizes_of = (sizes.length, sizes.heads, sizes.chunks, groups)
    constants = (sizes.columns // TILE, sizes.length % CHUNK == 0)
    if alone:
        constants += (written,)
    else:
        sizes_of += (each,)
    launch = Launch(
        rule_gradients if alone else token_gradients,
        (min(groups, multiprocessors(tensors[0])),),
        (*described, *sizes_of, sizes.shared, scale, *constants, keys, stages, pairs),
        tensors,
        num_warps=4,
        launch_pdl=True,
    )  # fmt: skip
    return lambda q, k, g, v, grad, walked, results, flags: launch(
        *flat(q, k, v, grad, *walked, *results)
    )


def _chunk_launch(
    sizes: Sizes, each: int, q: Tensor, k: Tensor, g: Tensor, v: Tensor, grad: Tensor, walked: Any, results: Any,
    flags: Optional[Tensor], scale: float,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, g, v, grad, walked, results, flags)`; `walked` are N, dY, S, G, and the decays."""
    target = current_target()
    ample = target.has("nvidia.cp_async") and target.limits.shared_memory >= AMPLE
    columns = TILE if ample else least_depth()
    grid, covering = (sizes.chunks, sizes.heads, sizes.batch), power(sizes.width)
    if sizes.channels:
        return _channels_launch(sizes, q, k, g, v, grad, walked, results, flags, scale)
    tensors = (q, k, v, grad, *walked, *results)
    if sizes.hopper:
        return _tokens_launch(sizes, each, tensors, scale)
    launch = Launch(
        portable_backward.chunk_gradients,
        grid,
        (
            *tensors, tuple(strides_of(x) for x in tensors[:4]), sizes.length, sizes.heads, scale,
            (sizes.width, sizes.columns), covering, CHUNK, columns, sizes.shared, sizes.delta,
        ),
        tensors,
        num_warps=8,
    )  # fmt: skip
    return lambda q, k, g, v, grad, walked, results, flags: launch(q, k, v, grad, *walked, *results)


class _Gradients:
    """Allocators of the results, and the way to their shapes."""

    def __init__(self, sizes: Sizes, each: int, q: Tensor, v: Tensor, g: Tensor):
        self._width, self._columns = q.shape[3], v.shape[3]
        tokens, device = (sizes.batch, sizes.length, sizes.heads), v.device
        # The heads that share keys add up in float32.
        dtype = v.dtype if sizes.shared == each else torch.float32
        parts = (sizes.batch, sizes.length, sizes.heads // each, sizes.width)
        self.keys = allocator(parts, dtype, device)
        self.values = allocator((*tokens, sizes.columns), v.dtype, device)
        self.rates = allocator(tokens, torch.float32, device)
        self.gates = allocator(tuple(g.shape), torch.float32, device)

    def of_values(self, x: Tensor) -> Tensor:
        return x[..., : self._columns].contiguous()

    def of_state(self, x: Tensor) -> Tensor:
        return x[..., : self._columns, : self._width].contiguous()


class _Operands(NamedTuple):
    """The operands of walks back and of the gradients of chunks, and what an earlier launch may still read."""

    prepared: Prepared
    news: Tensor
    states: Tensor
    maps: Optional[Tensor]
    read: Optional[Tensor] = None


def _operands(
    sizes: Sizes, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor], initial: Optional[Tensor],
    scale: float, new: Workspace, kept: Optional[Kept],
) -> tuple[_Operands, Callable[..., _Operands]]:  # fmt: skip
    """Return operands by which launches are planned, and `run(q, k, v, g, beta, initial, kept)`, which computes them if forward kept nothing."""
    if kept is not None:

        def as_kept(q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, kept: Kept) -> Any:
            return _Operands(kept.prepared(q, k), kept.news, kept.states, kept.maps)

        return as_kept(q, k, v, g, beta, initial, kept), as_kept
    prepared, prepare = prepare_launch(sizes, q, k, g, beta, scale, new, True)
    walked, walk = _states_again(sizes, prepared, v, initial, scale, new)

    def run(q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, kept: None) -> Any:
        prepared = prepare(q, k, g, beta)
        return _Operands(prepared, *walk(prepared, v, initial))

    return _Operands(prepared, *walked), run


def _states_again(
    sizes: Sizes, prepared: Prepared, v: Tensor, initial: Optional[Tensor], scale: float, new: Workspace
) -> tuple[Any, Plan]:  # fmt: skip
    """Return the walk of forward once more: `run(prepared, v, initial) -> (N, states, maps of segments, what it reads)`, and results by which launches are planned."""
    kept, decays, count = prepared.for_states(), prepared.decays, sizes.segments
    news, states = new.values(), new.states()
    outs, nothing = (None, news, states), (None, None, None)
    if count == 1:
        walk = walk_launch(sizes, kept, v, outs, initial, None, scale, 1, False)

        def run_one(prepared: Prepared, v: Tensor, initial: Optional[Tensor]) -> Any:
            news, states = new.values(), new.states()
            walk(prepared.for_states(), v, (None, news, states), initial, None)
            return news, states, None

        return (news, states, None), run_one
    maps, firsts, state = new.maps(), new.segments(), new.state()
    mapping = walk_launch(sizes, kept, v, nothing, None, maps, scale, count, True)
    join = combine_launch(sizes, maps, maps.detach(), decays, initial, firsts, state, False)
    walk = walk_launch(sizes, kept, v, outs, firsts, None, scale, count, False)

    def run(prepared: Prepared, v: Tensor, initial: Optional[Tensor]) -> Any:
        kept = prepared.for_states()
        maps, firsts, news, states = new.maps(), new.segments(), new.values(), new.states()
        mapping(kept, v, nothing, None, maps)
        join(maps, maps, prepared.decays, initial, firsts, new.state())
        walk(kept, v, (None, news, states), firsts, None)
        return news, states, maps, firsts

    return (news, states, maps), run


def backward_plan(
    grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor],
    initial: Optional[Tensor], scale: float, kept: Optional[Kept] = None,
) -> Plan:  # fmt: skip
    """Return `run(grad, grad_state, q, k, v, g, beta, initial, kept) -> (gradients of q, k, v, g, beta and initial)`.

    The gradient of `beta` is None without the delta rule. Without what forward `kept`, states are computed again.
    """
    sizes = Sizes.of(k, v, g, beta is not None)
    grouped = sizes.hopper and not sizes.channels
    each = heads_of_group(sizes, multiprocessors(v)) if grouped else 1
    new, results = Workspace(sizes, v.dtype, v.device), _Gradients(sizes, each, q, v, g)
    many, delta, of_keys = sizes.segments > 1, sizes.delta, tuple(q.shape)

    def gradients() -> tuple[Tensor, Tensor, Optional[Tensor], Tensor, Optional[Tensor]]:
        to_v, to_beta = (results.values(), results.rates()) if delta else (None, None)
        return results.keys(), results.keys(), to_v, results.gates(), to_beta

    q, k, v, grad = operands_of(sizes, q, k, v, grad)
    initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
    planned, operands = _operands(sizes, q, k, v, g, beta, initial, scale, new, kept)
    prepared, news, states, maps, _ = planned
    # Between the segments, where there are several.
    fresh, lasts = (new.segments(), new.segments()) if many else (None, None)
    changes, state_changes, state = new.values(), new.states(), new.state()
    decays, outs_back, apart = prepared.decays, (changes, state_changes), kept is None
    if many:
        mapping_back = _walk_back_launch(
            sizes, prepared, grad, (None, None), None, fresh, scale, apart
        )
        join_back = combine_launch(sizes, fresh, maps, decays, last, lasts, state, True)
        walk_back = _walk_back_launch(sizes, prepared, grad, outs_back, lasts, None, scale, False)
    else:
        walk_back = _walk_back_launch(sizes, prepared, grad, outs_back, last, state, scale, apart)
    walked = (news, changes, states, state_changes, decays)
    firsts = gradients()
    chunk = _chunk_launch(sizes, each, q, k, g, v, grad, walked, firsts, prepared.flags, scale)
    shared = shared_plan(firsts[0], firsts[1], of_keys, v.dtype)

    def run(
        grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor],
        initial: Optional[Tensor], kept: Optional[Kept] = None,
    ) -> Any:  # fmt: skip
        q, k, v, grad = operands_of(sizes, q, k, v, grad)
        initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
        # The first walk back overlaps one over states: what that reads keeps its memory.
        prepared, news, states, maps, _read = operands(q, k, v, g, beta, initial, kept)
        decays = prepared.decays
        changes, state_changes, to_initial = new.values(), new.states(), new.state()
        outs_back = (changes, state_changes)
        if many:
            fresh, lasts = new.segments(), new.segments()
            mapping_back(prepared, grad, (None, None), None, fresh)
            join_back(fresh, maps, decays, last, lasts, to_initial)
            walk_back(prepared, grad, outs_back, lasts, None)
        else:
            walk_back(prepared, grad, outs_back, last, to_initial)
        to_q, to_k, to_v, to_g, to_beta = done = gradients()
        walked = (news, changes, states, state_changes, decays)
        chunk(q, k, g, v, grad, walked, done, prepared.flags)
        return (
            *shared(to_q, to_k), results.of_values(changes if to_v is None else to_v), to_g,
            to_beta, results.of_state(to_initial),
        )  # fmt: skip

    return run
