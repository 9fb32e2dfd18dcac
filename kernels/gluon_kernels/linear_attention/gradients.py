"""The plans of the gradients of linear attention: the states are computed again, then those of the result walk back."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.linear_attention import portable_backward
from gluon_kernels.linear_attention.launches import (
    CHUNK,
    TILE,
    Sizes,
    Workspace,
    combine_launch,
    padded_state,
    power,
    prepare_launch,
    strides_of,
    walk_launch,
)
from gluon_kernels.plans import Launch, allocator, current_target

__all__ = ["backward_plan"]

Plan = Callable[..., Any]


def _walk_back_launch(
    sizes: Sizes, q: Tensor, k: Tensor, grad: Tensor, prepared: Any, outs: Any, initial: Optional[Tensor],
    final: Optional[Tensor], scale: float,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, grad, decays, weights, unscaled, changes, states, initial, final)`."""
    if sizes.hopper:
        return _hopper_launch(sizes, q, k, grad, prepared, outs, initial, final, scale)
    tile = TILE if current_target().has("nvidia.cp_async") else TILE // 2
    tensors = (q, k, grad, *prepared, *outs, initial, final)
    launch: Plan = Launch(
        portable_backward.recur_back,
        (-(-sizes.columns // tile), sizes.heads * sizes.segments, sizes.batch),
        (
            *tensors, tuple(strides_of(x) for x in (q, k, grad)), sizes.length, sizes.heads, sizes.chunks,
            sizes.per_segment, scale, (sizes.width, sizes.columns), power(sizes.width), CHUNK, tile, sizes.shared,
            sizes.delta,
        ),
        tensors,
        num_warps=4,
    )  # fmt: skip
    return launch


def _hopper_launch(
    sizes: Sizes, q: Tensor, k: Tensor, grad: Tensor, prepared: Any, outs: Any, initial: Optional[Tensor],
    final: Optional[Tensor], scale: float,
) -> Plan:  # fmt: skip
    from gluon_kernels.linear_attention import hopper_backward

    width, groups = sizes.width, sizes.groups

    def flat(decays: Tensor, weights: Tensor, unscaled: Any, changes: Any, states: Any) -> Any:
        squares = [None if x is None else x.view(-1, CHUNK) for x in (weights, unscaled)]
        return (
            decays.view(-1),
            *squares,
            changes,
            None if states is None else states.view(-1, width),
        )

    lines, weights, unscaled, changes, states = flat(*prepared, *outs)
    launch: Plan = Launch(
        hopper_backward.recur_back,
        (sizes.columns // (TILE * groups), sizes.heads * sizes.segments, sizes.batch),
        (
            descriptor_of(q, 1, CHUNK, 1, width), descriptor_of(k, 1, CHUNK, 1, width),
            descriptor_of(grad, 1, CHUNK, 1, TILE * groups), descriptor_of(lines, 4 * CHUNK),
            descriptor_of(weights, CHUNK, CHUNK), None if unscaled is None else descriptor_of(unscaled, CHUNK, CHUNK),
            None if changes is None else descriptor_of(changes, 1, CHUNK, 1, TILE),
            None if states is None else descriptor_of(states, TILE, width), initial, final, sizes.heads, sizes.chunks,
            sizes.per_segment, sizes.columns, scale, sizes.shared, 1 if groups == 2 else 2, groups,
        ),
        (q, k, grad, lines, weights, unscaled, changes, states, initial, final),
        num_warps=4,
    )  # fmt: skip

    def run(
        q: Tensor, k: Tensor, grad: Tensor, decays: Tensor, weights: Tensor, unscaled: Any, changes: Any, states: Any,
        initial: Any, final: Any,
    ) -> None:  # fmt: skip
        launch(q, k, grad, *flat(decays, weights, unscaled, changes, states), initial, final)

    return run


def _chunk_launch(sizes: Sizes, tensors: Any, scale: float) -> Launch:
    """Return `launch(q, k, v, grad, news, changes, states, state_changes, decays, gradients)`."""
    tile = TILE if current_target().has("nvidia.cp_async") else TILE // 4
    return Launch(
        portable_backward.chunk_gradients,
        (sizes.chunks, sizes.heads, sizes.batch),
        (
            *tensors, tuple(strides_of(x) for x in tensors[:4]), sizes.length, sizes.heads, scale,
            (sizes.width, sizes.columns), power(sizes.width), CHUNK, tile, sizes.shared, sizes.delta,
        ),
        tensors,
        num_warps=8,
    )  # fmt: skip


class _Gradients:
    """Allocators of the results, and the way to their shapes."""

    def __init__(self, sizes: Sizes, q: Tensor, v: Tensor):
        self._sizes, self._width, self._columns = sizes, q.shape[3], v.shape[3]
        self._of_keys, self._dtype = q.shape[2], q.dtype
        tokens, device = (sizes.batch, sizes.length, sizes.heads), v.device
        # The heads that share keys add up in float32.
        dtype = v.dtype if sizes.shared == 1 else torch.float32
        self.keys = allocator((*tokens, sizes.width), dtype, device)
        self.values = allocator((*tokens, sizes.columns), v.dtype, device)
        self.gates = allocator(tokens, torch.float32, device)

    def of_keys(self, x: Tensor) -> Tensor:
        if self._sizes.shared > 1:
            x = x.unflatten(2, (self._of_keys, self._sizes.shared)).sum(3)
        return x[..., : self._width].to(self._dtype).contiguous()

    def of_values(self, x: Tensor) -> Tensor:
        return x[..., : self._columns].contiguous()

    def of_state(self, x: Tensor) -> Tensor:
        return x[..., : self._columns, : self._width].contiguous()


def backward_plan(
    grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor],
    initial: Optional[Tensor], scale: float,
) -> Plan:  # fmt: skip
    """Return `run(grad, grad_state, q, k, v, g, beta, initial) -> (gradients of q, k, v, g, beta and initial)`.

    The gradient of `beta` is None without the delta rule.
    """
    sizes = Sizes.of(k, v, beta is not None)
    new, results = Workspace(sizes, v.dtype, v.device), _Gradients(sizes, q, v)
    many, delta = sizes.segments > 1, sizes.delta
    count = sizes.segments

    def operands(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        keys = (sizes.readable(x, sizes.width) for x in (q, k))
        return (*keys, *(sizes.readable(x, sizes.columns) for x in (v, grad)))

    def squares() -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        return new.square(), new.square() if delta else None, new.square() if delta else None

    q, k, v, grad = operands(q, k, v, grad)
    initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
    decays, (weights, inverses, unscaled) = new.decays(), squares()
    prepare = prepare_launch(sizes, q, k, g, beta, (decays, weights, inverses, unscaled), scale)
    # Between the segments, where there are several.
    between: Any = [f() if many else None for f in (new.maps, *[new.segments] * 3)]
    maps, firsts, fresh, lasts = between
    news, states, changes, state_changes, state = (
        f() for f in (new.values, new.states, new.values, new.states, new.state)
    )
    kept = (decays, None, inverses)
    if many:
        mapping = walk_launch(sizes, None, k, v, kept, (None,) * 3, None, maps, scale, count, True)
        combine = combine_launch(sizes, maps, maps.detach(), decays, initial, firsts, state, False)
        walk = walk_launch(
            sizes, None, k, v, kept, (None, news, states), firsts, None, scale, count, False
        )
        back = (decays, weights, unscaled)
        mapping_back = _walk_back_launch(sizes, q, k, grad, back, (None, None), None, fresh, scale)
        combine_back = combine_launch(sizes, fresh, maps, decays, last, lasts, state, True)
        walk_back = _walk_back_launch(
            sizes, q, k, grad, back, (changes, state_changes), lasts, None, scale
        )
    else:
        walk = walk_launch(
            sizes, None, k, v, kept, (None, news, states), initial, None, scale, 1, False
        )
        back = (decays, weights, unscaled)
        walk_back = _walk_back_launch(
            sizes, q, k, grad, back, (changes, state_changes), last, state, scale
        )
    to_q, to_k, to_g = results.keys(), results.keys(), results.gates()
    to_v, to_beta = (results.values(), results.gates()) if delta else (None, None)
    known = (q, k, v, grad, news, changes, states, state_changes, decays)
    chunk = _chunk_launch(sizes, (*known, to_q, to_k, to_v, to_g, to_beta), scale)

    def run(
        grad: Tensor, grad_state: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Optional[Tensor],
        initial: Optional[Tensor],
    ) -> Any:  # fmt: skip
        q, k, v, grad = operands(q, k, v, grad)
        initial, last = padded_state(initial, sizes), padded_state(grad_state, sizes)
        decays, (weights, inverses, unscaled) = new.decays(), squares()
        prepare(q, k, g, beta, decays, weights, inverses, unscaled)
        news, states = new.values(), new.states()
        changes, state_changes, to_initial = new.values(), new.states(), new.state()
        if many:
            maps, firsts, fresh, lasts = new.maps(), new.segments(), new.segments(), new.segments()
            mapping(None, k, v, decays, None, inverses, None, None, None, None, maps)
            combine(maps, maps, decays, initial, firsts, to_initial)
            walk(None, k, v, decays, None, inverses, None, news, states, firsts, None)
            mapping_back(q, k, grad, decays, weights, unscaled, None, None, None, fresh)
            combine_back(fresh, maps, decays, last, lasts, to_initial)
            walk_back(q, k, grad, decays, weights, unscaled, changes, state_changes, lasts, None)
        else:
            walk(None, k, v, decays, None, inverses, None, news, states, initial, None)
            walk_back(
                q, k, grad, decays, weights, unscaled, changes, state_changes, last, to_initial
            )
        to_q, to_k, to_g = results.keys(), results.keys(), results.gates()
        to_v, to_beta = (results.values(), results.gates()) if delta else (None, None)
        known = (q, k, v, grad, news, changes, states, state_changes, decays)
        chunk(*known, to_q, to_k, to_v, to_g, to_beta)
        return (
            results.of_keys(to_q), results.of_keys(to_k), results.of_values(changes if to_v is None else to_v), to_g,
            to_beta, results.of_state(to_initial),
        )  # fmt: skip

    return run
