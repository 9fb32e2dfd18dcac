"""Long rows on Hopper: the blocks of a cluster share a row, and their warps exchange numbers once through each other's shared memory.

A warp reduces its elements without the others and sends two numbers to each block of the
cluster (`st.async`), which counts their bytes at a barrier of its own; so a row costs one exchange, and no block waits for its own warps alone. The
elements stay in registers as they were loaded: exponentials are computed twice, so that more blocks fit on a multiprocessor.

With ODD, rows begin anywhere, and their tiles are those of the body, see `odd`; the first warp of the cluster counts the edges, whose numbers all warps load.

The columns of a row are dealt to the warps of all blocks in runs of SPAN, PIECES times: tiles are [WARPS, SPAN], a row of a tile for each warp. EVEN says
that no run goes beyond the row.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.odd import (
    body_of,
    body_start,
    edge_layout,
    edges_of,
    load_shifted,
    with_vectors,
)
from gluon_kernels.norm.portable import (
    LOG2E,
    LOWEST,
    anew,
    exponent_of,
    exponential_sums,
    exponentials,
    largest,
    raised,
)
from gluon_kernels.norm.rows import row_start


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
def copy_vector(
    vector, columns, ALIGN: gl.constexpr, PIECES: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Start copying the block's columns of a vector that all rows share, and return where they will be; each thread copies what it reads."""
    smem = gl.allocate_shared_memory(
        vector.dtype.element_ty, [PIECES, WARPS, SPAN], shared_columns(layout)
    )
    for i in gl.static_range(PIECES):
        place, inside = columns_of(i, columns, ALIGN, WARPS, SPAN, layout)
        gl.nvidia.ampere.async_copy.async_load(smem.index(i), vector + place, mask=inside)
    gl.nvidia.ampere.async_copy.commit_group()
    return smem


@gluon.jit
def vector_columns(
    vector, i: gl.constexpr, columns, AHEAD: gl.constexpr, ALIGN: gl.constexpr, WARPS: gl.constexpr,
    SPAN: gl.constexpr, EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return tile `i` of a vector that all rows share, float32: from the copy in shared memory, or from the vector itself."""
    if AHEAD:
        value = vector.index(i).load(layout)
    else:
        value = load_columns(vector, i, columns, 0, ALIGN, WARPS, SPAN, EVEN, layout)
    return value.to(gl.float32)


@gluon.constexpr_function
def shared_columns(layout):
    """Return the plain layout of tiles in shared memory, a part of each block's own."""
    return gl.SwizzledSharedLayout(1, 1, 1, [1, 0], layout.cga_layout)


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
def start_of(pointer, row, stride, before, ALIGN: gl.constexpr, ODD: gl.constexpr):
    """Return a pointer to the tiles of a row."""
    if ODD:
        start = body_start(pointer, row, stride, before, ALIGN)
    else:
        start = row_start(pointer, row, stride // ALIGN * ALIGN)
    return start


@gluon.jit
def load_row(
    start, columns, other, ALIGN: gl.constexpr, PIECES: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Return the tiles of a row, [WARPS, SPAN] each; `other` where there is no element."""
    pieces = ()
    for i in gl.static_range(PIECES):
        piece = load_columns(start, i, columns, other, ALIGN, WARPS, SPAN, EVEN, layout)
        pieces = pieces + (piece,)
    return pieces


@gluon.jit
def edges_of_row(src, row, stride, before, body, columns, other, ALIGN: gl.constexpr, BLOCKS: gl.constexpr):  # fmt: skip
    """Return the edges of a row in float32, `other` where there is no element, their columns, which exist, and which of them this block stores."""
    every: gl.constexpr = [[0, 0]] * (BLOCKS.bit_length() - 1)  # each block has all
    edges: gl.constexpr = edge_layout([1, gl.num_warps()], gl.target.warp_size(), every)
    place, inside = edges_of(before, body, columns, 0, ALIGN, edges)
    edge = gl.load(row_start(src, row, stride) + place, mask=inside, other=other).to(gl.float32)
    rank = gl.inline_asm_elementwise(
        "mov.u32 $0, %cluster_ctarank;", "=r,r", [0], gl.int32, True, 1
    )
    return edge, place, inside, inside & (rank == 0)


@gluon.jit
def cluster_cross_entropy(
    src, labels, loss, logsum, rows, columns, src_stride, label_stride, ignored, ALIGN: gl.constexpr,
    PIECES: gl.constexpr, BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, EVEN: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.cross_entropy`, a row for each cluster; without a mean."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    label = gl.load(labels + row.to(gl.int64) * label_stride)
    counts = label != ignored
    known = counts & (label >= 0) & (label < columns)
    hit = gl.load(row_start(src, row, src_stride) + label, mask=known, other=float("nan"))
    start = row_start(src, row, src_stride // ALIGN * ALIGN)
    pieces = load_row(start, columns, -float("inf"), ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    most = largest(pieces, PIECES)
    of_warp = exponential_sums(pieces, most, PIECES)
    of_all, totals = exchange(barrier, most, of_warp, BLOCKS, WARPS)
    highest = gl.max(of_all, 0)
    normal = highest + gl.log(gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0))
    gl.store(loss + row, gl.where(counts, normal - hit.to(gl.float32), 0.0))
    if logsum is not None:
        gl.store(logsum + row, normal)


@gluon.jit
def cluster_softmax(
    src, dst, sums, arrived, rows, columns, src_stride, dst_stride, ALIGN: gl.constexpr, PIECES: gl.constexpr,
    BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr, EVEN: gl.constexpr, layout: gl.constexpr,
    ODD: gl.constexpr, KEEP: gl.constexpr, ANEW: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax`, a row for each cluster; `sums` and `arrived` are not used.

    With KEEP, threads keep exponentials in float32; else they raise their elements a second time, which keep half of the registers.
    """
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    before, body = 0, columns
    low = -float("inf")
    if ODD:
        before, body = body_of(row, columns, src_stride, ALIGN, 0)
        edge, place, _, own = edges_of_row(src, row, src_stride, before, body, columns, low, ALIGN, BLOCKS)  # fmt: skip
    start = start_of(src, row, src_stride, before, ALIGN, ODD)
    pieces = load_row(start, body, low, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    most = largest(pieces, PIECES)
    if ANEW:
        pieces = anew(pieces, columns, PIECES)
    if ODD:
        highest = gl.maximum(gl.max(gl.max(edge, 1), 0), LOWEST)
        first = gl.arange(0, WARPS, most.type.layout) == 0
        most = gl.where(first, gl.maximum(most, highest), most)
        sum_of_edges = gl.sum(gl.sum(gl.exp2((edge - highest) * LOG2E), 1), 0)
        of_edges = gl.where(first, sum_of_edges * gl.exp2((highest - most) * LOG2E), 0.0)
    if KEEP:
        kept, of_warp, correction = exponentials(pieces, most, PIECES)
        of_warp *= correction
    else:
        of_warp = exponential_sums(pieces, most, PIECES)
    if ODD:
        of_warp += of_edges
    of_all, totals = exchange(barrier, most, of_warp, BLOCKS, WARPS)
    highest = gl.max(of_all, 0)
    factor, low, rest = exponent_of(highest)
    of_row = gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0)
    scale = gl.exp2(0.0 - rest) / of_row
    if ANEW:
        pieces = anew(pieces, columns, PIECES)
    if KEEP:
        of_warps = (correction * gl.exp2((most - highest) * LOG2E) / of_row)[:, None]
    start = start_of(dst, row, dst_stride, before, ALIGN, ODD)
    if ODD:
        edge = (gl.exp2((edge - highest) * LOG2E) / of_row).to(dst.dtype.element_ty)
        gl.store(row_start(dst, row, dst_stride) + place, edge, mask=own)
    for i in gl.static_range(PIECES):
        if KEEP:
            value = kept[i] * of_warps
        else:
            value = raised(pieces[i], factor, low) * scale
        store_columns(start, i, value, body, ALIGN, WARPS, SPAN, EVEN, layout)


@gluon.jit
def cluster_softmax_backward(
    grad, result, dst, sums, arrived, rows, columns, grad_stride, result_stride, dst_stride,
    ALIGN: gl.constexpr, PIECES: gl.constexpr, BLOCKS: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr,
    EVEN: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax_backward`, a row for each cluster; `sums` and `arrived` are not used."""
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    start = row_start(grad, row, grad_stride // ALIGN * ALIGN)
    gs = load_row(start, columns, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    start = row_start(result, row, result_stride // ALIGN * ALIGN)
    ys = load_row(start, columns, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
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
    AHEAD: gl.constexpr, ODD: gl.constexpr, SHIFT: gl.constexpr, ANEW: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Do as `portable.norm` without a residual, a row for each cluster; `sums` and `arrived` are not used.

    With AHEAD, the weight comes to shared memory before the row does: its latency is over when the exchange is. With EARLY, weight and bias come to registers
    after the row.
    """
    row = gl.program_id(0)
    barrier = begin_exchange(WARPS)
    weights = weight
    before, body = 0, columns
    if ODD:
        before, body = body_of(row, columns, src_stride, ALIGN, 1 if SHIFT else 0)
        edge, place, inside, own = edges_of_row(src, row, src_stride, before, body, columns, 0.0, ALIGN, BLOCKS)  # fmt: skip
    if AHEAD:
        weights = copy_vector(weight, columns, ALIGN, PIECES, WARPS, SPAN, layout)
    start = start_of(src, row, src_stride, before, ALIGN, ODD)
    pieces = load_row(start, body, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    if EARLY:
        weights = load_row(weight, columns, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
        if bias is not None:
            biases = load_row(bias, columns, 0, ALIGN, PIECES, WARPS, SPAN, EVEN, layout)
    of_warps: gl.constexpr = gl.SliceLayout(1, layout)
    middle = gl.zeros([WARPS], gl.float32, of_warps)
    if CENTRED:  # squares are summed relative to the mean of the warp
        total = gl.zeros([WARPS, SPAN], gl.float32, layout)
        for i in gl.static_range(PIECES):
            total += pieces[i].to(gl.float32)
        held = columns_of_warp(gl.arange(0, WARPS, of_warps), body, PIECES, WARPS, SPAN)
        middle = gl.sum(total, 1) / gl.maximum(held, 1.0)
    square = gl.zeros([WARPS, SPAN], gl.float32, layout)
    for i in gl.static_range(PIECES):
        x = pieces[i].to(gl.float32) - middle[:, None]
        if CENTRED and not EVEN:
            _, there = columns_of(i, body, ALIGN, WARPS, SPAN, layout)
            x = gl.where(there, x, 0.0)
        square += x * x
    of_warp = gl.sum(square, 1)
    if ODD:
        first = gl.arange(0, WARPS, of_warps) == 0
        if CENTRED:
            middle, of_warp = with_edges(middle, of_warp, held, first, edge, inside, columns - body)
        else:
            of_warp += gl.where(first, gl.sum(gl.sum(edge * edge, 1), 0), 0.0)
    means, squares = exchange(barrier, middle, of_warp, BLOCKS, WARPS)
    centre = 0.0
    if CENTRED:
        warp = gl.arange(0, WARPS, means.type.layout)
        held = columns_of_warp(warp, body, PIECES, WARPS, SPAN)
        if ODD:
            held += gl.where(warp == 0, columns - body, 0).to(gl.float32)
        centre = gl.sum(means * held, 0) / columns
        squares += held * (means - centre) * (means - centre)
    spread = gl.rsqrt(gl.sum(squares, 0) / columns + epsilon)
    if statistics is not None:
        gl.store(statistics + row, spread)
        if CENTRED:
            gl.store(statistics + rows + row, centre)
    start = start_of(dst, row, dst_stride, before, ALIGN, ODD)
    if AHEAD:
        gl.nvidia.ampere.async_copy.wait_group(0)
    if ANEW:
        pieces = anew(pieces, columns, PIECES)
    for i in gl.static_range(PIECES):
        x = pieces[i].to(gl.float32)
        value = (x - centre) * spread
        if ODD:
            column, there = columns_of(i, body, ALIGN, WARPS, SPAN, layout)
            if weight is not None:
                value = value * load_shifted(weight + column, before, there, ALIGN, SHIFT)
            if bias is not None:
                value = value + load_shifted(bias + column, before, there, ALIGN, SHIFT)
        else:
            if EARLY:
                value = value * weights[i].to(gl.float32)
                if bias is not None:
                    value = value + biases[i].to(gl.float32)
            elif weight is not None:
                more = vector_columns(weights, i, columns, AHEAD, ALIGN, WARPS, SPAN, EVEN, layout)
                value = value * more
            if bias is not None and not EARLY:
                more = load_columns(bias, i, columns, 0, ALIGN, WARPS, SPAN, EVEN, layout)
                value = value + more.to(gl.float32)
        store_columns(start, i, value, body, ALIGN, WARPS, SPAN, EVEN, layout)
    if ODD:
        value = with_vectors((edge - centre) * spread, weight, bias, place, inside)
        start = row_start(dst, row, dst_stride)
        gl.store(start + place, value.to(dst.dtype.element_ty), mask=own)


@gluon.jit
def with_edges(mean, square, held, first, edge, inside, number):
    """Return mean and sum of squared distances from it of each warp, [WARPS], where the edges, `number` of them, are the first warp's, too.

    Args:
        mean, square, held: of each warp's own columns.
        first: [WARPS], True for the first warp.
        edge, inside: the edges, and which exist.
    """
    number = number.to(gl.float32)
    of_edges = gl.sum(gl.sum(edge, 1), 0) / gl.maximum(number, 1.0)
    away = gl.where(inside, edge - of_edges, 0.0)
    away = gl.sum(gl.sum(away * away, 1), 0)
    added = gl.where(first, number, 0.0)
    share = added / gl.maximum(held + added, 1.0)
    apart = of_edges - mean
    return mean + apart * share, square + gl.where(first, away, 0.0) + apart * apart * held * share


@gluon.jit
def columns_of_warp(warp, columns, PIECES: gl.constexpr, WARPS: gl.constexpr, SPAN: gl.constexpr):
    """Return how many columns of a row each warp has, float32."""
    held = warp * 0
    for i in gl.static_range(PIECES):
        held += gl.maximum(gl.minimum(columns - (i * WARPS + warp) * SPAN, SPAN), 0)
    return held.to(gl.float32)
