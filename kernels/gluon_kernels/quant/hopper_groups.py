"""Products of rows with weights of 8 or 4 bits on Hopper: groups of warps convert weights while the matrix unit multiplies.

The transposed product is computed, as in `hopper.py`: weights are the left operand, which `wgmma` reads from registers. One warp
copies bytes of weights and rows of `x` by TMA. Groups of four warps have 64 rows of weights each: DOWN groups have the rows of a tile,
and ALONG groups of each of these take steps along K in turn, whose sums meet in shared memory. A step is parts of 64 or 32 weights; a part is converted while
the one before is multiplied, also from one step to the next, so that the matrix unit has work when the next product is issued. Scales of groups along K are multiplied in
registers and rounded to the dtype of `x`, as restored weights are; scales of rows are applied to the sums. Few tiles are split along K
among programs, which add up their sums in order.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.hopper import apart
from gluon_kernels.gemm.hopper_small_m import share_of
from gluon_kernels.gemm.hopper_stream_k import (
    after,
    owner_of,
    segment_of,
)
from gluon_kernels.gemm.hopper_stream_k import share_of as steps_before
from gluon_kernels.quant.hopper import (
    bits_of,
    factor_of,
    numbers_of,
    pairs_of,
    raw_layout,
    scales_at,
)
from gluon_kernels.quant.hopper_copies import (
    BOX,
    columns_of,
    copy_tiles,
    only_place,
    place_at,
    rows_at,
    slots_of,
    wait_for_rows,
    weights_at,
)
from gluon_kernels.quant.hopper_folded import LESS, folded, folds, looked_up
from gluon_kernels.quant.hopper_sums import (
    ROWS,
    added,
    boxes,
    buffers_of,
    end_of,
    exchange_of,
    gathered,
    layout_of,
    leave,
    size_of,
    store_sums,
    store_whole,
)


@gluon.constexpr_function
def words_layout(columns):
    """Return where words of eight weights, [rows, columns, 4], are: four threads have all words of a row, and each of them its byte of these."""
    return gl.DistributedLinearLayout(
        [*([0, b, 0] for b in bits_of(columns)), [8, 0, 0]], [[0, 0, 1], [0, 0, 2], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[16, 0, 0], [32, 0, 0]], [], [64, columns, 4],
    )  # fmt: skip


@gluon.jit
def raw_of(tile, part: gl.constexpr, like, DEPTH: gl.constexpr):
    """Load a part of a tile of weights, whose length along K is that of the pairs of `like`: pairs of them, or words of eight.

    A load of 16 bytes of words for four threads takes half of the cycles of shared memory that a load of one byte for each takes.
    """
    COLUMNS: gl.constexpr = 2 * like.shape[1] * tile.shape[1] // DEPTH
    own = tile.slice(part * COLUMNS, COLUMNS, dim=1)
    if tile.dtype == gl.int32:
        layout: gl.constexpr = words_layout(COLUMNS)
        raw = own.load(gl.SliceLayout(2, layout))
    else:
        raw = own.load(like.type.layout)
    return raw


@gluon.jit
def bytes_of(words, TWICE: gl.constexpr):
    """Return the bytes of words, [rows, 4 * words of a row], where `wgmma` reads their weights; with TWICE in both halves of 32 bits."""
    layout: gl.constexpr = words_layout(words.shape[1])
    own = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    own = 0x4040 + own * 0x0101 if TWICE else 0x4440 + own  # of `prmt`: bytes, and zeros
    every, own = gl.broadcast(words[:, :, None], own[None, None, :])
    bytes = gl.inline_asm_elementwise("prmt.b32 $0, $1, 0, $2;", "=r,r,r", [every, own], gl.int32, True, 1)  # fmt: skip
    return bytes.reshape([words.shape[0], 4 * words.shape[1]])


@gluon.jit
def start(
    weights,
    dtype: gl.constexpr,
    rings,
    position,
    sums,
    part: gl.constexpr,
    KIND: gl.constexpr,
):
    """Start the products of a part of a step, pairs of `weights`, with all rows of `x`."""
    PART: gl.constexpr = 2 * weights.shape[1]
    BOXES: gl.constexpr = KIND[1]
    numbers = numbers_of(weights, dtype).reshape([ROWS, PART])
    started = ()
    for i in gl.static_range(len(sums)):
        right = (
            rows_at(rings, position, part * PART // BOX, i, KIND)
            .slice(part * PART % BOX, PART, dim=1)
            .permute((1, 0))
        )
        left = gl.convert_layout(numbers, gl.DotOperandLayout(0, layout_of(right.shape[1]), 2))
        if BOXES[i][0] == BOXES[i][1]:
            started = started + (warpgroup_mma(left, right, sums[i], is_async=True),)
        else:
            more = warpgroup_mma(left, right, sums[i], columns=BOXES[i][1], is_async=True)
            started = started + (more,)
    return started


@gluon.jit
def waited(sums, pending: gl.constexpr, weights):
    """Wait for all products but the last that are `pending`, and keep the registers of `weights` until then, which those that are over have read."""
    results = warpgroup_mma_wait(pending, deps=sums + (weights,))
    again = ()
    for i in gl.static_range(len(sums)):
        again = again + (warpgroup_mma_init(results[i]),)
    return again


@gluon.jit
def hold(weights, c, sizes):
    """Read the registers of `weights`, which products of the round of a loop before have read, for a store to `c` that never happens.

    The assembler lets products be under way at the end of a round if it knows their registers on each way to the next wait, as it does
    where something reads them there; it waits after each product otherwise.
    """
    if sizes[0] < 0:
        rows = gl.arange(0, weights.shape[0], gl.SliceLayout(1, weights.type.layout))
        columns = gl.arange(0, weights.shape[1], gl.SliceLayout(0, weights.type.layout))
        places = c.to(gl.pointer_type(gl.int32), bitcast=True) + rows[:, None]
        gl.store(places + columns[None, :], weights)


@gluon.jit
def raw_after(rings, position, part: gl.constexpr, like, down: gl.constexpr, DOWN: gl.constexpr, ALONG: gl.constexpr, DEPTH: gl.constexpr, LAST: gl.constexpr):  # fmt: skip
    """Load the part of the weights after `part` of a step, which may be the first one of the group's next step; None after the LAST step."""
    raw = None
    if (part + 1) * 2 * like.shape[1] < DEPTH:
        raw = raw_of(weights_at(rings, position, down, DOWN, False), part + 1, like, DEPTH)
    elif not LAST:
        raw = raw_of(weights_at(rings, position.next(ALONG), down, DOWN, True), 0, like, DEPTH)
    return raw


@gluon.jit
def multiply_step(
    rings, position, former, follows, weights, older, sums, factors, coming, near, c, sizes, down: gl.constexpr, KIND: gl.constexpr, LAST: gl.constexpr
):  # fmt: skip
    """Multiply the weights of a step, of which `weights` are the first part, and release the `former` step if this one `follows` it.

    Products of the last part of the former step, `older`, are under way before, and those of this step after. Two groups load the next part of 64 weights
    before products are started, so that it is there for the conversion. More groups have too few registers, and parts of 32 took longer.

    Returns:
        The sums, the last part, and the first one of the next step unless this is the LAST.
    """
    dtype: gl.constexpr = KIND[0]
    DOWN: gl.constexpr = KIND[2]
    ALONG: gl.constexpr = KIND[3]
    DEPTH: gl.constexpr = KIND[4]
    FORMAT: gl.constexpr = KIND[6]
    PARTS: gl.constexpr = DEPTH // (2 * weights.shape[1])
    EARLY: gl.constexpr = DOWN * ALONG == 2 and PARTS == 2
    wait_for_rows(rings, position)
    for part in gl.static_range(PARTS):
        if EARLY:
            raw = raw_after(rings, position, part, weights, down, DOWN, ALONG, DEPTH, LAST)
        sums = start(weights, dtype, rings, position, sums, part, KIND)
        sums = waited(sums, len(sums), older)
        if part == 0:
            hold(older, c, sizes)
            if not KIND[14]:
                rings[0].release(former, pred=follows)
        older = weights
        if not EARLY:
            raw = raw_after(rings, position, part, weights, down, DOWN, ALONG, DEPTH, LAST)
        if part + 1 < PARTS:
            weights = part_of(raw, factors, part + 1, near, weights, sizes, dtype, DEPTH, FORMAT)
        elif not LAST:
            weights = part_of(raw, coming, 0, near, weights, sizes, dtype, DEPTH, FORMAT)
    return sums, older, weights


@gluon.jit
def codes_of(raw, like, size, FORMAT: gl.constexpr):
    """Return pairs of weights, [rows, pairs], as `folded` takes them; `size` is that of `looked_up`."""
    WORDS: gl.constexpr = raw.dtype == gl.int32
    if FORMAT == "mxfp4":
        if WORDS:
            layout: gl.constexpr = words_layout(raw.shape[1])
            own = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, layout)))
            every, _ = gl.broadcast(raw[:, :, None], own[None, None, :])
        else:
            every = raw.to(gl.int32).reshape([raw.shape[0], raw.shape[1] // 4, 4])
            own = gl.full([4], 0, gl.int32, gl.SliceLayout(0, gl.SliceLayout(1, every.type.layout)))
        codes = gl.convert_layout(looked_up(every, own, size), like.type.layout)
    elif WORDS:
        codes = bytes_of(raw, True)
    else:
        codes = raw.to(gl.int32) * 0x10001 if FORMAT == "int4" else raw.to(gl.int32)
    return codes


@gluon.jit
def part_of(raw, factors, part: gl.constexpr, near, like, sizes, dtype: gl.constexpr, DEPTH: gl.constexpr, FORMAT: gl.constexpr):  # fmt: skip
    """Return a part of a tile of weights, times their scales, as pairs of floats in the layout of `like`."""
    PART: gl.constexpr = 2 * like.shape[1]
    scale = None
    if len(factors) > 0:
        scale = factors[part * len(factors) // (DEPTH // PART)]
        if len(scale.shape) == 1:  # four exponents in each element
            first: gl.constexpr = part * PART % (4 * 32) // 32 * 8
            scale = (scale[:, None] >> (first + near // 32 * 8)[None, :]).to(gl.uint8)
    if folds(dtype, dtype if scale is None else scale.dtype, FORMAT):
        codes = codes_of(raw, like, sizes[0], FORMAT)
        both = folded(codes, scale, FORMAT)
    else:
        if raw.dtype == gl.int32:
            raw = bytes_of(raw, False)
        both = pairs_of(raw, dtype, FORMAT)
        if len(factors) > 0:
            both = scaled_pairs(both, scale, dtype)
    return gl.convert_layout(both, like.type.layout)


@gluon.jit
def scaled_pairs(both, scale, dtype: gl.constexpr):
    """Return pairs of floats times their scales, [rows, groups of columns], rounded once."""
    parts = both.reshape([both.shape[0], scale.shape[1], both.shape[1] // scale.shape[1]])
    factor = factor_of(scale, dtype)
    if scale.dtype == gl.uint8 or scale.dtype == dtype:
        bits = factor.to(dtype).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
        bits = gl.convert_layout(bits * 0x10001, gl.SliceLayout(2, parts.type.layout))
        PAIR: gl.constexpr = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
        scaled = gl.inline_asm_elementwise(
            f"mul.rn.{PAIR} $0, $1, $2;", "=r,r,r", [parts, bits[:, :, None]], gl.int32, True, 1
        )
    else:
        numbers = numbers_of(parts, dtype).to(gl.float32)
        by_group: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, numbers.type.layout))
        factor = gl.convert_layout(factor.to(gl.float32), by_group)[:, :, None, None]
        low, high = gl.split((numbers * factor).to(dtype))
        low = low.to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
        scaled = low | (high.to(gl.int16, bitcast=True).to(gl.int32) << 16)
    return scaled.reshape(both.shape)


@gluon.jit
def factors_of(
    scales, strides, rows, near, k, N, K, DEPTH: gl.constexpr, PART: gl.constexpr, SIZE: gl.constexpr, WORDS: gl.constexpr
):  # fmt: skip
    """Return the scales of a step: one tensor for each part, or one for all; with WORDS four exponents in each element; none without scales."""
    factors = ()
    if scales is not None:
        if WORDS:
            words = scales.to(gl.pointer_type(gl.int32), bitcast=True)
            words += rows.to(gl.int64) * (strides[0] // 4)
            for i in gl.static_range(DEPTH // (4 * 32)):
                place = k // (4 * 32) + i
                inside = (rows < N) & (place < K // (4 * 32))
                factors = factors + (gl.load(words + place, mask=inside, other=0),)
        else:
            for part in gl.static_range(1 if SIZE % DEPTH == 0 else DEPTH // PART):
                factors = factors + (
                    scales_at(scales, strides, rows, near, k + part * PART, N, K, SIZE),
                )
    return factors


@gluon.jit
def products_of(
    c, rings, position, scales, strides, row, first, end, sizes, group: gl.constexpr, KIND: gl.constexpr
):  # fmt: skip
    """Multiply a group's rows of weights, from `row` on, with the rows of `x` of a tile, in every ALONGth step from `first` to before `end`; there is one.

    Returns:
        The sums of each part of the tile, and the group's next position.
    """
    dtype: gl.constexpr = KIND[0]
    BOXES: gl.constexpr = KIND[1]
    DOWN: gl.constexpr = KIND[2]
    ALONG: gl.constexpr = KIND[3]
    DEPTH: gl.constexpr = KIND[4]
    SIZE: gl.constexpr = KIND[5]
    FORMAT: gl.constexpr = KIND[6]
    WORDS: gl.constexpr = KIND[10]
    PART: gl.constexpr = KIND[11]
    _, N, K = sizes
    down: gl.constexpr = group % DOWN
    SCALED: gl.constexpr = PART if SIZE % PART == 0 else 32  # weights that share a scale at least
    older = gl.full([ROWS, PART // 2], 0, gl.int32, raw_layout(ROWS, PART // 2, 4))
    of_groups: gl.constexpr = gl.SliceLayout(
        2, older.reshape([ROWS, PART // SCALED, SCALED // 2]).type.layout
    )
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, of_groups))
    near = gl.arange(0, PART // SCALED, gl.SliceLayout(0, of_groups)) * SCALED
    sums = ()
    for i in gl.static_range(len(BOXES)):
        zeros = gl.zeros([ROWS, BOXES[i][0]], gl.float32, layout_of(BOXES[i][0]))
        sums = sums + (warpgroup_mma_init(zeros),)
    k = first * DEPTH
    factors = factors_of(scales, strides, rows, near, k, N, K, DEPTH, PART, SIZE, WORDS)
    k += ALONG * DEPTH
    coming = factors_of(scales, strides, rows, near, k, N, K, DEPTH, PART, SIZE, WORDS)
    data = raw_of(weights_at(rings, position, down, DOWN, True), 0, older, DEPTH)
    weights = part_of(data, factors, 0, near, older, sizes, dtype, DEPTH, FORMAT)
    former = position
    for step in range(first + ALONG, end, ALONG):
        k += ALONG * DEPTH
        later = factors_of(scales, strides, rows, near, k, N, K, DEPTH, PART, SIZE, WORDS)
        sums, older, weights = multiply_step(
            rings, position, former, step > first + ALONG, weights, older, sums, factors, coming, near, c, sizes, down, KIND, False
        )  # fmt: skip
        former = position
        position = position.next(ALONG)
        if scales is not None:
            factors = coming
            coming = later
    sums, older, _ = multiply_step(
        rings, position, former, end - first > ALONG, weights, older, sums, factors, coming, near, c, sizes, down, KIND, True
    )  # fmt: skip
    results = warpgroup_mma_wait(0, deps=sums + (older,))[: len(sums)]
    if not KIND[14]:
        rings[0].release(position)
    if folds(dtype, dtype if scales is None else scales.dtype.element_ty, FORMAT):
        results = times_each(results, LESS)
    return apart(results, BOXES), position.next(ALONG)


@gluon.jit
def times_each(values, FACTOR: gl.constexpr):
    results = ()
    for i in gl.static_range(len(values)):
        results = results + (values[i] * FACTOR,)
    return results


@gluon.jit
def multiply_tile(
    rings, position, outs, exchange, scales, strides, tile, place, first, count, sizes, group: gl.constexpr, KIND: gl.constexpr
):  # fmt: skip
    """Multiply a group's rows of weights of a tile in `count` steps from `first` on, and store their sums; return the group's next position."""
    DOWN: gl.constexpr = KIND[2]
    ALONG: gl.constexpr = KIND[3]
    c, buffers, c_row, parts, counters, of_rows = outs
    M, N, _ = sizes
    down: gl.constexpr = group % DOWN
    along: gl.constexpr = group // DOWN
    row, column = place
    row += down * ROWS
    end = end_of(of_rows, row, N, layout_of(8))
    results, position = products_of(
        c, rings, position, scales, strides, row, first + along, first + count, sizes, group, KIND
    )  # fmt: skip
    if ALONG > 1:
        results = gathered(exchange, results, group, DOWN, ALONG)
    if along == 0:
        store_sums(
            c, buffers, down, results, tile * DOWN + down, (parts, counters), (column, row), (M, N), c_row, end, of_rows, KIND[7], KIND
        )  # fmt: skip
    return position


@gluon.jit
def multiply_share(
    rings, tiles, shares, outs, exchange, scales, strides, sizes, group: gl.constexpr, KIND: gl.constexpr
):  # fmt: skip
    """Multiply a group's rows of weights of each tile of the program, or its part of their steps."""
    DOWN: gl.constexpr = KIND[2]
    DEPTH: gl.constexpr = KIND[4]
    SPLITS: gl.constexpr = KIND[7]
    c, buffers, c_row, parts, counters, of_rows = outs
    M, N, K = sizes
    down: gl.constexpr = group % DOWN
    along: gl.constexpr = group // DOWN
    steps = gl.cdiv(K, DEPTH)
    position = rings[0].consumer().next(along)
    if KIND[13]:
        first, count = share_of(steps, SPLITS)
        tile = gl.program_id(2) * gl.num_programs(1) + gl.program_id(1)
        place = only_place(KIND[15], DOWN)
        wait_for_predecessor()
        multiply_tile(
            rings, position, outs, exchange, scales, strides, tile, place, first, count, sizes, group, KIND
        )  # fmt: skip
    elif SPLITS > 0:
        wait_for_predecessor()
        for tile in range(gl.program_id(1), tiles.count(), gl.num_programs(1)):
            place = place_at(tiles, tile, DOWN, KIND[12])
            position = multiply_tile(
                rings, position, outs, exchange, scales, strides, tile, place, 0, steps, sizes, group, KIND
            )  # fmt: skip
    else:
        program = gl.program_id(0)
        begin = steps_before(program, shares, steps)
        left = steps_before(program + 1, shares, steps)
        whole = shares[0] + program
        wait_for_predecessor()
        while (left > begin) | (whole < tiles.count()):
            tile, low, high = segment_of(left, whole, begin, steps)
            row, column = place_at(tiles, tile, DOWN, KIND[12])
            row += down * ROWS
            end = end_of(of_rows, row, N, layout_of(8))
            results, position = products_of(
                c, rings, position, scales, strides, row, low, high, sizes, group, KIND
            )  # fmt: skip
            if high < steps:
                number = program * DOWN + down
                leave(parts + number.to(gl.int64) * size_of(results), results)
                gl.portable.signal(counters + number, "gpu")
            else:
                if low > 0:
                    opener = owner_of(tile * steps, shares, steps)
                    for other in range(opener, program):
                        gl.portable.wait_signal(counters + other * DOWN + down, "gpu")
                    for other in range(opener, program):
                        number = other * DOWN + down
                        results = added(parts + number.to(gl.int64) * size_of(results), results)
                store_whole(c, buffers, down, results, (column, row), (M, N), c_row, end, KIND)
            left, whole = after(left, whole, begin, tile, low, steps)


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row", "shared", "sharers"])
def linear_groups(
    w_desc, x_descs, c, sums, counters, bias, scales, strides, row_scales, M, N, K, c_row, shared, sharers,
    SIZE: gl.constexpr, FORMAT: gl.constexpr, BLOCK_M: gl.constexpr, DOWN: gl.constexpr, ALONG: gl.constexpr,
    DEPTH: gl.constexpr, PART: gl.constexpr, WORDS: gl.constexpr, ONE: gl.constexpr, ONCE: gl.constexpr, FITS: gl.constexpr, NARROW: gl.constexpr, STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `x @ weight.T + bias`: `x` is [M, K], `weight` [N, K] in bytes, of which `w_desc` reads pairs of weights, or words of eight. The grid is [parts of K, programs]; ONCE
    each program has one tile, it is [parts of K, tiles of x, tiles of weights].

    `x_descs` are those of `boxes(BLOCK_M)` rows of `x` and 64 columns; NARROW ones have `columns_of(BLOCK_M)` rows, and `boxes` has one accumulator then.
    With ONE, the only tile along M has all rows of `x`; with FITS, which is ONCE, the steps of a program are STAGES at most, so that no slot is used twice and none released. `scales` is None, or has a scale for SIZE weights along K of each row, a multiple of 32; with WORDS they are exponents of 32 weights, K is a multiple of 128 and `strides` are multiples of four and 1. `row_scales` is None, or a vector. A tile has BLOCK_M rows of `x` and DOWN * 64 of the weights; ALONG groups share its steps of DEPTH weights, 64 or
    128, of which each program of a tile has one for each of these groups at least. With ALONG or SPLITS > 1 there is a program for each tile and part: `sums` has room
    for SPLITS tiles of each tile, `counters` DOWN numbers, as in `gemm_split_k`. With SPLITS of 0 the grid is [programs]: the first `sharers` of them share
    the first `shared` tiles along K, as in `gemm_stream_k`; `sums` has room for a tile of each program, `counters` DOWN zeros.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    WIDTHS: gl.constexpr = columns_of(BLOCK_M)
    BOXES: gl.constexpr = boxes(BLOCK_M)
    dtype: gl.constexpr = x_descs[0].dtype
    if NARROW:
        rings = (
            tma_ring((w_desc,) * DOWN, STAGES, consumers=DOWN),
            slots_of(dtype, BOXES[0][0], BLOCK_M, DEPTH, STAGES),
            x_descs,
        )
    else:
        rings = (
            tma_ring((w_desc,) * DOWN + x_descs * (DEPTH // BOX), STAGES, consumers=DOWN),
            (),
            x_descs,
        )
    exchange = exchange_of(WIDTHS, DOWN, ALONG)
    tiles = gl.portable.swizzled_tiles([N, M], [DOWN * ROWS, BLOCK_M], 8)
    buffers = buffers_of(c.dtype.element_ty, WIDTHS, DOWN, SPLITS)
    outs = (c, buffers, c_row, sums, counters, (row_scales, bias))
    sizes = (M, N, K)
    shares = (shared, sharers)
    KIND: gl.constexpr = (
        dtype, BOXES, DOWN, ALONG, DEPTH, SIZE, FORMAT, SPLITS, VECTOR, ACTIVATION, WORDS, PART, ONE, ONCE, FITS, BLOCK_M
    )  # fmt: skip
    if DOWN * ALONG == 2:
        gl.warp_specialize(
            [
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 0, KIND)),
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 1, KIND)),
                (copy_tiles, (rings, tiles, shares, K, KIND)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    elif DOWN * ALONG == 3:
        gl.warp_specialize(
            [
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 0, KIND)),
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 1, KIND)),
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 2, KIND)),
                (copy_tiles, (rings, tiles, shares, K, KIND)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )  # fmt: skip
    else:
        gl.static_assert(DOWN * ALONG == 4, "two, three or four groups share a tile")
        gl.warp_specialize(
            [
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 0, KIND)),
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 1, KIND)),
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 2, KIND)),
                (multiply_share, (rings, tiles, shares, outs, exchange, scales, strides, sizes, 3, KIND)),
                (copy_tiles, (rings, tiles, shares, K, KIND)),
            ],
            [4, 4, 4, 1],
            [112, 112, 112, 24],
        )  # fmt: skip
