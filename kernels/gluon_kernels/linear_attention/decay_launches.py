"""The plans of linear attention without the delta rule on Hopper, whose walks compute all of a chunk."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from torch import Tensor

from gluon_kernels.attention.launches import descriptor_of
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


class Gates(NamedTuple):
    """The gates of a call, contiguous [batch, length, heads]: logarithms of decays, or steps and what makes decays and rates of them."""

    values: Tensor
    slopes: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    softplus: bool = False


def walk_decaying_launch(
    sizes: Sizes, q: Optional[Tensor], k: Tensor, v: Tensor, gates: Gates, outs: Any, between: Any, initial: Optional[Tensor],
    final: Optional[Tensor], skip: Optional[Tensor], scale: float, mapped: bool, back: bool = False,
) -> Plan:  # fmt: skip
    """Return `launch(q, k, v, gates, outs, between, initial, final, skip)`.

    Args:
        outs: the result and the states before chunks, or None.
        between: what segments take in, and their decays; with `mapped` they are stored, the first as `final`.
        back: gradients of states walk back, `k` are queries and `v` gradients of the result.
    """
    from gluon_kernels.linear_attention import hopper_decay

    width, groups = sizes.width, sizes.groups

    def flat(q: Any, k: Any, v: Any, gates: Gates, outs: Any, between: Any, *rest: Any) -> Any:
        states = None if outs[1] is None else outs[1].view(-1, width)
        return (q, k, v, *gates[:3], outs[0], states, *between, *rest)

    tensors = flat(q, k, v, gates, outs, between, initial, final, skip)
    of_keys = (1, CHUNK, 1, width)
    blocks = [
        of_keys, of_keys, (1, CHUNK, 1, TILE * groups), (), (), (), (1, CHUNK, 1, TILE), (TILE, width),
    ]  # fmt: skip
    described = [
        descriptor_of(x, *b) if b and x is not None else x for x, b in zip(tensors, blocks)
    ]
    segments = sizes.segments - 1 if mapped else sizes.segments
    read = [b for x, b in zip(tensors[:3], blocks) if x is not None]
    stored = [b for x, b in zip(tensors[6:8], blocks[6:]) if x is not None]
    own: list[tuple[int, ...]] = [(CHUNK, CHUNK)] * 2 if q is not None else []
    own += [(4 * CHUNK,)] * 4
    # Two programs share a processor, unless their warps for P take its registers.
    stages = stages_of(read, stored * groups + own, 2 if q is None else 1)
    # A walk back needs nothing of the one before, unless that has stored what segments take in.
    apart = back and (mapped or between[0] is None)
    options: dict[str, Any] = {"launch_pdl": True} if apart else {}
    if q is None and groups == 1:
        options.update(registers(SHARED_REGISTERS))
    launch: Plan = Launch(
        hopper_decay.recur_decaying,
        (sizes.columns // (TILE * groups), sizes.heads * segments, sizes.batch),
        (
            *described, *tensors[8:], sizes.length, sizes.heads, sizes.chunks, sizes.per_segment, sizes.columns, scale,
            sizes.shared, stages, groups, mapped, gates.softplus, back,
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
    """The walks of a call: `run(k, v, gates) -> between` for what segments take in, None with one segment."""

    between: Any
    run: Plan


def segments_of(
    sizes: Sizes, k: Tensor, v: Tensor, gates: Gates, new: Workspace, scale: float = 1.0, back: bool = False
) -> Segments:  # fmt: skip
    """Return the launch of what segments take in."""
    if sizes.segments == 1:
        nothing = (None, None)
        return Segments(nothing, lambda k, v, gates: nothing)
    between = (new.fresh(), new.totals())
    walk = walk_decaying_launch(
        sizes, None, k, v, gates, (None, None), (None, between[1]), None, between[0], None, scale, True, back
    )  # fmt: skip

    def run(k: Tensor, v: Tensor, gates: Gates) -> Any:
        fresh, totals = new.fresh(), new.totals()
        walk(None, k, v, gates, (None, None), (None, totals), None, fresh, None)
        return fresh, totals

    return Segments(between, run)


def decaying_plan(
    q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor], initial: Optional[Tensor], scale: float
) -> Plan:  # fmt: skip
    """Return `run(q, k, v, gates, skip, initial) -> (out, final state)`; states are [batch, heads, V, K], float32."""
    sizes = Sizes.of(k, v, gates.values, False)
    width, columns = k.shape[3], v.shape[3]
    exact = (width, columns) == (sizes.width, sizes.columns)
    new = Workspace(sizes, v.dtype, v.device)
    q, k, v = operands_of(sizes, q, k, v)
    initial = padded_state(initial, sizes)
    out, final = new.values(), new.state()
    segments = segments_of(sizes, k, v, gates, new)
    walk = walk_decaying_launch(
        sizes, q, k, v, gates, (out, None), segments.between, initial, final, skip, scale, False
    )  # fmt: skip

    def run(
        q: Tensor, k: Tensor, v: Tensor, gates: Gates, skip: Optional[Tensor], initial: Optional[Tensor]
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v = operands_of(sizes, q, k, v)
        initial = padded_state(initial, sizes)
        out, final = new.values(), new.state()
        between = segments.run(k, v, gates)
        walk(q, k, v, gates, (out, None), between, initial, final, skip)
        if not exact:
            out, final = out[..., :columns].contiguous(), final[..., :columns, :width].contiguous()
        return out, final

    return run
