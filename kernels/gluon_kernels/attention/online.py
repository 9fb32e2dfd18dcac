"""The online softmax of one group of four warps on Hopper, whose heads are in one part or in two.

Scores are sums of the products of all parts, and each part of the values has an accumulator of its own: heads of 96 or 192 columns are not padded
to a power of two. A step multiplies the next scores and the weighted sum of the last ones, and computes a softmax
meanwhile. The state of a group is the maximum and the sum of each row, the weights of the last tile, and the accumulators.

`rings` are those of keys and of values. `facts` are the layout of scores, those of the accumulators, the rows and the keys of a tile, True if a weighted
sum goes on during exponentials, facts of a kernel's masks, True if the queries of a group are in registers, and how many of 8 exponentials arithmetic
computes (`tiles.powers`).
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.tiles import powers, sums_of_lanes, with_sink

__all__ = [
    "accumulators",
    "add_tiles",
    "finish_tiles",
    "layouts_of",
    "matrices",
    "operands",
    "query_tile",
    "skip_tiles",
    "start_product",
    "start_sums",
    "start_tiles",
    "store_rows",
    "wait_sums",
    "writers_of",
    "zeros_of",
]


@gluon.jit
def matrix(block, ROWS: gl.constexpr):
    """Return the block of one head as a matrix."""
    return block.reshape([ROWS, block.shape[len(block.shape) - 1]])


@gluon.jit
def matrices(blocks, ROWS: gl.constexpr, PARTS: gl.constexpr):
    """Return the first blocks as matrices."""
    parts = ()
    for i in gl.static_range(PARTS):
        parts = parts + (matrix(blocks[i], ROWS),)
    return parts


@gluon.jit
def tiles_at(ring, position, ROWS: gl.constexpr, PARTS: gl.constexpr):
    """Wait for the tiles in a slot; return them as matrices."""
    blocks = ring.wait(position)
    if PARTS == 1:
        blocks = (blocks,)
    return matrices(blocks, ROWS, PARTS)


@gluon.jit
def query_tile(ring, query, PARTS: gl.constexpr, facts: gl.constexpr):
    """Wait for the queries of a tile; return their parts as matrices, in registers if `facts` say so."""
    tiles = tiles_at(ring, query, facts[2][0], PARTS)
    parts = ()
    for i in gl.static_range(PARTS):
        part = tiles[i]
        if facts[5]:
            part = part.load(gl.DotOperandLayout(0, facts[0], 2))
        parts = parts + (part,)
    return parts


@gluon.constexpr_function
def layouts_of(columns):
    """Return the layouts of the accumulators."""
    return tuple(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16]) for n in columns)


@gluon.jit
def writers_of(desc, COLUMNS: gl.constexpr):
    """Return a writer for each part of results."""
    STORED: gl.constexpr = desc.block_type.shape[len(desc.block_type.shape) - 1]
    writers = ()
    for i in gl.static_range(len(COLUMNS)):
        writers = writers + (tma_writer(desc, COLUMNS[i] // STORED, 1),)
    return writers


@gluon.jit
def start_product(a, b, nothing):
    """Start to multiply all parts of `a` with those of `b`, [rows, rows of b]."""
    pending = nothing
    for i in gl.static_range(len(a)):
        pending = warpgroup_mma(a[i], b[i].permute((1, 0)), pending, use_acc=i > 0, is_async=True)
    return pending


@gluon.jit
def operands(p, LAYOUTS: gl.constexpr):
    """Return weights as the operand of the products with each part of values; loops carry them so, in pairs of 16 bits."""
    weights = ()
    for i in gl.static_range(len(LAYOUTS)):
        weights = weights + (gl.convert_layout(p, gl.DotOperandLayout(0, LAYOUTS[i], 2)),)
    return weights


@gluon.jit
def start_sums(accs, weights, parts):
    """Start to add the weighted sum of rows to the accumulators of all parts."""
    started = ()
    for i in gl.static_range(len(accs)):
        started = started + (warpgroup_mma(weights[i], parts[i], accs[i], is_async=True),)
    return started


@gluon.jit
def wait_sums(accs):
    """Wait until the accumulators hold what was started last."""
    done = warpgroup_mma_wait(0, deps=accs)
    if len(accs) == 1:
        done = (done,)
    return done


@gluon.jit
def scaled(sums, factor, LAYOUTS: gl.constexpr):
    """Multiply the rows of each part by a factor."""
    results = ()
    for i in gl.static_range(len(LAYOUTS)):
        of_rows = gl.convert_layout(factor, gl.SliceLayout(1, LAYOUTS[i]))
        results = results + (sums[i] * of_rows[:, None],)
    return results


@gluon.jit
def zeros_of(ROWS: gl.constexpr, LAYOUTS: gl.constexpr):
    """Return zeros in the layouts of all parts."""
    parts = ()
    for i in gl.static_range(len(LAYOUTS)):
        parts = parts + (gl.zeros([ROWS, LAYOUTS[i].instr_shape[1]], gl.float32, LAYOUTS[i]),)
    return parts


@gluon.jit
def accumulators(sums):
    """Return the accumulators of the next products."""
    results = ()
    for i in gl.static_range(len(sums)):
        results = results + (warpgroup_mma_init(sums[i]),)
    return results


@gluon.jit
def skip_tiles(rings, places, stop, seen):
    """Release the tiles of keys from `seen` to before `stop`, which other groups' rows see and this one's do not; return the places and the end."""
    keys, values = rings
    value, position = places
    for _ in range(seen, stop):
        keys.wait(position)
        keys.release(position)
        values.wait(value)
        values.release(value)
        value, position = value.next(), position.next()
    return (value, position), gl.minimum(stop, seen)


@gluon.jit
def start_tiles(q, rings, position, tile, mask, scale, facts: gl.constexpr, MASK: gl.constexpr):
    """Return the state after the first tile of keys, which has a mask."""
    keys, _ = rings
    LAYOUTS: gl.constexpr = facts[1]
    nothing = gl.zeros(facts[2], gl.float32, facts[0])
    pending = start_product(q, tiles_at(keys, position, facts[2][1], len(q)), nothing)
    score = warpgroup_mma_wait(0, deps=[pending])
    keys.release(position)
    score = MASK(score, tile, mask, facts)
    # Finite even where a row sees none of these keys.
    top = gl.maximum(gl.max(score, 1) * scale, -1e30)
    p = gl.exp2(score * scale - top[:, None])
    total = sums_of_lanes(p)
    accs = accumulators(zeros_of(facts[2][0], LAYOUTS))
    return top, total, operands(p.to(keys.dtype), LAYOUTS), accs


@gluon.jit
def add_tiles(state, q, rings, places, tiles, mask, scale, facts: gl.constexpr, MASK: gl.constexpr):
    """Return the state and the places once the tiles of keys before `tiles[0]` have joined, the last one first, down to `tiles[1]`.

    Args:
        q: the parts of the queries, in registers or in shared memory.
        mask: an argument of MASK, which changes scores: `MASK(score, tile, mask, facts) -> score`.
        places: the slot whose values are not added yet, and that of the next keys.
    """
    keys, values = rings
    behind, position = places
    top, total, weights, accs = state
    LAYOUTS: gl.constexpr = facts[1]
    PARTS: gl.constexpr = len(LAYOUTS)
    nothing = gl.zeros(facts[2], gl.float32, facts[0])
    lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    for j in range(tiles[0] - tiles[1]):
        pending = start_product(q, tiles_at(keys, position, facts[2][1], len(q)), nothing)
        accs = start_sums(accs, weights, tiles_at(values, behind, facts[2][1], PARTS))
        score = warpgroup_mma_wait(PARTS, deps=[pending])
        keys.release(position)
        score = MASK(score, tiles[0] - 1 - j, mask, facts)
        higher = gl.maximum(top, gl.max(score, 1) * scale)
        if not facts[3]:
            values.wait(behind)  # a branch, as below
            done = wait_sums(accs)
            values.release(behind)
        kept = gl.exp2(top - higher)
        p = powers(score * scale - higher[:, None], facts[6])
        fresh = sums_of_lanes(p)
        total = total * gl.convert_layout(kept, lanes)[:, None] + fresh
        top = higher
        if facts[3]:
            # Came long ago. But ptxas moves a wait for `wgmma` up to the last branch, and here that is one behind softmax.
            values.wait(behind)
            done = wait_sums(accs)
            values.release(behind)
        accs = accumulators(scaled(done, kept, LAYOUTS))
        weights = operands(p.to(keys.dtype), LAYOUTS)
        behind, position = behind.next(), position.next()
    return (top, total, weights, accs), (behind, position)


@gluon.jit
def finish_tiles(state, rings, behind, sink, facts: gl.constexpr):
    """Add the last tile of values; return the parts of the result, the logarithm (base 2) of each row's sum, and True where a row has seen a key.

    `sink` is a score without a value, or None.
    """
    _, values = rings
    LAYOUTS: gl.constexpr = facts[1]
    top, total, weights, accs = state
    accs = start_sums(accs, weights, tiles_at(values, behind, facts[2][1], len(LAYOUTS)))
    total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, facts[0]))
    kept = 1.0
    if sink is not None:
        top, total, kept = with_sink(sink, top, total)
    seen = total > 0
    safe = gl.where(seen, total, 1.0)
    factor = gl.where(seen, kept / safe, 0.0)
    logsum = gl.where(seen, top + gl.log2(safe), float("-inf"))
    done = wait_sums(accs)
    values.release(behind)
    return scaled(done, factor, LAYOUTS), logsum


@gluon.jit
def store_rows(out, result, column, place, heads, width):
    """Store some columns of the rows of a head that a sequence has: those before the token `place[1]`, the first one at `place[0]`."""
    line, end, head = place
    layout: gl.constexpr = result.type.layout
    lines = line + gl.arange(0, result.shape[0], gl.SliceLayout(1, layout))
    columns = column + gl.arange(0, result.shape[1], gl.SliceLayout(0, layout))
    rows = lines.to(gl.int64) * heads + head
    inside = (lines < end)[:, None] & (columns < width)[None, :]
    gl.store(
        out + rows[:, None] * width + columns[None, :], result.to(out.dtype.element_ty), mask=inside
    )
