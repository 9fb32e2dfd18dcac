"""Split-K under the cooperative schedule of `hopper.py`: the programs of a tile have equal parts of K, and each adds up a share of the rows.

Two groups of four warps multiply tiles of up to 256 rows or columns, so that the L2 cache gives each byte to fewer programs than under
`hopper_small_m.py`. The sums of a tile go through memory once: every program leaves its own, waits for the others of the tile, and adds up and stores
a share of the rows, in order, so that equal inputs have equal results. Under stream-K (`hopper_stream_k.py`) one program adds up all parts, one after
the other.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_scaled, store_part, stored_rows
from gluon_kernels.gemm.hopper import apart, boxes, cleared, copy_step, finished, multiplied, widths
from gluon_kernels.gemm.hopper_small_m import adders, arrive, share_of, wait_for_all

GROUPS = gl.constexpr(2)


@gluon.constexpr_function
def share_sizes(shapes, splits, swapped):
    """Return the elements of a group's sums, and how many programs add up a tile: each has as many rows of each accumulator."""
    rows = shapes[0][0]
    return rows * sum(shapes[1]), adders(splits, min(shapes[1]) if swapped else rows)


@gluon.jit
def copy_part(ring, place, first, count, SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr):
    position = ring.producer()
    for step in range(first, first + count):
        copy_step(ring, position, place, step * SHAPES[2], SHAPES, TRANSPOSED)
        position = position.next()


@gluon.jit
def places_of(parts, rows, columns, ROWS: gl.constexpr):
    """Return where sums of [ROWS, columns] are left: 8 columns of all rows at a time, so that a warp writes and reads whole lines of the L2 cache."""
    return parts + rows[:, None] * 8 + (columns // 8 * (8 * ROWS) + columns % 8)[None, :]


@gluon.jit
def leave(mine, sums, SWAPPED: gl.constexpr):
    """Store a group's sums, each accumulator as rows of the result."""
    for i in gl.static_range(len(sums)):
        value = gl.permute(sums[i], (1, 0)) if SWAPPED else sums[i]
        rows = gl.arange(0, value.shape[0], gl.SliceLayout(1, value.type.layout))
        columns = gl.arange(0, value.shape[1], gl.SliceLayout(0, value.type.layout))
        gl.store(places_of(mine, rows, columns, value.shape[0]), value)
        mine += value.shape[0] * value.shape[1]


@gluon.jit
def summed(parts, SHAPE: gl.constexpr, SIZE: gl.constexpr, ADDERS: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr):  # fmt: skip
    """Return the sums of a share of the SHAPE that each program left at `parts`, SIZE elements from one to the next."""
    SHARE: gl.constexpr = SHAPE[0] // ADDERS
    wide: gl.constexpr = stored_rows(SHAPE[1], VECTOR, 32, gl.num_warps())
    rows = gl.program_id(0) * SHARE + gl.arange(0, SHARE, gl.SliceLayout(1, wide))
    columns = gl.arange(0, SHAPE[1], gl.SliceLayout(0, wide))
    places = places_of(parts, rows, columns, SHAPE[0])
    total = gl.zeros([SHARE, SHAPE[1]], gl.float32, wide)
    for split in gl.static_range(SPLITS):
        total += gl.load(places + split * SIZE, cache_modifier=".cg")
    return total


@gluon.constexpr_function
def shape_of(rows, width, SWAPPED):
    """Return the sides of the part of the result that an accumulator has."""
    return (width, rows) if SWAPPED else (rows, width)


@gluon.jit
def multiply_part(
    ring, place, count, out, scratch, number, group: gl.constexpr,
    SHAPES: gl.constexpr, FORM: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply a group's rows of the program's part, and add up a share of those of all parts."""
    ROWS: gl.constexpr = SHAPES[0][0]
    WIDTHS: gl.constexpr = SHAPES[1]
    TRANSPOSED: gl.constexpr = FORM[0]
    SWAPPED: gl.constexpr = FORM[1]
    SIZES: gl.constexpr = share_sizes(SHAPES, SPLITS, SWAPPED)
    SIZE: gl.constexpr = SIZES[0]
    ADDERS: gl.constexpr = SIZES[1]
    parts, counters = scratch
    position = ring.consumer()
    sums = cleared(ROWS, SHAPES[4], ring.dtype.primitive_bitwidth)
    for step in range(count):
        with gl.scope("wait for A and B"):
            slot = ring.wait(position)
        sums = multiplied(slot, sums, group, GROUPS, TRANSPOSED, SHAPES[4])
        with gl.scope("release A and B"):
            ring.release(position.before(), pred=step > 0)
        position = position.next()
    sums = apart(finished(sums), SHAPES[4])
    ring.release(position.before(), pred=count > 0)
    number = number * GROUPS + group
    parts += number.to(gl.int64) * (SPLITS * SIZE)
    with gl.scope("leave sums"):
        leave(parts + gl.program_id(0) * SIZE, sums, SWAPPED)
        before = arrive(counters + number, SPLITS)
    if gl.program_id(0) < ADDERS:
        with gl.scope("wait for sums"):
            wait_for_all(counters + number, before, SPLITS)
        totals = ()  # all parts are loaded before the first one is stored: no load passes a store before it
        with gl.scope("add up"):
            for i in gl.static_range(len(WIDTHS)):
                total = summed(parts, shape_of(ROWS, WIDTHS[i], SWAPPED), SIZE, ADDERS, SPLITS, VECTOR)  # fmt: skip
                totals = totals + (total,)
                parts += ROWS * WIDTHS[i]
        row = place[1] + group * ROWS
        column = place[2]
        with gl.scope("store"):
            for i in gl.static_range(len(WIDTHS)):
                top = gl.program_id(0) * totals[i].shape[0]
                if SWAPPED:
                    store_part(out[0], totals[i], column + top, row, out[2], out[1], out[3], False, VECTOR)  # fmt: skip
                else:
                    store_part(out[0], totals[i], row + top, column, out[2], out[1], out[3], False, VECTOR)  # fmt: skip
                column += WIDTHS[i]


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row", "across"])
def gemm_cooperative_k(
    a_desc, b_descs, c, sums, counters, bias, scales, M, N, K, c_matrix, c_row, across,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr,
    TRANSPOSED: gl.constexpr, SWAPPED: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply in parts of K. The grid is [parts, tiles of a matrix, matrices]; the other arguments are those of `gemm_split_k`.

    With SWAPPED the operands are exchanged: `a_desc` is of columns of the result, `b_descs` of its rows, and `across` is the number of tiles along
    its rows. `counters` has a number for each group of each tile.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    SHAPES: gl.constexpr = (
        (BLOCK_M // GROUPS,) * GROUPS,
        widths(BLOCK_N),
        BLOCK_K,
        1,
        boxes(BLOCK_N),
    )
    FORM: gl.constexpr = (TRANSPOSED, SWAPPED)
    ring = tma_ring((a_desc,) * GROUPS + b_descs, STAGES, consumers=GROUPS)
    wait_for_predecessor()
    tile = gl.program_id(1)
    matrix = gl.program_id(2)
    place = (matrix, tile // across * BLOCK_M, tile % across * BLOCK_N)
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    c += matrix.to(gl.int64) * (c_matrix // VECTOR * VECTOR)
    out = (c, c_row, (M, N), of_scaled(M, N, bias, ACTIVATION, scales))
    number = matrix * gl.num_programs(1) + tile
    scratch = (sums, counters)
    gl.warp_specialize(
        [
            (multiply_part, (ring, place, count, out, scratch, number, 0, SHAPES, FORM, SPLITS, VECTOR)),
            (multiply_part, (ring, place, count, out, scratch, number, 1, SHAPES, FORM, SPLITS, VECTOR)),
            (copy_part, (ring, place, first, count, SHAPES, TRANSPOSED)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
