"""The gradient of norms of rows that begin anywhere, by whole accesses; see `odd`.

Every ALIGN-th row begins at the same place within an access. A program has such rows only, so each column of a sum is in the same register for all of them.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.gradients import store_sums
from gluon_kernels.norm.last_programs import add_up, parts_of
from gluon_kernels.norm.odd import body_of, body_start, edge_layout, edges_of, load_shared
from gluon_kernels.norm.rows import fold, load_pieces, store_piece


@gluon.jit
def statistics_of(statistics, row, rows, CENTRED: gl.constexpr):
    """Return scales and means of rows, 0 for those that do not exist; means are 0 without CENTRED."""
    scale = gl.load(statistics + row, mask=row < rows, other=0.0)
    mean = gl.zeros_like(scale)
    if CENTRED:
        mean = gl.load(statistics + rows + row, mask=row < rows, other=0.0)
    return scale, mean


@gluon.jit
def norm_backward(
    grad, src, weight, statistics, dst, to_weight, to_bias, sums, arrived, rows, columns, grad_stride, src_stride,
    dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr,
    WIDTH: gl.constexpr, SHIFT: gl.constexpr, layout: gl.constexpr, GROUP: gl.constexpr,
    NEAR: gl.constexpr,
):  # fmt: skip
    """Do as `gradients.norm_backward`; the number of programs is a multiple of ALIGN."""
    of_weight = parts_of(to_weight, None, sums, columns, GROUP)
    of_bias = parts_of(to_bias, to_weight, sums, columns, GROUP)
    rows_backward(
        gl.program_id(0), gl.num_programs(0), grad, src, weight, statistics, dst, of_weight, of_bias, rows, columns,
        grad_stride, src_stride, dst_stride, CENTRED, ALIGN, ROWS, PIECES, WIDTH, SHIFT, layout,
    )  # fmt: skip
    if sums is not None:
        add_up(to_weight, to_bias, sums, arrived, columns, GROUP, NEAR)


@gluon.jit
def rows_backward(
    program, programs, grad, src, weight, statistics, dst, to_weight, to_bias, rows, columns, grad_stride,
    src_stride, dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, SHIFT: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as one program of `norm_backward`; without pointers it keeps no sums."""
    first = program % ALIGN
    before, body = body_of(first, columns, src_stride, ALIGN, 1 if SHIFT else 0)
    edges: gl.constexpr = edge_layout(layout.warps_per_cta, gl.target.warp_size())
    place, inside = edges_of(before, body, columns, 0, ALIGN, edges)
    own: gl.constexpr = gl.SliceLayout(1, layout)
    of_grad = body_start(grad, first, grad_stride, before, ALIGN)
    of_src = body_start(src, first, src_stride, before, ALIGN)
    of_dst = body_start(dst, first, dst_stride, before, ALIGN)
    count = (rows - first + ALIGN - 1) // ALIGN  # rows that begin at this place
    columns_sums = ()
    bias_sums = ()
    for _ in gl.static_range(PIECES):
        columns_sums = columns_sums + (gl.zeros([ROWS, WIDTH], gl.float32, layout),)
        bias_sums = bias_sums + (gl.zeros([ROWS, WIDTH], gl.float32, layout),)
    edge_columns = gl.zeros([ROWS, 4 * ALIGN], gl.float32, edges)
    edge_bias = gl.zeros([ROWS, 4 * ALIGN], gl.float32, edges)
    edge_weight = gl.full([1, 4 * ALIGN], 1.0, gl.float32, edges)
    if weight is not None:
        edge_weight = gl.load(weight + place, mask=inside, other=0.0).to(gl.float32)
    for row in range(program // ALIGN * ROWS, count, programs // ALIGN * ROWS):
        gs = load_pieces(of_grad, row, count, body, 0, ALIGN * grad_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout)  # fmt: skip
        xs = load_pieces(of_src, row, count, body, 0, ALIGN * src_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout)  # fmt: skip
        near = first + (row + gl.arange(0, ROWS, gl.SliceLayout(1, edges))) * ALIGN
        there = inside & (near < rows)[:, None]
        offsets = near.to(gl.int64)[:, None]
        edge_g = gl.load(grad + offsets * grad_stride + place, mask=there, other=0.0)
        edge_x = gl.load(src + offsets * src_stride + place, mask=there, other=0.0)
        spread, middle = statistics_of(
            statistics, first + (row + gl.arange(0, ROWS, own)) * ALIGN, rows, CENTRED
        )
        edge_spread, edge_middle = statistics_of(statistics, near, rows, CENTRED)
        scaled = ()
        normals = ()
        products = ()
        next_columns = ()
        next_bias = ()
        for i in gl.static_range(PIECES):
            g = gs[i].to(gl.float32)
            normal = (xs[i].to(gl.float32) - middle[:, None]) * spread[:, None]
            next_columns = next_columns + (columns_sums[i] + g * normal,)
            next_bias = next_bias + (bias_sums[i] + g,)
            if weight is not None:
                g = g * load_shared(weight, before, i * WIDTH, body, ALIGN, SHIFT, WIDTH, layout)
            scaled = scaled + (g,)
            normals = normals + (normal,)
            products = products + (g * normal,)
        columns_sums = next_columns
        bias_sums = next_bias
        edge_g = edge_g.to(gl.float32)
        edge_normal = (edge_x.to(gl.float32) - edge_middle[:, None]) * edge_spread[:, None]
        edge_columns += edge_g * edge_normal
        edge_bias += edge_g
        edge_g = edge_g * edge_weight
        along = fold(products, PIECES) + gl.convert_layout(gl.sum(edge_g * edge_normal, 1), own)
        along = along / columns
        offset = gl.zeros([ROWS], gl.float32, own)
        if CENTRED:
            offset = (fold(scaled, PIECES) + gl.convert_layout(gl.sum(edge_g, 1), own)) / columns
        for i in gl.static_range(PIECES):
            value = (scaled[i] - normals[i] * along[:, None] - offset[:, None]) * spread[:, None]
            store_piece(of_dst, value, row, count, body, i * WIDTH, ALIGN * dst_stride, ALIGN)
        along = gl.convert_layout(along, near.type.layout)[:, None]
        offset = gl.convert_layout(offset, near.type.layout)[:, None]
        value = (edge_g - edge_normal * along - offset) * edge_spread[:, None]
        gl.store(dst + offsets * dst_stride + place, value.to(dst.dtype.element_ty), mask=there)
    start = program.to(gl.int64) * columns
    store_all(to_weight, start, columns_sums, edge_columns, before, body, place, inside, PIECES, WIDTH, layout)  # fmt: skip
    store_all(to_bias, start, bias_sums, edge_bias, before, body, place, inside, PIECES, WIDTH, layout)  # fmt: skip


@gluon.jit
def store_all(
    pointer, start, sums, edge_sums, before, body, place, inside, PIECES: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Store the sums over the rows of all tiles and of the edges, unless there is no pointer."""
    if pointer is not None:
        store_sums(pointer + start + before, sums, body, PIECES, WIDTH, layout)
        total = gl.sum(edge_sums, axis=0, keep_dims=True)
        gl.store(pointer + start + place, total, mask=inside)
