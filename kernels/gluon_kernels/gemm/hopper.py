"""GEMM on Hopper: TMA feeds `wgmma` through a ring of slots; warps have roles and programs walk over many tiles.

One warp issues the copies, groups of four warps multiply. Under the cooperative schedule two or three groups multiply their
share of the rows of the same tile. Under the ping-pong schedule each of two groups has a tile of its own and multiplies in its
turn, so that one stores while the other has the matrix unit to itself: the shorter K, the more a store weighs.

A tile of 192 columns is two accumulators side by side, of 128 and of 64, since widths of tensors are powers of two; any multiple
of 16 is a sum of such. One of 112 is an accumulator of 128 columns of which 112 are multiplied and stored. Shared memory is filled at 64 bytes per clock, so that tiles should be large and nearly square.
Operands may be stored transposed: `wgmma` reads 16-bit tiles of either orientation. Matrices of a batch are one more
dimension of the descriptors, of which a tile covers one.

With several blocks to a cluster (`num_ctas`) each block has a part of the rows of each group, and, with ABREAST blocks along the columns, a part of
these: one block copies by multicast for all that share the rows of A, or the columns of B, so that the L2 cache gives them once.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    ordered_barrier,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_scaled, shared_columns, store_part, store_streamed
from gluon_kernels.gemm.places import place_of

DTYPES = {
    "float32": gl.float32,
    "float16": gl.float16,
    "bfloat16": gl.bfloat16,
    "float8_e4m3fn": gl.float8e4nv,
    "float8_e5m2": gl.float8e5,
}


@gluon.constexpr_function
def widths(columns):
    """Return the powers of two that a tile's columns are the sum of, from left to right, each 16 to 256."""
    left, parts = columns, ()
    for width in (256, 128, 64, 32, 16):
        while left >= width:
            parts, left = (*parts, width), left - width
    if left or not parts:
        raise ValueError(f"a tile has a multiple of 16 columns, got {columns}")
    return parts


@gluon.constexpr_function
def boxes(columns, abreast=1):
    """Return the accumulators of a tile's columns, from left to right: how many columns each has, a power of two, and how many of them are multiplied.

    One with a few columns in vain takes less time than two, as the matrix unit reads the rows of A for each.
    """
    left, parts = columns, ()
    while left:
        width = min(256, 1 << (left.bit_length() - 1))
        wider = 2 * width
        if width < left and wider <= 256 and abreast == 1 and wider - left <= columns // 7:
            return (*parts, (wider, left))
        parts, left = (*parts, (width, width)), left - width
    return parts


@gluon.constexpr_function
def whole(widths):
    """Return the accumulators of `boxes` that are multiplied whole."""
    return tuple((width, width) for width in widths)


@gluon.constexpr_function
def split(blocks, abreast, rows, columns, rank=3):
    """Return `cga_layout` of a tile, of which the blocks of a cluster have parts: `abreast` of them along dimension `columns`, the others along `rows`; all of
    what a dimension of None would divide."""
    bases = []
    for count, dim in ((blocks // abreast, rows), (abreast, columns)):
        step = 1
        while step < count:
            bases.append([step * (i == dim) for i in range(rank)])
            step *= 2
    return bases


@gluon.constexpr_function
def of_sums(blocks, abreast):
    """Return `cga_layout` of [rows, columns] of a result."""
    return split(blocks, abreast, 0, 1, rank=2)


@gluon.jit
def copy_step(ring, position, place, k, SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Fetch the tiles of a step: the rows of each group of A, then the parts of B. `place` is the matrix, the row and the column of the tile."""
    HEIGHTS: gl.constexpr = SHAPES[0]
    BOXES: gl.constexpr = SHAPES[4]
    matrix, top, left = place
    places = ()
    for i in gl.static_range(len(HEIGHTS)):
        places = places + ([matrix, k, top] if TRANSPOSED[0] else [matrix, top, k],)
        top += HEIGHTS[i]
    for i in gl.static_range(len(BOXES)):
        places = places + ([matrix, left, k] if TRANSPOSED[1] else [matrix, k, left],)
        left += BOXES[i][0]
    with gl.scope("copy A and B"):
        ring.fetch(position, places)


@gluon.jit
def copy_tiles(ring, tiles, walk, batch, K, SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr):
    """Fetch the tiles of each step of the program's tiles."""
    position = ring.producer()
    place = place_of(gl.program_id(0), tiles, walk, SHAPES[5])
    wait_for_predecessor()
    for tile in range(gl.program_id(0), tiles.count() * batch, gl.num_programs(0)):
        for k in range(0, K, SHAPES[2]):
            copy_step(ring, position, place, k, SHAPES, TRANSPOSED)
            position = position.next()
        place = place_of(tile + gl.num_programs(0), tiles, walk, SHAPES[5])
    ring.drain(position)


@gluon.jit
def left_of(tile, TRANSPOSED: gl.constexpr):
    """Return a tile of A as [rows, K]."""
    flat = tile.reshape([tile.shape[1], tile.shape[2]])
    return flat.permute((1, 0)) if TRANSPOSED[0] else flat


@gluon.jit
def right_of(tile, TRANSPOSED: gl.constexpr):
    """Return a tile of B as [K, columns]."""
    flat = tile.reshape([tile.shape[1], tile.shape[2]])
    return flat.permute((1, 0)) if TRANSPOSED[1] else flat


@gluon.jit
def zeros(ROWS: gl.constexpr, WIDTH: gl.constexpr, BITS: gl.constexpr, ABREAST: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0],
        [4, 1],
        [16, WIDTH // ABREAST, 256 // BITS],
        cga_layout=of_sums(gl.num_ctas(), ABREAST),
    )
    return warpgroup_mma_init(gl.zeros([ROWS, WIDTH], gl.float32, layout))


@gluon.jit
def cleared(ROWS: gl.constexpr, BOXES: gl.constexpr, BITS: gl.constexpr, ABREAST: gl.constexpr = 1):
    """Return the accumulators of adjacent columns."""
    sums = ()
    for i in gl.static_range(len(BOXES)):
        sums = sums + (zeros(ROWS, BOXES[i][0], BITS, ABREAST),)
    return sums


@gluon.constexpr_function
def halvings(width, columns):
    """Return the halves of an accumulator, of its rest and so on, until all of its first `columns` are in one: their width, and True if they are."""
    halves = ()
    while columns % width:
        width //= 2
        halves = (*halves, (width, columns >= width))
        columns -= width if columns >= width else 0
    return halves


@gluon.jit
def apart(sums, BOXES: gl.constexpr):
    """Return accumulators as tensors of adjacent columns, without the columns that no product needs; `halvings` gives their widths."""
    parts = ()
    for i in gl.static_range(len(BOXES)):
        if BOXES[i][0] == BOXES[i][1]:
            parts = parts + (sums[i],)
        else:
            parts = parts + first_of(sums[i], halvings(BOXES[i][0], BOXES[i][1]))
    return parts


@gluon.jit
def first_of(rest, HALVES: gl.constexpr):
    """Return those of the `halvings` of an accumulator that have no column in vain."""
    LIKE: gl.constexpr = rest.type.layout
    parts = ()
    for i in gl.static_range(len(HALVES)):
        halves = gl.permute(rest.reshape([rest.shape[0], 2, HALVES[i][0]]), (0, 2, 1))
        first, second = gl.split(halves)
        first = gl.convert_layout(first, narrow(LIKE, HALVES[i][0]))
        if HALVES[i][1]:
            parts = parts + (first,)
            rest = gl.convert_layout(second, narrow(LIKE, HALVES[i][0]))
        else:
            rest = first
    return parts


@gluon.constexpr_function
def narrow(layout, columns):
    """Return the layout of an accumulator of fewer columns."""
    shape = [layout.instr_shape[0], columns, *layout.instr_shape[2:]]
    return gl.NVMMADistributedLayout(
        layout.version, layout.warps_per_cta, shape, cga_layout=layout.cga_layout
    )


@gluon.jit
def multiplied(slot, sums, GROUP: gl.constexpr, GROUPS: gl.constexpr, TRANSPOSED: gl.constexpr, BOXES: gl.constexpr):  # fmt: skip
    """Start a step of each accumulator, and wait until the step before is over."""
    a = left_of(slot[GROUP], TRANSPOSED)
    started = ()
    with gl.scope("issue products"):
        for i in gl.static_range(len(sums)):
            b = right_of(slot[GROUPS + i], TRANSPOSED)
            if BOXES[i][0] == BOXES[i][1]:
                started = started + (warpgroup_mma(a, b, sums[i], is_async=True),)
            else:
                more = warpgroup_mma(a, b, sums[i], columns=BOXES[i][1], is_async=True)
                started = started + (more,)
    gl.scope_begin("wait for products")
    if len(sums) == 1:
        waited = (warpgroup_mma_wait(1, deps=[started[0]]),)
    else:
        waited = warpgroup_mma_wait(len(sums), deps=started)
    gl.scope_end("wait for products")
    again = ()
    for i in gl.static_range(len(sums)):
        again = again + (warpgroup_mma_init(waited[i]),)
    return again


@gluon.jit
def finished(sums):
    gl.scope_begin("wait for the last products")
    if len(sums) == 1:
        done = (warpgroup_mma_wait(0, deps=[sums[0]]),)
    else:
        done = warpgroup_mma_wait(0, deps=sums)
    gl.scope_end("wait for the last products")
    return done


@gluon.jit
def product_of(numbers):
    """Return a tuple of the product of numbers in memory, an empty one where there are none."""
    if len(numbers) == 0:
        return ()
    else:
        product = gl.load(numbers[0])
        for i in gl.static_range(1, len(numbers)):
            product *= gl.load(numbers[i])
        return (product,)


@gluon.constexpr_function
def in_registers(shapes, blocks):
    """Return True if a thread has registers for the scales of a group's rows and columns next to the sums."""
    rows, columns = shapes[0][0] * shapes[3] // blocks, sum(shapes[1]) // shapes[3]
    return rows * columns // 128 + columns // 4 <= 160


@gluon.constexpr_function
def of_part(width, bits, blocks, abreast):
    """Return the layout of so many columns of an accumulator."""
    return gl.NVMMADistributedLayout(
        [3, 0], [4, 1], [16, width // abreast, 256 // bits], cga_layout=of_sums(blocks, abreast)
    )


@gluon.jit
def vectors_of(vectors, row, column, sizes, ROWS: gl.constexpr, WIDTH: gl.constexpr, LIKE: gl.constexpr):  # fmt: skip
    """Return the scales of the rows and of the columns of a part of a tile."""
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LIKE))
    columns = column + gl.arange(0, WIDTH, gl.SliceLayout(0, LIKE))
    return (
        gl.load(vectors[0] + rows, mask=rows < sizes[0], other=0.0),
        gl.load(vectors[1] + columns, mask=columns < sizes[1], other=0.0),
    )


@gluon.jit
def vectors_at(vectors, row, column, sizes, ROWS: gl.constexpr, BITS: gl.constexpr, SHAPES: gl.constexpr):  # fmt: skip
    """Return the scales of each part of a tile, which come while it is multiplied; none without `vectors`."""
    held = ()
    if len(vectors) > 0:
        for i in gl.static_range(len(SHAPES[1])):
            held = held + (
                vectors_of(
                    vectors, row, column, sizes, ROWS, SHAPES[1][i],
                    of_part(SHAPES[1][i], BITS, gl.num_ctas(), SHAPES[3]),
                ),
            )  # fmt: skip
            column += SHAPES[1][i]
    return held


@gluon.jit
def scaled(sums, scale, held):
    """Return parts of a tile multiplied by a scale, if there is one, and by those of rows and columns."""
    products = ()
    for i in gl.static_range(len(sums)):
        part = sums[i]
        if len(scale) > 0:
            part = part * scale[0]
        if len(held) > 0:
            part = part * held[i][0][:, None] * held[i][1][None, :]
        products = products + (part,)
    return products


@gluon.jit
def store(
    outs,
    sums,
    matrix,
    row,
    column,
    FORM: gl.constexpr,
    VECTOR: gl.constexpr,
    ABREAST: gl.constexpr = 1,
    ADVANCE: gl.constexpr = 0,
):
    """Store the accumulators of adjacent columns: by the writer of each, or at once where there is none. The next tile begins ADVANCE columns to the right."""
    writers, c, strides, sizes, end = outs
    own = (column, column + ADVANCE)
    for i in gl.static_range(len(sums)):
        if FORM == "tma":
            writers[i].store([matrix, row, column], sums[i], turns=writers)
        elif FORM == "tma columns":
            writers[i].store([matrix, column, row], gl.permute(sums[i], (1, 0)), turns=writers)
        elif FORM == "streamed" or FORM == "sectors":
            to = c + matrix.to(gl.int64) * (strides[0] // VECTOR * VECTOR)
            store_streamed(
                to, sums[i], row, column, sizes, strides[1], writers, own, VECTOR,
                shared_columns(FORM, VECTOR),
            )  # fmt: skip
        else:
            to = c + matrix.to(gl.int64) * (strides[0] // VECTOR * VECTOR)
            store_part(
                to, sums[i], row, column, sizes, strides[1], end, FORM == "columns", VECTOR,
                of_sums(gl.num_ctas(), ABREAST),
            )  # fmt: skip
        column += sums[i].shape[1]


@gluon.jit
def close(outs, FORM: gl.constexpr):
    if FORM == "tma" or FORM == "tma columns":
        outs[0][0].close()


@gluon.jit
def multiply_own_tiles(
    ring, tiles, walk, batch, order, outs, factors, K, partition: gl.constexpr,
    SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr, FORM: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply every other tile of the program: the ping-pong schedule."""
    steps = gl.cdiv(K, SHAPES[2])
    position = ring.consumer().next(partition * steps)
    wait_for_predecessor()
    scale = product_of(factors[0])
    turn = order.first(partition)
    first = gl.program_id(0) + partition * gl.num_programs(0)
    for tile in range(first, tiles.count() * batch, 2 * gl.num_programs(0)):
        sums = cleared(tiles.block[0], SHAPES[4], ring.dtype.primitive_bitwidth, SHAPES[3])
        matrix, row, column = place_of(tile, tiles, walk, SHAPES[5])
        held = vectors_at(factors[1], row, column, outs[3], tiles.block[0], ring.dtype.primitive_bitwidth, SHAPES)  # fmt: skip
        with gl.scope("wait for the turn"):
            order.wait(turn)
        for step in range(steps):
            with gl.scope("wait for A and B"):
                slot = ring.wait(position)
            sums = multiplied(slot, sums, 0, 1, TRANSPOSED, SHAPES[4])
            # The step before is over: its slot takes the tiles that come next.
            with gl.scope("release A and B"):
                ring.release(position.before(), pred=step > 0)
            position = position.next()
        order.arrive(turn)
        turn = turn.next()
        sums = scaled(apart(finished(sums), SHAPES[4]), scale, held)
        ring.release(position.before(), pred=steps > 0)
        position = position.next(steps)
        with gl.scope("store"):
            store(outs, sums, matrix, row, column, FORM, VECTOR, SHAPES[3], tiles.block[1])
    close(outs, FORM)


@gluon.jit
def multiply_share(
    ring, tiles, walk, batch, outs, factors, K, group: gl.constexpr,
    SHAPES: gl.constexpr, TRANSPOSED: gl.constexpr, FORM: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply a group's rows of each tile of the program: the cooperative schedule."""
    ROWS: gl.constexpr = SHAPES[0][0]
    position = ring.consumer()
    wait_for_predecessor()
    scale = product_of(factors[0])
    for tile in range(gl.program_id(0), tiles.count() * batch, gl.num_programs(0)):
        sums = cleared(ROWS, SHAPES[4], ring.dtype.primitive_bitwidth, SHAPES[3])
        matrix, row, column = place_of(tile, tiles, walk, SHAPES[5])
        row += group * ROWS
        held = vectors_at(factors[1], row, column, outs[3], ROWS, ring.dtype.primitive_bitwidth, SHAPES)  # fmt: skip
        for k in range(0, K, SHAPES[2]):
            with gl.scope("wait for A and B"):
                slot = ring.wait(position)
            sums = multiplied(slot, sums, group, len(SHAPES[0]), TRANSPOSED, SHAPES[4])
            with gl.scope("release A and B"):
                ring.release(position.before(), pred=k > 0)
            position = position.next()
        sums = scaled(apart(finished(sums), SHAPES[4]), scale, held)
        ring.release(position.before(), pred=K > 0)
        with gl.scope("store"):
            store(outs, sums, matrix, row, column, FORM, VECTOR, SHAPES[3], tiles.block[1])
    close(outs, FORM)


@gluon.jit
def writers_for(
    c_descs, end, WIDTHS: gl.constexpr, PLAIN: gl.constexpr, WHOLE: gl.constexpr = False
):
    """Return a writer for each accumulator of a group: with a buffer for one part of it, or for the WHOLE."""
    writers = ()
    for i in gl.static_range(len(c_descs)):
        if PLAIN:  # a tile is converted whole
            writers = writers + (writer_of(c_descs[i], None, WIDTHS[i], WHOLE),)
        else:
            writers = writers + (writer_of(c_descs[i], end, WIDTHS[i], WHOLE),)
    return writers


@gluon.jit
def ways_for(
    c_descs, end, WIDTHS: gl.constexpr, PLAIN: gl.constexpr, WHOLE: gl.constexpr, FORM: gl.constexpr
):  # fmt: skip
    """Return a writer for each accumulator of a group; for streamed rows the epilogue, none if it is PLAIN."""
    if FORM != "streamed" and FORM != "sectors":
        return writers_for(c_descs, end, WIDTHS, PLAIN, WHOLE)
    elif PLAIN:
        return ()
    else:
        return (end,)


@gluon.jit
def writer_of(c_desc, end, WIDTH: gl.constexpr, WHOLE: gl.constexpr):
    PARTS: gl.constexpr = WIDTH // c_desc.block_type.shape[2]
    return tma_writer(c_desc, PARTS, PARTS if WHOLE else 1, end)


@gluon.jit(
    do_not_specialize=[
        "batch",
        "M",
        "N",
        "K",
        "c_row",
        "of_matrix",
        "of_group",
        "of_last",
        "shifts",
    ]
)
def gemm(
    a_desc, b_descs, c, c_descs, c_matrix, c_row, bias, scales, batch, M, N, K,
    of_matrix, of_group, of_last, shifts,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr,
    WHOLE: gl.constexpr, FORM: gl.constexpr, VECTOR: gl.constexpr,
    TRANSPOSED: gl.constexpr, ACTIVATION: gl.constexpr, ABREAST: gl.constexpr = 1,
):  # fmt: skip
    """Multiply [batch, M, K] by [batch, K, N].

    `a_desc` is of the rows of a group, `b_descs` of the `boxes` of the BLOCK_N columns of a tile, from left to right. TRANSPOSED says of A
    and of B whether they are stored as [K, M] and [N, K]. GROUPS is the number of groups that share a tile, 0 under
    the ping-pong schedule. With WHOLE a group has buffers for all that it stores of a tile. FORM says how C is stored: by "tma" through `c_descs`, or as its "tma columns",
    by pointers "streamed" or in whole "sectors" (`store_streamed`), else by pointers as "rows" of `c`, or as its "columns", which are contiguous then; `c_matrix` and `c_row` are the strides of matrices and of rows, or columns; VECTOR
    divides them and the contiguous side. `bias` belongs to the contiguous side of C, `scales` to the other side and to this one,
    each None or float32, and a tuple of numbers in memory for all. ABREAST blocks of a cluster divide the columns of a tile, the others its rows.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    CTAS: gl.constexpr = gl.num_ctas()
    SHARES: gl.constexpr = max(GROUPS, 1)
    SHAPES: gl.constexpr = (
        (BLOCK_M // SHARES,) * SHARES,
        widths(BLOCK_N),
        BLOCK_K,
        ABREAST,
        boxes(BLOCK_N, ABREAST),
        GROUP,
    )
    ring = tma_ring((a_desc,) * SHARES + b_descs, STAGES, consumers=SHARES, multicast=CTAS > 1)
    SHARED: gl.constexpr = shared_columns(FORM, VECTOR)
    if SHARED > 0:
        own_columns = gl.maximum(N - SHARED, 1)
    else:
        own_columns = N
    tiles = gl.portable.swizzled_tiles([M, own_columns], [BLOCK_M, BLOCK_N - SHARED], GROUP)
    rows, columns = gl.cdiv(M, BLOCK_M), gl.cdiv(own_columns, BLOCK_N - SHARED)
    walk = (rows, columns, of_matrix, of_group, of_last, shifts)
    if FORM == "columns" or FORM == "tma columns":
        sizes = (N, M)
    else:
        sizes = (M, N)
    # The groups load scales themselves, so that partitions begin before these have come: those of both sides only if they fit in registers next to the sums.
    EARLY: gl.constexpr = (
        scales[0] is not None and scales[1] is not None and in_registers(SHAPES, CTAS)
    )
    if EARLY:
        end = of_scaled(sizes[0], sizes[1], bias, ACTIVATION, (None, None, ()))
        if FORM == "columns" or FORM == "tma columns":
            factors = (scales[2], (scales[1], scales[0]))
        else:
            factors = (scales[2], (scales[0], scales[1]))
    else:
        end = of_scaled(sizes[0], sizes[1], bias, ACTIVATION, (scales[0], scales[1], ()))
        factors = (scales[2], ())
    SCALED: gl.constexpr = not EARLY and (scales[0] is not None or scales[1] is not None)
    PLAIN: gl.constexpr = bias is None and ACTIVATION is None and not SCALED
    # The contiguous sides of stored parts: the rows of a group where columns of the result are contiguous.
    SIDES: gl.constexpr = SHAPES[1] if FORM == "tma" else (SHAPES[0][0],) * len(SHAPES[1])
    rest = (c, (c_matrix, c_row), (M, N), end)
    first = (ways_for(c_descs, end, SIDES, PLAIN, WHOLE, FORM),) + rest
    second = (ways_for(c_descs, end, SIDES, PLAIN, WHOLE, FORM),) + rest
    if GROUPS == 0:
        order = ordered_barrier(2)
        # fmt: off
        gl.warp_specialize(
            [
                (
                    multiply_own_tiles,
                    (ring, tiles, walk, batch, order, first, factors, K, 0, SHAPES, TRANSPOSED, FORM, VECTOR),
                ),
                (
                    multiply_own_tiles,
                    (ring, tiles, walk, batch, order, second, factors, K, 1, SHAPES, TRANSPOSED, FORM, VECTOR),
                ),
                (copy_tiles, (ring, tiles, walk, batch, K, SHAPES, TRANSPOSED)),
            ],
            [4, 1],
            [240, 24],
        )
        # fmt: on
    elif GROUPS == 2:
        # fmt: off
        gl.warp_specialize(
            [
                (multiply_share, (ring, tiles, walk, batch, first, factors, K, 0, SHAPES, TRANSPOSED, FORM, VECTOR)),
                (multiply_share, (ring, tiles, walk, batch, second, factors, K, 1, SHAPES, TRANSPOSED, FORM, VECTOR)),
                (copy_tiles, (ring, tiles, walk, batch, K, SHAPES, TRANSPOSED)),
            ],
            [4, 1],
            [240, 24],
        )
        # fmt: on
    else:
        gl.static_assert(GROUPS == 3, "two or three groups share a tile")
        third = (ways_for(c_descs, end, SIDES, PLAIN, WHOLE, FORM),) + rest
        # fmt: off
        gl.warp_specialize(
            [
                (multiply_share, (ring, tiles, walk, batch, first, factors, K, 0, SHAPES, TRANSPOSED, FORM, VECTOR)),
                (multiply_share, (ring, tiles, walk, batch, second, factors, K, 1, SHAPES, TRANSPOSED, FORM, VECTOR)),
                (multiply_share, (ring, tiles, walk, batch, third, factors, K, 2, SHAPES, TRANSPOSED, FORM, VECTOR)),
                (copy_tiles, (ring, tiles, walk, batch, K, SHAPES, TRANSPOSED)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
        # fmt: on
    ring.close()
