"""Stream-K on Hopper: the cooperative schedule of `hopper.py`, where programs share tiles along K in one launch.

Tiles that do not fill a round of the processors are cut along K (Osama et al., arXiv:2301.03598). As many programs as divide
among these tiles share them, so that each tile has equal parts (split-K), and programs that share rows or columns are at the same
step: the L2 cache serves them together. A program walks over its share from the last step to the first. A segment that does not
reach the end of K leaves its sums in memory and signals; the program that has the end of a tile's K adds these sums to its own, in a fixed
order, and stores the tile: equal inputs give equal bits. A program waits for programs of lower numbers only, which began
before it, so that the launch ends whatever number of programs runs at a time.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_scaled
from gluon_kernels.gemm.hopper import (
    apart,
    boxes,
    cleared,
    close,
    copy_step,
    finished,
    multiplied,
    store,
    widths,
    writers_for,
)
from gluon_kernels.gemm.places import place_of


@gluon.jit
def share_of(program, shares, steps):
    """Return the first step of a program's share; the next program's is its end.

    Args:
        shares: the number of tiles that are cut, with `steps` each, and that of the programs that share them.
    """
    shared, sharers = shares
    return gl.minimum(program, sharers) * (shared * steps) // gl.maximum(sharers, 1)


@gluon.jit
def owner_of(step, shares, steps):
    """Return the program whose share has a step."""
    shared, sharers = shares
    return ((step + 1) * sharers - 1) // (shared * steps)


@gluon.jit
def segment_of(left, whole, begin, steps):
    """Return a tile and its steps from `low` to below `high`: the last ones left of the share, then all of a tile that is not shared."""
    cut = left > begin
    tile = gl.where(cut, (left - 1) // steps, whole)
    low = gl.where(cut, gl.maximum(begin - tile * steps, 0), 0)
    high = gl.where(cut, left - tile * steps, steps)
    return tile, low, high


@gluon.jit
def after(left, whole, begin, tile, low, steps):
    """Return the rest of the share, and the next tile that is not shared, after a segment."""
    cut = left > begin
    left = gl.where(cut, tile * steps + low, left)
    return left, gl.where(cut, whole, whole + gl.num_programs(0))


@gluon.jit
def copy_segments(ring, tiles, walk, batch, shares, K, SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr):  # fmt: skip
    steps = gl.cdiv(K, SHAPES[2])
    begin = share_of(gl.program_id(0), shares, steps)
    left = share_of(gl.program_id(0) + 1, shares, steps)
    whole = shares[0] + gl.program_id(0)
    count = tiles.count() * batch
    position = ring.producer()
    while (left > begin) | (whole < count):
        tile, low, high = segment_of(left, whole, begin, steps)
        place = place_of(tile, tiles, walk, SHAPES[5])
        for step in range(low, high):
            copy_step(ring, position, place, step * SHAPES[2], SHAPES, TRANSPOSED)
            position = position.next()
        left, whole = after(left, whole, begin, tile, low, steps)


@gluon.jit
def places_of(parts, value):
    """Return where a group leaves its sums: 8 columns of all rows at a time, so that a warp writes 256 bytes that follow each other."""
    ROWS: gl.constexpr = value.shape[0]
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, value.type.layout))
    columns = gl.arange(0, value.shape[1], gl.SliceLayout(0, value.type.layout))
    return parts + rows[:, None] * 8 + (columns // 8 * (8 * ROWS) + columns % 8)[None, :]


@gluon.jit
def leave(parts, sums):
    for i in gl.static_range(len(sums)):
        gl.store(places_of(parts, sums[i]), sums[i])
        parts += sums[i].shape[0] * sums[i].shape[1]


@gluon.jit
def added(parts, sums):
    """Return sums with those that another program left."""
    totals = ()
    for i in gl.static_range(len(sums)):
        more = gl.load(places_of(parts, sums[i]), cache_modifier=".cg")
        totals = totals + (sums[i] + more,)
        parts += sums[i].shape[0] * sums[i].shape[1]
    return totals


@gluon.jit
def multiply_segments(
    ring, tiles, walk, batch, shares, outs, scratch, K, group: gl.constexpr,
    SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr, FORM: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply a group's rows of each segment of the program."""
    GROUPS: gl.constexpr = len(SHAPES[0])
    ROWS: gl.constexpr = SHAPES[0][0]
    COLUMNS: gl.constexpr = tiles.block[1]
    parts, signals = scratch
    steps = gl.cdiv(K, SHAPES[2])
    program = gl.program_id(0)
    begin = share_of(program, shares, steps)
    left = share_of(program + 1, shares, steps)
    whole = shares[0] + program
    count = tiles.count() * batch
    position = ring.consumer()
    while (left > begin) | (whole < count):
        tile, low, high = segment_of(left, whole, begin, steps)
        sums = cleared(ROWS, SHAPES[4], ring.dtype.primitive_bitwidth)
        for step in range(low, high):
            sums = multiplied(ring.wait(position), sums, group, GROUPS, TRANSPOSED, SHAPES[4])
            ring.release(position.before(), pred=step > low)
            position = position.next()
        sums = apart(finished(sums), SHAPES[4])
        ring.release(position.before())
        if high < steps:
            number = program * GROUPS + group
            leave(parts + number.to(gl.int64) * (ROWS * COLUMNS), sums)
            gl.portable.signal(signals + number, "gpu")
        else:
            if low > 0:
                first = owner_of(tile * steps, shares, steps)
                for other in range(first, program):
                    gl.portable.wait_signal(signals + other * GROUPS + group, "gpu")
                for other in range(first, program):
                    number = other * GROUPS + group
                    sums = added(parts + number.to(gl.int64) * (ROWS * COLUMNS), sums)
            matrix, row, column = place_of(tile, tiles, walk, SHAPES[5])
            store(outs, sums, matrix, row + group * ROWS, column, FORM, VECTOR)
        left, whole = after(left, whole, begin, tile, low, steps)
    close(outs, FORM)


@gluon.jit(do_not_specialize=["batch", "M", "N", "K", "c_row", "of_matrix", "of_group", "of_last", "shifts", "shared", "sharers"])  # fmt: skip
def gemm_stream_k(
    a_desc, b_descs, c, c_descs, c_matrix, c_row, bias, scales, batch, M, N, K, of_matrix, of_group, of_last, shifts, parts, signals, shared, sharers,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, VECTOR: gl.constexpr,
    TRANSPOSED: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply [batch, M, K] by [batch, K, N]; the arguments are those of `gemm` with two groups that share a tile.

    The first `shared` tiles are cut along K, in equal shares of the first `sharers` programs; the others are done whole. `parts` has room for a tile of
    float32 for each program, `signals` two zeros, which are zero again at the end.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    SHAPES: gl.constexpr = ((BLOCK_M // 2,) * 2, widths(BLOCK_N), BLOCK_K, 1, boxes(BLOCK_N), GROUP)
    ring = tma_ring((a_desc,) * 2 + b_descs, STAGES, consumers=2)
    wait_for_predecessor()
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    walk = (gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), of_matrix, of_group, of_last, shifts)
    if FORM == "columns":
        end = of_scaled(N, M, bias, ACTIVATION, scales)
    else:
        end = of_scaled(M, N, bias, ACTIVATION, scales)
    SCALED: gl.constexpr = scales[0] is not None or scales[1] is not None or len(scales[2]) > 0
    PLAIN: gl.constexpr = bias is None and ACTIVATION is None and not SCALED
    rest = (c, (c_matrix, c_row), (M, N), end)
    first = (writers_for(c_descs, end, SHAPES[1], PLAIN),) + rest
    second = (writers_for(c_descs, end, SHAPES[1], PLAIN),) + rest
    scratch = (parts, signals)
    shares = (shared, sharers)
    gl.warp_specialize(
        [
            (
                multiply_segments,
                (
                    ring,
                    tiles,
                    walk,
                    batch,
                    shares,
                    first,
                    scratch,
                    K,
                    0,
                    SHAPES,
                    TRANSPOSED,
                    FORM,
                    VECTOR,
                ),
            ),
            (
                multiply_segments,
                (
                    ring,
                    tiles,
                    walk,
                    batch,
                    shares,
                    second,
                    scratch,
                    K,
                    1,
                    SHAPES,
                    TRANSPOSED,
                    FORM,
                    VECTOR,
                ),
            ),
            (copy_segments, (ring, tiles, walk, batch, shares, K, SHAPES, TRANSPOSED)),
        ],
        [4, 1],
        [240, 24],
    )
