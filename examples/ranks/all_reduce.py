"""Sums over ranks, in one step or two.

One shot: every rank reads all copies and adds them up. Two shots: every rank adds up its share of the
elements and writes the sums to all. The first takes one trip through the links, and with more than
two ranks moves more.

`Inbox` is the one shot for a tensor in ordinary memory: each rank copies its own into one of two
alternating buffers. A rank in a launch has left the one before, so no rank has to wait at the end
until the others have read.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def add_up(copies, offsets, mask, layout: gl.constexpr):
    total = gl.zeros(offsets.shape, gl.float32, layout)
    for rank in gl.static_range(len(copies)):
        total += gl.load(copies[rank] + offsets, mask=mask, other=0.0).to(gl.float32)
    return total


@gluon.jit
def one_shot(x, out, n, BLOCK: gl.constexpr):
    channel = gl.program_id(0)
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], out.dtype.element_ty)
    gl.portable.rank_barrier(x.signals, x.rank, channel)
    for start in range(channel * BLOCK, n, gl.num_programs(0) * BLOCK):
        offsets = start + gl.arange(0, BLOCK, layout=layout)
        total = add_up(x.peers, offsets, offsets < n, layout)
        gl.store(out + offsets, total.to(out.dtype.element_ty), mask=offsets < n)
    # The others may still read what this rank writes next.
    gl.portable.rank_barrier(x.signals, x.rank, channel)


@gluon.jit
def two_shot(x, n, share, BLOCK: gl.constexpr):
    channel = gl.program_id(0)
    element: gl.constexpr = x.peers[0].dtype.element_ty
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], element)
    gl.portable.rank_barrier(x.signals, x.rank, channel)
    first = x.rank * share
    end = gl.minimum(first + share, n)
    for start in range(first + channel * BLOCK, end, gl.num_programs(0) * BLOCK):
        offsets = start + gl.arange(0, BLOCK, layout=layout)
        total = add_up(x.peers, offsets, offsets < end, layout).to(element)
        for rank in gl.static_range(len(x.peers)):
            gl.store(x.peers[rank] + offsets, total, mask=offsets < end)
    # All shares have come.
    gl.portable.rank_barrier(x.signals, x.rank, channel)


@gluon.jit
def through_inbox(x, inbox, out, n, BLOCK: gl.constexpr):
    channel = gl.program_id(0)
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], out.dtype.element_ty)
    mine = gl.portable.peer(inbox.peers, inbox.rank)
    for start in range(channel * BLOCK, n, gl.num_programs(0) * BLOCK):
        offsets = start + gl.arange(0, BLOCK, layout=layout)
        gl.store(mine + offsets, gl.load(x + offsets, mask=offsets < n), mask=offsets < n)
    gl.portable.rank_barrier(inbox.signals, inbox.rank, channel)
    for start in range(channel * BLOCK, n, gl.num_programs(0) * BLOCK):
        offsets = start + gl.arange(0, BLOCK, layout=layout)
        total = add_up(inbox.peers, offsets, offsets < n, layout)
        gl.store(out + offsets, total.to(out.dtype.element_ty), mask=offsets < n)


def programs(x, n, block, most=64):
    """Return one for each block of elements, as far as there are channels."""
    return min(gluon.cdiv(n, block), most, x.channels)


def all_reduce_one_shot(x, out, n, block=512, num_warps=4, most=64):
    """`out` = the sum of all ranks' `x`, a symmetric tensor of `n` elements."""
    one_shot[(programs(x, n, block, most),)](x, out, n, BLOCK=block, num_warps=num_warps)


def share_of(n, world, block):
    """Elements of each rank's share: a multiple of 16, so that shares begin where vectors do."""
    return gluon.cdiv(gluon.cdiv(n, world), 16) * 16


def all_reduce_two_shot(x, n, block=512, num_warps=4, most=64):
    """`x`, a symmetric tensor of `n` elements, = the sum of all ranks'."""
    share = share_of(n, x.world, block)
    two_shot[(programs(x, share, block, most),)](x, n, share, BLOCK=block, num_warps=num_warps)


class Inbox:
    """Sums of up to `most` elements of ordinary tensors."""

    def __init__(self, group, most, dtype):
        self.buffers = [group.empty(most, dtype) for _ in range(2)]
        self.turn = 0

    def all_reduce(self, x, out, n, block=512, num_warps=4):
        """`out` = the sum of all ranks' `x`, of `n` elements."""
        inbox, self.turn = self.buffers[self.turn], 1 - self.turn
        grid = (programs(inbox, n, block),)
        through_inbox[grid](x, inbox, out, n, BLOCK=block, num_warps=num_warps)
