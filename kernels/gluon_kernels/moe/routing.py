"""The lists of a mixture of experts, on any device: rows in the order of their experts, and the sum of each token's results."""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def route(experts, order, places, ends, pairs, BLOCK: gl.constexpr):
    """List (token, choice) pairs by expert, each expert's in their order. The grid is [experts].

    order[i] is the pair at place i, places[pair] its place, ends[e] the place behind the last pair of expert e. A program counts the
    pairs of lower experts and lists those of its own, so that programs do not wait for each other. Pairs of no expert, such as -1, have
    the place -1.
    """
    layout: gl.constexpr = gl.BlockedLayout(
        [BLOCK // (gl.num_warps() * gl.target.warp_size())], [gl.target.warp_size()], [gl.num_warps()], [0]
    )  # fmt: skip
    expert = gl.program_id(0)
    inside = gl.arange(0, BLOCK, layout)
    lower = gl.zeros([BLOCK], gl.int32, layout)
    for start in range(0, pairs, BLOCK):
        ids = gl.load(experts + start + inside, mask=start + inside < pairs, other=-1).to(gl.int32)
        lower += ((ids >= 0) & (ids < expert)).to(gl.int32)
    place = gl.sum(lower, 0)
    for start in range(0, pairs, BLOCK):
        ids = gl.load(experts + start + inside, mask=start + inside < pairs, other=-1).to(gl.int32)
        own = (ids == expert).to(gl.int32)
        destination = place + gl.associative_scan(own, 0, add) - own
        gl.store(order + destination, start + inside, mask=own > 0)
        gl.store(places + start + inside, destination, mask=own > 0)
        place += gl.sum(own, 0)
        if expert == 0:
            none = (ids < 0) | (ids >= gl.num_programs(0))
            gl.store(places + start + inside, own - 1, mask=none & (start + inside < pairs))
    gl.store(ends + expert, place)


@gluon.jit
def combine(rows, places, weights, out, tokens, width, CHOICES: gl.constexpr, BLOCK: gl.constexpr, VECTOR: gl.constexpr):  # fmt: skip
    """Store, for each token, the sum of its choices' rows times their weights. The grid is [columns / BLOCK, tokens]."""
    layout: gl.constexpr = gl.BlockedLayout(
        [VECTOR], [gl.target.warp_size()], [gl.num_warps()], [0]
    )
    token = gl.program_id(1)
    width = width // VECTOR * VECTOR  # the compiler sees the multiples
    columns = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    total = gl.zeros([BLOCK], gl.float32, layout)
    for choice in gl.static_range(CHOICES):
        pair = token * CHOICES + choice
        place = gl.load(places + pair)
        weight = gl.load(weights + pair).to(gl.float32)
        row = rows + gl.maximum(place, 0).to(gl.int64) * width
        value = gl.load(row + columns, mask=(columns < width) & (place >= 0), other=0.0)
        total += value.to(gl.float32) * weight
    to = out + token.to(gl.int64) * width + columns
    gl.store(to, total.to(out.dtype.element_ty), mask=columns < width)
