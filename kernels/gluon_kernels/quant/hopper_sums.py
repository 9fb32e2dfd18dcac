"""Sums of the products of `hopper_groups.py`: they meet across groups of warps and across programs, and are stored.

Groups that take steps along K in turn add their sums in shared memory; programs that share a tile add theirs in memory, in order, so that equal
inputs give equal bits. The last to add scales the sums, adds the bias, and stores them as columns of the result.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_kernels.gemm.epilogue import activation, store_part, stored_rows
from gluon_kernels.gemm.hopper import boxes as boxes_of
from gluon_kernels.gemm.hopper_small_m import arrive, wait_for_all
from gluon_kernels.gemm.hopper_stream_k import places_of

ROWS = gl.constexpr(64)  # of weights, of a group of warps


@gluon.constexpr_function
def layout_of(width):
    """Return the layout of the sums of a group's rows of weights with `width` rows of `x`."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])


@gluon.constexpr_function
def boxes(block):
    """Return the accumulators of the rows of `x` of a tile, as those of other products, or one of which up to a fifth is in vain."""
    width = 1 << (block - 1).bit_length()
    return ((width, block),) if width - block <= block // 4 else boxes_of(block)


@gluon.jit
def in_fours(sums):
    """Return [rows, columns] of a product as [fours, 4]: a thread has two adjacent columns of two rows eight apart (PTX ISA, wgmma, fragments of D)."""
    COLUMNS: gl.constexpr = sums.shape[1]
    fragments = sums.reshape([ROWS // 16, 2, 8, COLUMNS // 8, 4, 2]).permute((3, 0, 2, 4, 1, 5))
    return fragments.reshape([ROWS * COLUMNS // 4, 4])


@gluon.jit
def out_of_fours(fours, like):
    """Return the product of which `fours` are the numbers, in the layout of `like`."""
    COLUMNS: gl.constexpr = like.shape[1]
    fragments = fours.reshape([COLUMNS // 8, ROWS // 16, 8, 4, 2, 2]).permute((1, 4, 2, 0, 3, 5))
    return gl.convert_layout(fragments.reshape(like.shape), like.type.layout)


@gluon.jit
def places_of_fours(parts, fours):
    layout: gl.constexpr = fours.type.layout
    first = gl.arange(0, fours.shape[0], gl.SliceLayout(1, layout)) * 4
    return parts + first[:, None] + gl.arange(0, 4, gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def leave(parts, sums):
    """Store the sums of a segment for the program that has the end of the tile, 16 bytes of a thread at a time."""
    for i in gl.static_range(len(sums)):
        fours = in_fours(sums[i])
        gl.store(places_of_fours(parts, fours), fours)
        parts += sums[i].shape[0] * sums[i].shape[1]


@gluon.jit
def added(parts, sums):
    """Return sums with those that another program left."""
    totals = ()
    for i in gl.static_range(len(sums)):
        fours = in_fours(sums[i])
        fours += gl.load(places_of_fours(parts, fours), cache_modifier=".cg")
        totals = totals + (out_of_fours(fours, sums[i]),)
        parts += sums[i].shape[0] * sums[i].shape[1]
    return totals


@gluon.constexpr_function
def shared_of(width):
    """Return a layout in which the rows of the sums of a warp are in different banks."""
    return gl.SwizzledSharedLayout(8, 1, min(8, width // 8), [1, 0])


@gluon.jit
def exchange_of(WIDTHS: gl.constexpr, DOWN: gl.constexpr, ALONG: gl.constexpr):
    """Allocate memory for the sums of the groups that share rows, and a barrier for each of these rows."""
    buffers = ()
    if ALONG > 1:
        for i in gl.static_range(len(WIDTHS)):
            buffers = buffers + (
                gl.allocate_shared_memory(gl.float32, [(ALONG - 1) * DOWN, ROWS, WIDTHS[i]], shared_of(WIDTHS[i])),
            )  # fmt: skip
    barriers = mbarrier.allocate_mbarrier(batch=DOWN)
    for i in gl.static_range(DOWN):
        mbarrier.init(barriers.index(i), max(ALONG - 1, 1))
    return buffers, barriers


@gluon.jit
def gathered(exchange, sums, group: gl.constexpr, DOWN: gl.constexpr, ALONG: gl.constexpr):
    """Return the sums of all groups that share rows, in the first of these; the others leave theirs."""
    buffers, barriers = exchange
    down: gl.constexpr = group % DOWN
    along: gl.constexpr = group // DOWN
    if along > 0:
        for i in gl.static_range(len(sums)):
            buffers[i].index((along - 1) * DOWN + down).store(sums[i])
        gl.barrier()  # all of the group have stored before it arrives
        mbarrier.arrive(barriers.index(down))
        totals = sums
    else:
        mbarrier.wait(barriers.index(down), 0)
        totals = ()
        for i in gl.static_range(len(sums)):
            total = sums[i]
            for other in gl.static_range(ALONG - 1):
                total += buffers[i].index(other * DOWN + down).load(total.type.layout)
            totals = totals + (total,)
    return totals


@gluon.constexpr_function
def adders(splits, width):
    """Return how many of the programs of a tile add up, a power of two of them: each a share of its rows of `x`, of 8 at least."""
    return min(width // 8, 1 << (splits.bit_length() - 1))


@gluon.constexpr_function
def size_of(values):
    return sum(value.shape[0] * value.shape[1] for value in values)


@gluon.jit
def end_of(of_rows, row, N, layout: gl.constexpr):
    """Return the scales and the bias of a group's rows of weights, from `row` on, along the rows of `layout`: tuples, empty where there is none.

    They are loaded before the products of a tile: after them a processor would wait for memory.
    """
    row_scales, bias = of_rows
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    factor = ()
    if row_scales is not None:
        factor = (gl.load(row_scales + rows, mask=rows < N, other=0),)
    more = ()
    if bias is not None:
        more = (gl.load(bias + rows, mask=rows < N, other=0),)
    return factor, more


@gluon.jit
def finished(value, end, dtype: gl.constexpr, ACTIVATION: gl.constexpr):
    """Return sums, [rows of weights, rows of `x`], times their scales, with bias and activation."""
    along: gl.constexpr = gl.SliceLayout(1, value.type.layout)
    factor, more = end
    for i in gl.static_range(len(factor)):
        value = value * gl.convert_layout(factor[i].to(gl.float32), along)[:, None]
    for i in gl.static_range(len(more)):
        value = value + gl.convert_layout(more[i].to(gl.float32), along)[:, None]
    if ACTIVATION is not None:
        value = activation(ACTIVATION)(value)
    return value.to(dtype)


@gluon.constexpr_function
def at_once(widths):
    """Return how many parts of a tile pass shared memory at a time: all, if they are small."""
    return len(widths) if sum(widths) <= 128 else 1


@gluon.jit
def buffers_of(dtype: gl.constexpr, WIDTHS: gl.constexpr, DOWN: gl.constexpr, SPLITS: gl.constexpr):
    """Allocate memory through which each group's results of 16 bits are transposed, if it stores whole sums: [groups, rows of `x`, rows of weights]
    of the parts that pass it at a time."""
    buffers = ()
    if dtype.primitive_bitwidth == 16 and SPLITS <= 1:
        for i in gl.static_range(at_once(WIDTHS)):
            buffers = buffers + (
                gl.allocate_shared_memory(
                    dtype, [DOWN, WIDTHS[i], ROWS], gl.NVMMASharedLayout.get_default_for([WIDTHS[i], ROWS], dtype)
                ),
            )  # fmt: skip
    return buffers


@gluon.jit
def store_whole(
    c, buffers, down: gl.constexpr, values, place, sizes, stride, end, KIND: gl.constexpr
):
    """Store the transposed sums of a group's rows, each part of the tile; those of 16 bits through the group's ones of the `buffers`."""
    wide: gl.constexpr = stored_rows(ROWS, KIND[8], 32, gl.num_warps())
    top = place[0]
    if len(buffers) > 1:
        for i in gl.static_range(len(values)):
            value = finished(values[i], end, c.dtype.element_ty, KIND[9])
            buffers[i].index(down).store(gl.permute(value, (1, 0)))
        for i in gl.static_range(len(values)):
            result = buffers[i].index(down).load(wide)
            store_part(c, result, top, place[1], sizes, stride, None, False, KIND[8])
            top += result.shape[0]
    else:
        for i in gl.static_range(len(values)):
            value = finished(values[i], end, c.dtype.element_ty, KIND[9])
            result = gl.permute(value, (1, 0))
            if len(buffers) > 0:
                tile = buffers[0].index(down).slice(0, result.shape[0], dim=0)
                tile.store(result)
                result = tile.load(wide)
            store_part(c, result, top, place[1], sizes, stride, None, False, KIND[8])
            top += result.shape[0]


@gluon.jit
def store_sums(c, buffers, down: gl.constexpr, values, number, scratch, place, sizes, stride, end, of_rows, SPLITS: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    """Store the transposed sums of a group's rows, or add up those of all programs of the tile, each a share of the rows of `x`.

    Args:
        values: [rows of weights, rows of `x`] of each part of the tile.
        number: of the tile and the group.
        scratch: memory for the sums of each program of each tile, and zeros by which they wait for each other, as in `gemm_split_k`.
        place: the first row of `x`, and the first of the weights.
        c, sizes, stride: those of `store_part`.
        end: that of `end_of` for the layout of `values`.
    """
    if SPLITS == 1:
        store_whole(c, buffers, down, values, place, sizes, stride, end, KIND)
    else:
        part = gl.program_id(0)
        parts = scratch[0] + number.to(gl.int64) * (SPLITS * size_of(values))
        left = sizes[0] - place[0]
        mine = parts
        for i in gl.static_range(len(values)):
            value = values[i]
            columns = gl.arange(0, value.shape[1], gl.SliceLayout(0, value.type.layout))
            own = mine + part * (value.shape[0] * value.shape[1])
            gl.store(places_of(own, value), value, mask=(columns // 8 * 8 < left)[None, :])
            mine += SPLITS * (value.shape[0] * value.shape[1])
            left -= value.shape[1]
        wide: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [4, 1], [1, 0])
        again = end_of(of_rows, place[1], sizes[1], wide)
        before = arrive(scratch[1] + number, SPLITS)
        if part < adders(SPLITS, values[0].shape[1]):
            wait_for_all(scratch[1] + number, before, SPLITS)
            totals = ()  # all parts are loaded before the first one is stored: no load passes a store before it
            top = place[0]
            for i in gl.static_range(len(values)):
                totals = totals + (summed(parts, values[i], sizes[0] - top, wide, SPLITS),)
                parts += SPLITS * (values[i].shape[0] * values[i].shape[1])
                top += values[i].shape[1]
            top = place[0]
            for i in gl.static_range(len(values)):
                if part < adders(SPLITS, values[i].shape[1]):
                    result = finished(totals[i], again, c.dtype.element_ty, KIND[9])
                    begin = top + part * totals[i].shape[1]
                    store_part(c, gl.permute(result, (1, 0)), begin, place[1], sizes, stride, None, False, KIND[8])  # fmt: skip
                top += values[i].shape[1]


@gluon.jit
def summed(parts, like, left, wide: gl.constexpr, SPLITS: gl.constexpr):
    """Return the sums of a share of the columns of `like`, which `parts` has of each program. `left` rows of `x` are inside from its first column on.

    Programs without a share, where columns are few, load nothing.
    """
    DOWN: gl.constexpr = like.shape[0]
    ADDERS: gl.constexpr = adders(SPLITS, like.shape[1])
    SHARE: gl.constexpr = like.shape[1] // ADDERS
    begin = gl.program_id(0) * SHARE
    rows = gl.arange(0, DOWN, gl.SliceLayout(1, wide)) * 8
    columns = begin + gl.arange(0, SHARE, gl.SliceLayout(0, wide))
    inside = ((columns // 8 * 8 < left) & (gl.program_id(0) < ADDERS))[None, :]
    total = gl.zeros([DOWN, SHARE], gl.float32, wide)
    # Those of `places_of`.
    places = parts + rows[:, None] + (columns // 8 * (8 * DOWN) + columns % 8)[None, :]
    for split in gl.static_range(SPLITS):
        total += gl.load(places + split * (DOWN * like.shape[1]), mask=inside, other=0.0)
    return total
