"""Long rows on Hopper: the blocks of a cluster share a row, and their warps exchange numbers once through each other's shared memory.

A warp reduces its elements without the others and sends two numbers to each block of the
cluster (`st.async`), which counts their bytes at a barrier of its own; so a row costs one exchange, and no block waits for its own warps alone. The
elements stay in registers as they were loaded: exponentials are computed twice, so that more blocks fit on a multiprocessor.

The columns of a row are dealt to the warps of all blocks in runs of SPAN, PIECES times: tiles are [WARPS, SPAN], a row of a tile for each warp. EVEN says
that no run goes beyond the row.
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
def load_columns(
    start, i: gl.constexpr, columns, other, ALIGN: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return tile `i` of a row; `other` where there is no element."""
    place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
    if EVEN:
        value = gl.load(start + place)
    else:
        value = gl.load(start + place, mask=inside, other=other)
    return value


@gluon.jit
def store_columns(
    start, i: gl.constexpr, value, columns, ALIGN: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store tile `i` of a row."""
    place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
    if EVEN:
        gl.store(start + place, value.to(start.dtype.element_ty))
    else:
        gl.store(start + place, value.to(start.dtype.element_ty), mask=inside)


@gluon.jit
def load_row(
    src, row, columns, stride, other, ALIGN: gl.constexpr, PIECES: gl.constexpr, WARPS: gl.constexpr,
    SPAN: gl.constexpr, EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return the tiles of a row, [WARPS, SPAN] each; `other` where there is no element."""
    start = row_start(src, row, stride // ALIGN * ALIGN)
    pieces = ()
    for i in gl.static_range(PIECES):
        piece = load_columns(start, i, columns, other, ALIGN, WARPS, SPAN, EVEN, layout)
        pieces = pieces + (piece,)
    return pieces


@gluon.jit
def exponent_of(most):
    """Return `factor` and `low`, such that exp2(x * factor - low) is exp(x - most) but for `rest`, one for all x: exp2(-rest) makes up for it.

    A fused multiply-add rounds x * log2(e) - low once, however `low` was rounded. Beyond 2^30 numbers differ by 64 at least, whose exponentials are 0 or 1
    with any factor; there 1 keeps `rest` from growing.
    """
    factor = gl.where(gl.abs(most) < 1073741824.0, LOG2E, 1.0)
    low = most * factor
    return factor, low, gl.fma(most, factor, 0.0 - low)


@gluon.jit
def raised(x, factor, low):
    """Return exp2(x * factor - low) of a tile in float32; `factor` and `low` have its shape, or are numbers."""
    zeros = gl.zeros(x.shape, gl.float32, x.type.layout)
    return gl.exp2(gl.fma(x.to(gl.float32), zeros + factor, zeros - low))


@gluon.jit
def cluster_softmax(
    src, dst, sums, arrived, rows, columns, src_stride, dst_stride, ALIGN: gl.constexpr, PIECES: gl.constexpr,
    BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax`, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    pieces = load_row(src, row, columns, src_stride, -float("inf"), ALIGN, PIECES, WARPS, SPAN, EVEN, layout)  # fmt: skip
    most = pieces[0]
    for i in gl.static_range(1, PIECES):
        most = gl.maximum(most, pieces[i])
    most = gl.maximum(gl.max(most.to(gl.float32), 1), LOWEST)
    factor, low, rest = exponent_of(most)
    total = gl.zeros([WARPS, SPAN], gl.float32, layout)
    for i in gl.static_range(PIECES):
        total += raised(pieces[i], factor[:, None], low[:, None])
    of_warp = gl.sum(total, 1) * gl.exp2(0.0 - rest)
    of_all, totals = exchange(barrier, most, of_warp, BLOCKS, WARPS)
    highest = gl.max(of_all, 0)
    factor, low, rest = exponent_of(highest)
    scale = gl.exp2(0.0 - rest) / gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0)
    start = row_start(dst, row, dst_stride // ALIGN * ALIGN)
    for i in gl.static_range(PIECES):
        value = raised(pieces[i], factor, low) * scale
        store_columns(start, i, value, columns, ALIGN, WARPS, SPAN, EVEN, layout)


@gluon.jit
def cluster_softmax_backward(
    grad, result, dst, sums, arrived, rows, columns, grad_stride, result_stride, dst_stride,
    ALIGN: gl.constexpr, PIECES: gl.constexpr, BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax_backward`, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    gs = load_row(grad, row, columns, grad_stride, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    ys = load_row(result, row, columns, result_stride, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    total = gl.zeros([WARPS, SPAN], gl.float32, layout)
    for i in gl.static_range(PIECES):
        total += gs[i].to(gl.float32) * ys[i].to(gl.float32)
    along = gl.sum(total, 1)
    parts, _ = exchange(barrier, along, along, BLOCKS, WARPS)
    shift = gl.sum(parts, 0)
    start = row_start(dst, row, dst_stride // ALIGN * ALIGN)
    for i in gl.static_range(PIECES):
        value = ys[i].to(gl.float32) * (gs[i].to(gl.float32) - shift)
        store_columns(start, i, value, columns, ALIGN, WARPS, SPAN, EVEN, layout)


@gluon.jit
def cluster_norm(
    src, weight, bias, dst, residual, summed, statistics, sums, arrived, rows, columns, src_stride, dst_stride,
    residual_stride, epsilon, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PIECES: gl.constexpr,
    BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.norm` without a residual, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    pieces = load_row(src, row, columns, src_stride, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
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
        if CENTRED and not EVEN:
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
        value = (pieces[i].to(gl.float32) - centre) * spread
        if weight is not None:
            more = load_columns(weight, i, columns, 0, ALIGN, WARPS, SPAN, EVEN, layout)
            value = value * more.to(gl.float32)
        if bias is not None:
            more = load_columns(bias, i, columns, 0, ALIGN, WARPS, SPAN, EVEN, layout)
            value = value + more.to(gl.float32)
        store_columns(start, i, value, columns, ALIGN, WARPS, SPAN, EVEN, layout)


@gluon.jit
def columns_of_warp(warp, columns, PIECES: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr):
    """Return how many columns of a row each warp has, float32."""
    held = warp * 0
    for i in gl.static_range(PIECES):
        held += gl.maximum(gl.minimum(columns - (i * WARPS + warp) * SPAN, SPAN), 0)
    return held.to(gl.float32)
