"""The plans of linear attention without the delta rule on Hopper, whose walks compute all of a chunk."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from torch import Tensor

from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.linear_attention.combine import add_segments
from gluon_kernels.linear_attention.cost import FEW_SEGMENTS
from gluon_kernels.linear_attention.launches import (
    CHUNK,
    TILE,
    Sizes,
    Workspace,
    on_hopper,
    operands_of,
    padded_state,
    stages_of,
)
from gluon_kernels.plans import Launch, registers

__all__ = [
    "SHARED_REGISTERS",
    "Gates",
    "decaying_plan",
    "fits",
    "segments_of",
    "walk_decaying_launch",
]

Plan = Callable[..., Any]
SHARED_REGISTERS = 128  # of a thread, so that two programs share a processor
ELEMENTS = 512  # of a state, of a program that adds up segments
AHEAD = 8  # segments whose loads are under way at a time


class Gates(NamedTuple):
    """The gates of a call, contiguous [batch, length, heads]: logarithms of decays, or steps and what makes decays and rates of them."""

    values: Tensor
    slopes: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    softplus: bool = False


def walk_decaying_launch(
    sizes: Sizes, q: Optional[Tensor], k: Tensor, v: Tensor, grad: Optional[Tensor], gates: Gates, outs: Any, between: Any,
    ends: Any, skip: Optional[Tensor], scale: float, mapped: bool, back: bool = False,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, v, grad, gates, outs, between, ends, skip)`.

    Args:
        grad: the gradients of the result, by which gradients of states walk back at the same time, or None.
        outs: the result and the states before chunks, or None.
        between: what segments take in, and their decays, or the states before segments, and None; with `mapped` decays are stored, and what segments take in as final states.
        ends: the states before a walk and before one back, and the final ones.
        back: the walk is one back, over queries in place of `k` and gradients of results in place of `v`.
    """
    from gluon_kernels.linear_attention import hopper_decay

    width, groups = sizes.width, sizes.groups

    both = grad is not None
    way = hopper_decay.BACK if back else hopper_decay.BOTH if both else hopper_decay.ON

    def flat(q: Any, k: Any, v: Any, grad: Any, gates: Gates, outs: Any, between: Any, ends: Any, skip: Any) -> Any:  # fmt: skip
        states = None if outs[1] is None else outs[1].view(-1, width)
        return (q, k, v, grad, *gates[:3], outs[0], states, *between, *ends, skip)

    tensors = flat(q, k, v, grad, gates, outs, between, ends, skip)
    of_keys, of_values = (1, CHUNK, 1, width), (1, CHUNK, 1, TILE * groups)
    blocks = [
        of_keys, of_keys, of_values, of_values, (), (), (), (1, CHUNK, 1, TILE), (TILE, width),
    ]  # fmt: skip
    described = [
        descriptor_of(x, *b) if b and x is not None else x for x, b in zip(tensors, blocks)
    ]
    segments = sizes.segments - 1 if mapped else sizes.segments
    weighing = outs[0] is not None
    read = [of_keys, of_values, *[of_keys] * weighing]
    stored = [b for x, b in zip(tensors[7:9], blocks[7:]) if x is not None]
    own: list[tuple[int, ...]] = [(CHUNK, CHUNK)] * 2 if weighing else []
    own += [(4 * CHUNK,)] * 4
    # Two programs share a processor, unless their warps for P take its registers.
    stages = stages_of(read, stored * groups + own, 1 if weighing else 2)
    options: dict[str, Any] = {"launch_pdl": True} if between[0] is not None else {}
    if not weighing and groups == 1:
        options.update(registers(SHARED_REGISTERS))
    launch: Plan = Launch(
        hopper_decay.recur_decaying,
        (sizes.columns // (TILE * groups), sizes.heads * segments, sizes.batch * (2 if both else 1)),
        (
            *described, *tensors[9:], sizes.length, sizes.heads, sizes.chunks, sizes.per_segment, sizes.columns, scale,
            sizes.shared, stages, groups, mapped, gates.softplus, way.value,
        ),
        tensors,
        num_warps=4,
        **options,
    )  # fmt: skip
    return lambda *arguments: launch(*flat(*arguments))


def fits(k: Tensor) -> bool:
    """Return True if the walks of this file take the keys, on the target of launches."""
    return on_hopper(k.shape[3])


class Segments(NamedTuple):
    """The walks of a call in front of segments: `run(q, k, v, grad, gates, ends) -> between`, None with one segment."""

    between: Any
    run: Plan


def segments_of(
    sizes: Sizes, q: Optional[Tensor], k: Tensor, v: Tensor, grad: Optional[Tensor], gates: Gates, ends: Any, new: Workspace,
    scale: float = 1.0, back: bool = False,
) -> Segments:  # fmt: skip
    """Return the launches of what segments take in, or, where there are many segments, of the states before them."""
    nothing = (None, None)
    if sizes.segments == 1:
        return Segments(nothing, lambda q, k, v, grad, gates, ends: nothing)
    takers = (new.fresh, new.totals) if grad is None else (new.fresh_of_both, new.totals_of_both)

    def run(q: Any, k: Tensor, v: Tensor, grad: Any, gates: Gates, ends: Any) -> Any:
        fresh, totals = takers[0](), takers[1]()
        walk(q, k, v, grad, gates, nothing, (None, totals), (None, None, fresh), None)
        if add is None:
            return fresh, totals
        add(fresh, totals, *ends[:2])
        return fresh, None

    add: Optional[Plan] = None
    fresh, totals = takers[0](), takers[1]()
    walk = walk_decaying_launch(
        sizes, q, k, v, grad, gates, nothing, (None, totals), (None, None, fresh), None, scale, True, back
    )  # fmt: skip
    if sizes.segments <= FEW_SEGMENTS:
        return Segments((fresh, totals), run)
    tensors = (fresh, totals, *ends[:2])
    size = sizes.columns * sizes.width
    heads = sizes.batch * sizes.heads
    all_heads = heads * (1 if grad is None else 2)
    add = Launch(
        add_segments,
        (size // ELEMENTS, all_heads),
        (*tensors, sizes.segments - 1, 0 if back else heads, size, ELEMENTS, AHEAD),
        tensors,
        num_warps=4,
        launch_pdl=True,
    )
    return Segments((fresh, None), run)


def decaying_plan(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor], initial: Optional[Tensor], scale: float,
    keep: bool = False,
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, gates, skip, initial) -> (out, final state, states before chunks)`; states are [batch, heads, V, K].

    Args:
        keep: gradients will be wanted; else the states before chunks are None.
    """
    sizes = Sizes.of(k, v, gates.values, False, waves=2)
    width, columns = k.shape[3], v.shape[3]
    exact = (width, columns) == (sizes.width, sizes.columns)
    new = Workspace(sizes, v.dtype, v.device)
    q, k, v = operands_of(sizes, q, k, v)
    initial = padded_state(initial, sizes)
    out, final, states = new.values(), new.state(), new.states() if keep else None
    ends = (initial, None, final)
    segments = segments_of(sizes, None, k, v, None, gates, ends, new)
    walk = walk_decaying_launch(
        sizes, q, k, v, None, gates, (out, states), segments.between, ends, skip, scale, False
    )

    def run(
        q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor], initial: Optional[Tensor]
    ) -> tuple[Tensor, Tensor, Optional[Tensor]]:  # fmt: skip
        q, k, v = operands_of(sizes, q, k, v)
        initial = padded_state(initial, sizes)
        out, final, states = new.values(), new.state(), new.states() if keep else None
        ends = (initial, None, final)
        between = segments.run(None, k, v, None, gates, ends)
        walk(q, k, v, None, gates, (out, states), between, ends, skip)
        if not exact:
            out, final = out[..., :columns].contiguous(), final[..., :columns, :width].contiguous()
        return out, final, states

    return run
