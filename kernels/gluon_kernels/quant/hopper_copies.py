"""Copies of `hopper_groups.py` to shared memory, which one warp starts by TMA: weights, and rows of `x` for each accumulator of a tile.

An accumulator may have columns in vain. Where many of their rows would be outside of `x`, for which TMA takes longer than for others, boxes have the rows
that are needed alone. All partitions wait for the kernel before themselves, behind all that needs no memory.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.hopper_small_m import share_of
from gluon_kernels.gemm.hopper_stream_k import after, segment_of
from gluon_kernels.gemm.hopper_stream_k import share_of as steps_before
from gluon_kernels.quant.hopper_sums import ROWS

BOX = gl.constexpr(64)  # columns of a tile of `x`


@gluon.constexpr_function
def columns_of(block):
    """Return the powers of two that the rows of `x` of a tile are the sum of, each 8 to 256."""
    left, parts = block, ()
    for width in (256, 128, 64, 32, 16, 8):
        while left >= width:
            parts, left = (*parts, width), left - width
    return parts


@gluon.constexpr_function
def boxes_of(rows):
    """Return where the boxes of so many rows begin, and how many rows each has."""
    parts, top = (), 0
    for width in columns_of(rows):
        parts, top = (*parts, (top, width)), top + width
    return parts


@gluon.constexpr_function
def vain(width, used):
    """Return where rows begin that no box has, and how many they are: powers of two."""
    parts, top = (), used
    for rows in columns_of(width - used)[::-1]:
        parts, top = (*parts, (top, rows)), top + rows
    return parts


@gluon.jit
def slots_of(dtype: gl.constexpr, WIDTH: gl.constexpr, USED: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Allocate slots for USED rows of `x`, whose accumulator has WIDTH columns: barriers that say that they are there, and tiles of 64 columns.

    The other rows, which products in vain may read, are zeros.
    """
    VAIN: gl.constexpr = vain(WIDTH, USED)
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([WIDTH, BOX], dtype)
    there = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(there.index(i), 1)
    tiles = gl.allocate_shared_memory(dtype, [STAGES * (DEPTH // BOX), WIDTH, BOX], layout)
    for i in gl.static_range(len(VAIN)):
        zeros = gl.zeros([VAIN[i][1], BOX], dtype, gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
        for tile in gl.static_range(STAGES * (DEPTH // BOX)):
            tiles.index(tile).slice(VAIN[i][0], VAIN[i][1], dim=0).store(zeros)
    fence_async_shared()
    return there, tiles


@gluon.jit
def fetch(rings, position, place, step, pred, KIND: gl.constexpr):
    """Fetch the weights and the rows of `x` of a step of a tile."""
    ring, slots, x_descs = rings
    BOXES: gl.constexpr = KIND[1]
    DEPTH: gl.constexpr = KIND[4]
    row, column = place
    PER: gl.constexpr = DEPTH // ring.block_shape[1]  # weights of an element
    k = step * DEPTH
    places = ()
    for i in gl.static_range(KIND[2]):
        places = places + ([row + i * ROWS, k // PER],)
    if len(slots) == 0:
        for box in gl.static_range(DEPTH // BOX):
            left = column
            for i in gl.static_range(len(BOXES)):
                places = places + ([left, k + box * BOX],)
                left += BOXES[i][0]
        ring.fetch(position, places, pred=pred)
    else:
        ring.fetch(position, places, pred=pred)  # when the slot is empty, that of `x` is, too
        PARTS: gl.constexpr = boxes_of(BOXES[0][1])
        there = slots[0].index(position.index)
        mbarrier.expect(there, BOXES[0][1] * DEPTH * 2, pred)
        for box in gl.static_range(DEPTH // BOX):
            tile = slots[1].index(position.index * (DEPTH // BOX) + box)
            for i in gl.static_range(len(PARTS)):
                rows = tile.slice(PARTS[i][0], PARTS[i][1], dim=0)
                start = [column + PARTS[i][0], k + box * BOX]
                tma.async_load(x_descs[i], start, there, rows, pred)


@gluon.jit
def rows_at(rings, position, box: gl.constexpr, i: gl.constexpr, KIND: gl.constexpr):
    """Return the rows of `x` of accumulator `i`, and 64 of their columns, of a step that is there."""
    ring, slots, _ = rings
    if len(slots) == 0:
        return ring.tiles(position)[KIND[2] + box * len(KIND[1]) + i]
    else:
        return slots[1].index(position.index * (KIND[4] // BOX) + box)


@gluon.jit
def weights_at(rings, position, down: gl.constexpr, DOWN: gl.constexpr, WAIT: gl.constexpr):
    """Return a group's weights of a step, with WAIT when they are there."""
    ring, slots, _ = rings
    tiles = ring.wait(position) if WAIT else ring.tiles(position)
    if len(slots) > 0 and DOWN == 1:
        return tiles
    else:
        return tiles[down]


@gluon.jit
def wait_for_rows(rings, position):
    """Wait for the rows of `x` of a step whose weights are there."""
    if len(rings[1]) > 0:
        mbarrier.wait(rings[1][0].index(position.index), position.phase)


@gluon.jit
def copy_steps(rings, position, place, first, end, KIND: gl.constexpr):
    """Fetch the steps of a tile from `first` to before `end`; return the next position."""
    for step in range(first, end):
        fetch(rings, position, place, step, True, KIND)
        position = position.next()
    return position


@gluon.jit
def place_at(tiles, tile, DOWN: gl.constexpr, ONE: gl.constexpr):
    """Return the first row of weights of a tile and the first of `x`, which is 0 where ONE tile has all rows of `x`."""
    if ONE:
        return tile * (DOWN * ROWS), 0
    else:
        return tiles.at(tile)


@gluon.jit
def only_place(BLOCK_M: gl.constexpr, DOWN: gl.constexpr):
    """Return the first row of weights of the only tile of a program and the first of `x`: no division is in front of its first copy."""
    return gl.program_id(2) * (DOWN * ROWS), gl.program_id(1) * BLOCK_M


@gluon.jit
def copy_tiles(rings, tiles, shares, K, KIND: gl.constexpr):
    """Fetch the steps of a program: of its part of the tiles, or its share of all steps."""
    DOWN: gl.constexpr = KIND[2]
    DEPTH: gl.constexpr = KIND[4]
    SPLITS: gl.constexpr = KIND[7]
    ONE: gl.constexpr = KIND[12]
    steps = gl.cdiv(K, DEPTH)
    position = rings[0].producer()
    if KIND[13]:
        first, count = share_of(steps, SPLITS)
        place = only_place(KIND[15], DOWN)
        wait_for_predecessor()
        copy_steps(rings, position, place, first, first + count, KIND)
    elif SPLITS > 0:
        wait_for_predecessor()
        for tile in range(gl.program_id(1), tiles.count(), gl.num_programs(1)):
            place = place_at(tiles, tile, DOWN, ONE)
            position = copy_steps(rings, position, place, 0, steps, KIND)
    else:
        begin = steps_before(gl.program_id(0), shares, steps)
        left = steps_before(gl.program_id(0) + 1, shares, steps)
        whole = shares[0] + gl.program_id(0)
        wait_for_predecessor()
        while (left > begin) | (whole < tiles.count()):
            tile, low, high = segment_of(left, whole, begin, steps)
            position = copy_steps(
                rings, position, place_at(tiles, tile, DOWN, ONE), low, high, KIND
            )
            left, whole = after(left, whole, begin, tile, low, steps)
