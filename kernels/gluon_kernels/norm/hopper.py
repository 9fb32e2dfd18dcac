"""Long rows on Hopper: the blocks of a cluster share a row, and their warps exchange numbers once through each other's shared memory.

A warp reduces its elements without the others and sends two numbers to each block of the
cluster (`st.async`), which counts their bytes at a barrier of its own; so a row costs one exchange, and no block waits for its own warps alone. The
elements stay in registers as they were loaded: exponentials are computed twice, so that more blocks fit on a multiprocessor.

The columns of a row are dealt to the warps of all blocks in runs of SPAN, PIECES times: tiles are [WARPS, SPAN], a row of a tile for each warp.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.rows import row_start

LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)
LOWEST: gl.constexpr = gl.constexpr(-3.3e38)  # a maximum that can be subtracted


@gluon.constexpr_function
def begin_text(warps):
    """Return PTX that gives the address of a barrier for the numbers of `warps` warps, which follow it at 16 bytes.

    The barrier is there for the other blocks once they have passed the cluster's barrier, at which all threads arrive here and wait in `send_text`.
    Source: PTX ISA, 9.7.13.15 (mbarrier), 9.7.13.3 (barrier.cluster).
    """
    return f"""{{
	.reg .pred first;
	.reg .b32 thread;
	.shared .align 16 .b8 exchanged[{16 + 8 * warps}];
	mov.u32 $0, exchanged;
	mov.u32 thread, %tid.x;
	setp.eq.u32 first, thread, 0;
	@first mbarrier.init.shared::cta.b64 [$0], 1;
	@first fence.mbarrier_init.release.cluster;
	@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {8 * warps};
	barrier.cluster.arrive.relaxed.aligned;
}}"""


@gluon.constexpr_function
def send_text(blocks, warps):
    """Return PTX by which each warp sends $1 and $2 to all blocks, and waits for the numbers of all `warps` warps of the cluster.

    Source: PTX ISA, 9.7.9.10 (st.async), 9.7.9.25 (mapa).
    """
    return f"""{{
	.reg .pred one, done;
	.reg .b32 lane, place, rank, slot, there, barrier;
	.reg .b64 both;
	mov.u32 lane, %laneid;
	mov.u32 place, %tid.x;
	shr.u32 place, place, 5;
	mov.u32 rank, %cluster_ctarank;
	mad.lo.u32 place, rank, {warps // blocks}, place;
	shl.b32 place, place, 3;
	add.u32 slot, place, $3;
	add.u32 slot, slot, 16;
	setp.lt.u32 one, lane, {blocks};
	mapa.shared::cluster.u32 there, slot, lane;
	mapa.shared::cluster.u32 barrier, $3, lane;
	mov.b64 both, {{$1, $2}};
	barrier.cluster.wait.acquire.aligned;
	@one st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], both, [barrier];
wait:
	mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$3], 0;
	@!done bra wait;
	mov.b32 $0, 0;
}}"""


@gluon.jit
def begin_exchange(WARPS: gl.constexpr):
    """Return the address of the block's barrier, for `exchange`; all threads of the cluster call it, once, before they load."""
    return gl.inline_asm_elementwise(begin_text(WARPS), "=r,r", [0], gl.int32, False, 1)


@gluon.jit
def exchange(barrier, one, other, BLOCKS: gl.constexpr, WARPS: gl.constexpr):
    """Return two numbers of all warps of the cluster, float32 [WARPS] each, from those of each warp, [WARPS] in parts."""
    gl.inline_asm_elementwise(
        send_text(BLOCKS, WARPS), "=r,r,r,r", [one, other, barrier], gl.int32, False, 1
    )
    each: gl.constexpr = max(1, WARPS // 32)
    every: gl.constexpr = [[0]] * (BLOCKS.bit_length() - 1)  # each block has all
    layout: gl.constexpr = gl.BlockedLayout([each], [32], [gl.num_warps()], [0], every)
    slot = barrier + 16 + 8 * gl.arange(0, WARPS, layout)
    return gl.inline_asm_elementwise(
        "ld.shared.v2.f32 {$0, $1}, [$2];", "=f,=f,r", [slot], (gl.float32, gl.float32), False, 1
    )


@gluon.jit
def columns_of(i: gl.constexpr, columns, ALIGN: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """Return the columns of tile `i`, [WARPS, SPAN], and which exist."""
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, layout))
    column = gl.arange(0, SPAN, gl.SliceLayout(0, layout))
    place = (i * WARPS + warp)[:, None] * SPAN + column[None, :]
    return place, place < columns // ALIGN * ALIGN


@gluon.jit
def load_row(
    src, row, columns, stride, other, ALIGN: gl.constexpr, PIECES: gl.constexpr, WARPS: gl.constexpr,
    SPAN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return the tiles of a row, [WARPS, SPAN] each; `other` where there is no element."""
    start = row_start(src, row, stride // ALIGN * ALIGN)
    pieces = ()
    for i in gl.static_range(PIECES):
        place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
        pieces = pieces + (gl.portable.load(start, place, inside, other),)
    return pieces


@gluon.jit
def cluster_softmax(
    src, dst, sums, arrived, rows, columns, src_stride, dst_stride, ALIGN: gl.constexpr, PIECES: gl.constexpr,
    BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax`, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    pieces = load_row(src, row, columns, src_stride, -float("inf"), ALIGN, PIECES, WARPS, SPAN, layout)  # fmt: skip
    most = pieces[0]
    for i in gl.static_range(1, PIECES):
        most = gl.maximum(most, pieces[i])
    most = gl.maximum(gl.max(most.to(gl.float32), 1), LOWEST)
    total = gl.zeros([WARPS, SPAN], gl.float32, layout)
    for i in gl.static_range(PIECES):
        total += gl.exp2((pieces[i].to(gl.float32) - most[:, None]) * LOG2E)
    of_all, totals = exchange(barrier, most, gl.sum(total, 1), BLOCKS, WARPS)
    highest = gl.max(of_all, 0)
    scale = 1 / gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0)
    start = row_start(dst, row, dst_stride // ALIGN * ALIGN)
    for i in gl.static_range(PIECES):
        place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
        value = gl.exp2((pieces[i].to(gl.float32) - highest) * LOG2E) * scale
        gl.portable.store(start, place, value, inside)


@gluon.jit
def cluster_softmax_backward(
    grad, result, dst, sums, arrived, rows, columns, grad_stride, result_stride, dst_stride,
    ALIGN: gl.constexpr, PIECES: gl.constexpr, BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax_backward`, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    gs = load_row(grad, row, columns, grad_stride, 0, ALIGN, PIECES, WARPS, SPAN, layout)
    ys = load_row(result, row, columns, result_stride, 0, ALIGN, PIECES, WARPS, SPAN, layout)
    total = gl.zeros([WARPS, SPAN], gl.float32, layout)
    for i in gl.static_range(PIECES):
        total += gs[i].to(gl.float32) * ys[i].to(gl.float32)
    along = gl.sum(total, 1)
    parts, _ = exchange(barrier, along, along, BLOCKS, WARPS)
    shift = gl.sum(parts, 0)
    start = row_start(dst, row, dst_stride // ALIGN * ALIGN)
    for i in gl.static_range(PIECES):
        place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
        value = ys[i].to(gl.float32) * (gs[i].to(gl.float32) - shift)
        gl.portable.store(start, place, value, inside)


@gluon.jit
def cluster_norm(
    src, weight, bias, dst, residual, summed, statistics, sums, arrived, rows, columns, src_stride, dst_stride,
    residual_stride, epsilon, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PIECES: gl.constexpr,
    BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.norm` without a residual, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    pieces = load_row(src, row, columns, src_stride, 0, ALIGN, PIECES, WARPS, SPAN, layout)
    of_warps: gl.constexpr = gl.SliceLayout(1, layout)
    middle = gl.zeros([WARPS], gl.float32, of_warps)
    if CENTRED:  # squares are summed relative to the mean of the warp
        total = gl.zeros([WARPS, SPAN], gl.float32, layout)
        for i in gl.static_range(PIECES):
            total += pieces[i].to(gl.float32)
        held = columns_of_warp(gl.arange(0, WARPS, of_warps), columns, PIECES, WARPS, SPAN)
        middle = gl.sum(total, 1) / gl.maximum(held, 1.0)
    square = gl.zeros([WARPS, SPAN], gl.float32, layout)
    for i in gl.static_range(PIECES):
        x = pieces[i].to(gl.float32) - middle[:, None]
        if CENTRED:
            _, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
            x = gl.where(inside, x, 0.0)
        square += x * x
    means, squares = exchange(barrier, middle, gl.sum(square, 1), BLOCKS, WARPS)
    centre = 0.0
    if CENTRED:
        held = columns_of_warp(gl.arange(0, WARPS, means.type.layout), columns, PIECES, WARPS, SPAN)
        centre = gl.sum(means * held, 0) / columns
        squares += held * (means - centre) * (means - centre)
    spread = gl.rsqrt(gl.sum(squares, 0) / columns + epsilon)
    if statistics is not None:
        gl.store(statistics + row, spread)
        if CENTRED:
            gl.store(statistics + rows + row, centre)
    start = row_start(dst, row, dst_stride // ALIGN * ALIGN)
    for i in gl.static_range(PIECES):
        place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
        value = (pieces[i].to(gl.float32) - centre) * spread
        if weight is not None:
            value = value * gl.portable.load(weight, place, inside).to(gl.float32)
        if bias is not None:
            value = value + gl.portable.load(bias, place, inside).to(gl.float32)
        gl.portable.store(start, place, value, inside)


@gluon.jit
def columns_of_warp(warp, columns, PIECES: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr):
    """Return how many columns of a row each warp has, float32."""
    held = warp * 0
    for i in gl.static_range(PIECES):
        held += gl.maximum(gl.minimum(columns - (i * WARPS + warp) * SPAN, SPAN), 0)
    return held.to(gl.float32)
