"""Mixtures of experts: tokens travel to the ranks of their experts, and the results back.

Each rank holds `experts` of all experts and a part of the tokens; a token goes to several experts. To
dispatch, a rank stores each row straight into the memory of the expert's rank, at a place that it has
for rows from there, and counts. To combine, it reads the experts' results in place.

Buffers need not take turns: who combines has its rows back before it dispatches again, and a rank
waits for the rows of all before its experts write.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def dispatch(
    x, expert, place, totals, inbox, labels, sizes, counters, rank, tokens, choices, experts, capacity,
    H: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    world: gl.constexpr = len(inbox)
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], x.dtype.element_ty)
    columns = gl.arange(0, BLOCK, layout=layout)
    program = gl.program_id(0)
    for slot in range(program, tokens * choices, gl.num_programs(0)):
        chosen = gl.load(expert + slot)
        to = chosen // experts
        row = rank * capacity + gl.load(place + slot)
        gl.store(gl.portable.peer(labels, to) + row, chosen % experts)
        there = gl.portable.peer(inbox, to) + row.to(gl.int64) * H
        here = x + (slot // choices).to(gl.int64) * H
        for start in range(0, H, BLOCK):
            offsets = start + columns
            gl.store(there + offsets, gl.load(here + offsets, mask=offsets < H), mask=offsets < H)
    if program == 0:
        for other in gl.static_range(world):
            gl.store(sizes[other] + rank, gl.load(totals + other))
    for other in gl.static_range(world):
        gl.portable.counter_add(counters[other] + rank, 1)


@gluon.jit(do_not_specialize=["least"])
def received(counters, rank, least):
    mine = gl.portable.peer(counters, rank)
    for source in gl.static_range(len(counters)):
        gl.portable.counter_wait(mine + source, least)


@gluon.jit
def combine(
    y, expert, place, weight, outbox, signals, rank, tokens, experts, capacity,
    choices: gl.constexpr, H: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], y.dtype.element_ty)
    columns = gl.arange(0, BLOCK, layout=layout)
    gl.portable.rank_barrier(signals, rank, gl.program_id(0))
    for token in range(gl.program_id(0), tokens, gl.num_programs(0)):
        for start in range(0, H, BLOCK):
            offsets = start + columns
            total = gl.zeros([BLOCK], gl.float32, layout)
            for choice in gl.static_range(choices):
                slot = token * choices + choice
                there = gl.portable.peer(outbox, gl.load(expert + slot) // experts)
                row = rank * capacity + gl.load(place + slot)
                value = gl.load(there + row.to(gl.int64) * H + offsets, mask=offsets < H, other=0.0)
                total += value.to(gl.float32) * gl.load(weight + slot)
            out = y + gl.cast(token, gl.int64) * H
            gl.store(out + offsets, total.to(y.dtype.element_ty), mask=offsets < H)


class Experts:
    """Dispatch and combine for ranks that hold `experts` each.

    Args:
        tokens, choices: each rank's tokens, and how many experts each goes to.
        H: elements of a token.
        dtype, index: torch.bfloat16 and torch.int32, or another dtype of the tokens.
    """

    def __init__(self, group, experts, tokens, choices, H, dtype, index, programs=256):
        self.group, self.experts, self.tokens, self.choices = group, experts, tokens, choices
        self.H, self.capacity = H, tokens * choices
        rows = group.world * self.capacity
        self.inbox, self.outbox = group.empty((rows, H), dtype), group.empty((rows, H), dtype)
        self.labels = group.empty(rows, index)
        self.sizes, self.counters = group.zeros(group.world, index), group.zeros(group.world, index)
        self.programs = min(programs, self.outbox.channels, tokens)
        self.calls = 0

    def places(self, expert):
        """Return for each slot its place among those to the same rank, and the number to each rank."""
        import torch

        to = (expert // self.experts)[:, None] == torch.arange(
            self.group.world, device=expert.device
        )
        place = (to.cumsum(0) * to).sum(1) - 1
        return place.to(expert.dtype), to.sum(0).to(expert.dtype)

    def dispatch(self, x, expert):
        """Send the rows of `x`, (tokens, H); `expert` holds the numbers of (tokens * choices) experts.

        Returns the places, for `combine`. Arriving rows are in `inbox.local`: from rank r,
        `sizes.local[r]` rows from `r * capacity` on, for the experts of this rank in `labels.local`.
        """
        place, totals = self.places(expert)
        self.calls += 1
        dispatch[(self.programs,)](
            x, expert, place, totals, self.inbox.peers, self.labels.peers, self.sizes.peers,
            self.counters.peers, self.group.rank, self.tokens, self.choices, self.experts,
            self.capacity, H=self.H, BLOCK=self.block(8192), num_warps=8,
        )  # fmt: skip
        received[(1,)](
            self.counters.peers, self.group.rank, self.calls * self.programs, num_warps=1
        )
        return place

    def combine(self, y, expert, place, weight):
        """`y`, (tokens, H), = the weighted sums of the rows in all ranks' `outbox`.

        Args:
            weight: float32, (tokens * choices).
        """
        combine[(self.programs,)](
            y, expert, place, weight, self.outbox.peers, self.outbox.signals, self.group.rank,
            self.tokens, self.experts, self.capacity, choices=self.choices, H=self.H,
            BLOCK=self.block(2048), num_warps=8,
        )  # fmt: skip

    def block(self, most):
        return min(most, gluon.next_power_of_2(self.H))
