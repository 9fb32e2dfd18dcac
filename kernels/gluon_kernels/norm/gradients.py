"""The gradients of layer norm and RMS norm.

The gradient of a weight is a sum over rows. Each program sums over its own and stores that; the last programs of the launch add up
the few rows that are left (`last_programs`), or `add_parts` does where columns are many, always in the same order. Memory is read
once, but for rows that are too long for all programs to walk over some at a time.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.last_programs import add_up, parts_of
from gluon_kernels.norm.rows import (
    exchange,
    fold,
    load_columns,
    load_pieces,
    share,
    share_of,
    store_piece,
)


@gluon.jit
def normalized(x, statistics, row, rows, CENTRED: gl.constexpr, ROWS: gl.constexpr):
    """Return (x - mean) * scale of a tile; `statistics` are the scales of all rows, and after them the means if CENTRED."""
    near = row + gl.arange(0, ROWS, gl.SliceLayout(1, x.type.layout))
    x = x.to(gl.float32)
    if CENTRED:
        x = x - gl.load(statistics + rows + near, mask=near < rows, other=0.0)[:, None]
    return x * gl.load(statistics + near, mask=near < rows, other=0.0)[:, None]


@gluon.jit
def in_memory_of_warps(x, WARPS: gl.constexpr):
    """Return shared memory [WARPS, WIDTH] with the sums of the rows of each warp."""
    parts = gl.sum(x.reshape([WARPS, x.shape[0] // WARPS, x.shape[1]]), 1)
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    return gl.allocate_shared_memory(gl.float32, [WARPS, x.shape[1]], shared, parts)


@gluon.jit
def store_columns(pointer, total, start, columns):
    """Store a part of a row, neighbours by neighbouring threads: a row that begins anywhere has a store for each element, of which
    a thread with several in a row would write to as many places."""
    layout: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size()], [gl.num_warps()], [0])
    column = start + gl.arange(0, total.shape[0], layout)
    value = gl.convert_layout(total, layout).to(pointer.dtype.element_ty)
    gl.store(pointer + column, value, mask=column < columns)


@gluon.jit
def store_sums(
    pointer, sums, columns, PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr
):
    """Store the sums over the rows of all tiles, unless there is no pointer.

    Sums over warps meet in shared memory, those of all tiles at once: a reduction of each tile waits for all warps several times.
    """
    if pointer is not None:
        WARPS: gl.constexpr = layout.warps_per_cta[0]
        if WARPS == 1:
            for i in gl.static_range(PIECES):
                store_columns(pointer, gl.sum(sums[i], axis=0), i * WIDTH, columns)
        else:
            parts = ()
            for i in gl.static_range(PIECES):
                parts = parts + (in_memory_of_warps(sums[i], WARPS),)
            rows: gl.constexpr = gl.BlockedLayout(
                [WARPS, 1], [1, gl.target.warp_size()], [1, gl.num_warps()], [1, 0]
            )
            column = gl.arange(0, WIDTH, gl.SliceLayout(0, rows))
            for i in gl.static_range(PIECES):
                total = gl.sum(parts[i].load(rows), 0)
                gl.store(pointer + i * WIDTH + column, total, mask=i * WIDTH + column < columns)


@gluon.jit
def rows_backward(
    program, programs, grad, src, weight, statistics, dst, rows, columns, grad_stride, src_stride,
    dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr,
    WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store the gradient of `src` of each `programs`-th group of rows, and return sums over these of the gradients of weight and bias."""
    columns_sums = ()
    bias_sums = ()
    for _ in gl.static_range(PIECES):
        columns_sums = columns_sums + (gl.zeros([ROWS, WIDTH], gl.float32, layout),)
        bias_sums = bias_sums + (gl.zeros([ROWS, WIDTH], gl.float32, layout),)
    for row in range(program * ROWS, rows, programs * ROWS):
        gs = load_pieces(
            grad, row, rows, columns, 0, grad_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
        )
        xs = load_pieces(
            src, row, rows, columns, 0, src_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
        )
        scaled = ()
        normals = ()
        products = ()
        next_columns = ()
        next_bias = ()
        for i in gl.static_range(PIECES):
            g = gs[i].to(gl.float32)
            normal = normalized(xs[i], statistics, row, rows, CENTRED, ROWS)
            next_columns = next_columns + (columns_sums[i] + g * normal,)
            next_bias = next_bias + (bias_sums[i] + g,)
            if weight is not None:
                g = g * load_columns(weight, columns, i * WIDTH, ALIGN, WIDTH, layout)
            scaled = scaled + (g,)
            normals = normals + (normal,)
            products = products + (g * normal,)
        columns_sums = next_columns
        bias_sums = next_bias
        along = fold(products, PIECES) / columns
        offset = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
        if CENTRED:
            offset = fold(scaled, PIECES) / columns
        near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        spread = gl.load(statistics + near, mask=near < rows, other=0.0)
        for i in gl.static_range(PIECES):
            value = (scaled[i] - normals[i] * along[:, None] - offset[:, None]) * spread[:, None]
            store_piece(dst, value, row, rows, columns, i * WIDTH, dst_stride, ALIGN)
    return columns_sums, bias_sums


@gluon.jit
def norm_backward(
    grad, src, weight, statistics, dst, to_weight, to_bias, sums, arrived, rows, columns, grad_stride, src_stride,
    dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, GROUP: gl.constexpr,
    NEAR: gl.constexpr,
):  # fmt: skip
    """Store the gradient of `src`, and for each program the sums over its rows of the gradients of weight and bias; with `sums`, their sums over all programs, see `add_up`."""
    columns_sums, bias_sums = rows_backward(
        gl.program_id(0), gl.num_programs(0), grad, src, weight, statistics, dst, rows, columns, grad_stride, src_stride,
        dst_stride, CENTRED, ALIGN, ROWS, PIECES, WIDTH, layout,
    )  # fmt: skip
    first = gl.program_id(0).to(gl.int64) * columns
    of_weight = parts_of(to_weight, None, sums, columns, GROUP)
    of_bias = parts_of(to_bias, to_weight, sums, columns, GROUP)
    if to_weight is not None:
        store_sums(of_weight + first, columns_sums, columns, PIECES, WIDTH, layout)
    if to_bias is not None:
        store_sums(of_bias + first, bias_sums, columns, PIECES, WIDTH, layout)
    if sums is not None:
        add_up(to_weight, to_bias, sums, arrived, columns, GROUP, NEAR)


@gluon.jit
def exchange_rows(
    sums, counter, part, one, other, PARTS: gl.constexpr, ROWS: gl.constexpr, BOTH: gl.constexpr
):
    """Return the sums over all parts of two numbers for each row, [ROWS], the second ones zeros without BOTH; see `rows.exchange`.

    Args:
        sums: float32 [PARTS, 2, ROWS] of these rows, of any content.
        counter: int32 of these rows; it grows by PARTS with each launch.
    """
    layout: gl.constexpr = one.type.layout
    near = gl.arange(0, ROWS, layout)
    mine = sums + part * (2 * ROWS)
    gl.store(mine + near, one)
    if BOTH:
        gl.store(mine + ROWS + near, other)
    gl.barrier()
    now = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    goal = (now & -PARTS) + PARTS
    now += 1
    while now - goal < 0:
        now = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    gl.barrier()
    square: gl.constexpr = gl.portable.blocked_layout([PARTS, ROWS], gl.float32)
    place = gl.arange(0, PARTS, gl.SliceLayout(1, square))[:, None] * (2 * ROWS)
    place += gl.arange(0, ROWS, gl.SliceLayout(0, square))[None, :]
    first = gl.convert_layout(gl.sum(gl.load(sums + place), 0), layout)
    second = gl.zeros([ROWS], gl.float32, layout)
    if BOTH:
        second = gl.convert_layout(gl.sum(gl.load(sums + ROWS + place), 0), layout)
    return first, second


@gluon.jit
def norm_backward_walk(
    grad, src, weight, statistics, dst, to_weight, to_bias, sums, arrived, rows, columns, grad_stride,
    src_stride, dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `norm_backward` for rows of PARTS programs, each of which walks over its columns of ROWS rows at a time."""
    group, part = share(arrived, PARTS, ROWS)
    start = part * (PIECES * WIDTH)
    of_columns: gl.constexpr = gl.SliceLayout(0, layout)
    near = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    weight_sums = ()
    bias_sums = ()
    for _ in gl.static_range(PIECES):
        weight_sums = weight_sums + (gl.zeros([WIDTH], gl.float32, of_columns),)
        bias_sums = bias_sums + (gl.zeros([WIDTH], gl.float32, of_columns),)
    groups = gl.num_programs(0) // PARTS
    for row in range(group * ROWS, rows, groups * ROWS):
        gs = load_pieces(
            grad, row, rows, columns, start, grad_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
        )
        xs = load_pieces(
            src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
        )
        scaled = ()
        products = ()
        next_weight = ()
        next_bias = ()
        for i in gl.static_range(PIECES):
            g = gs[i].to(gl.float32)
            normal = normalized(xs[i], statistics, row, rows, CENTRED, ROWS)
            next_weight = next_weight + (weight_sums[i] + gl.sum(g * normal, 0),)
            next_bias = next_bias + (bias_sums[i] + gl.sum(g, 0),)
            if weight is not None:
                g = g * load_columns(weight, columns, start + i * WIDTH, ALIGN, WIDTH, layout)
            scaled = scaled + (g,)
            products = products + (g * normal,)
        weight_sums = next_weight
        bias_sums = next_bias
        along = fold(products, PIECES)
        total = along
        if CENTRED:
            total = fold(scaled, PIECES)
        place = row // ROWS
        exchanged = sums + place.to(gl.int64) * (PARTS * 2 * ROWS)
        slope, offset = exchange_rows(
            exchanged, arrived + 1 + place, part, along, total, PARTS, ROWS, CENTRED
        )
        slope = (slope / columns)[:, None]
        offset = (offset / columns)[:, None]
        spread = gl.load(statistics + row + near, mask=row + near < rows, other=0.0)[:, None]
        for i in gl.static_range(PIECES):
            g = gs[i].to(gl.float32)
            if weight is not None:
                g = g * load_columns(weight, columns, start + i * WIDTH, ALIGN, WIDTH, layout)
            normal = normalized(xs[i], statistics, row, rows, CENTRED, ROWS)
            value = (g - normal * slope - offset) * spread
            store_piece(dst, value, row, rows, columns, start + i * WIDTH, dst_stride, ALIGN)
    first = group.to(gl.int64) * columns
    for i in gl.static_range(PIECES):
        if to_weight is not None:
            store_columns(to_weight + first, weight_sums[i], start + i * WIDTH, columns)
        if to_bias is not None:
            store_columns(to_bias + first, bias_sums[i], start + i * WIDTH, columns)


@gluon.jit
def norm_backward_long(
    grad, src, weight, statistics, dst, sums, arrived, rows, columns, grad_stride, src_stride,
    dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store the gradient of `src` alone, of rows whose sums over columns no program can keep; see `column_sums`."""
    part_backward(
        gl.num_programs(0), grad, src, weight, statistics, dst, sums, arrived, rows, columns, grad_stride, src_stride,
        dst_stride, CENTRED, ALIGN, PARTS, ROWS, PIECES, WIDTH, layout,
    )  # fmt: skip


@gluon.jit
def part_backward(
    programs, grad, src, weight, statistics, dst, sums, arrived, rows, columns, grad_stride, src_stride,
    dst_stride, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store the gradient of a part of a row of `src`; `programs` of the launch have such parts."""
    row, part = share_of(arrived, programs, PARTS, ROWS)
    start = part * (PIECES * WIDTH)
    gs = load_pieces(
        grad, row, rows, columns, start, grad_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
    )
    xs = load_pieces(
        src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
    )
    scaled = ()
    products = ()
    for i in gl.static_range(PIECES):
        g = gs[i].to(gl.float32)
        if weight is not None:
            g = g * load_columns(weight, columns, start + i * WIDTH, ALIGN, WIDTH, layout)
        scaled = scaled + (g,)
        products = products + (g * normalized(xs[i], statistics, row, rows, CENTRED, ROWS),)
    along = fold(products, PIECES)
    total = fold(scaled, PIECES)
    all_along, totals = along, total
    if PARTS > 1:
        all_along, totals = exchange(sums, arrived, row, part, along, total, PARTS)
    slope = gl.sum(all_along, 0) / columns
    offset = 0.0
    if CENTRED:
        offset = gl.sum(totals, 0) / columns
    spread = gl.load(statistics + row)
    for i in gl.static_range(PIECES):
        normal = normalized(xs[i], statistics, row, rows, CENTRED, ROWS)
        value = (scaled[i] - normal * slope - offset) * spread
        store_piece(dst, value, row, rows, columns, start + i * WIDTH, dst_stride, ALIGN)


@gluon.jit
def sums_of(
    grad, src, statistics, begin, end, start, rows, columns, grad_stride, src_stride, WEIGHT: gl.constexpr,
    CENTRED: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Return sums over rows of `grad` times the normalized `src`, zeros without WEIGHT, and of `grad`; [WIDTH] from column `start` on."""
    weights = gl.zeros([ROWS, WIDTH], gl.float32, layout)
    biases = gl.zeros([ROWS, WIDTH], gl.float32, layout)
    for row in range(begin, end, ROWS):
        (g,) = load_pieces(
            grad, row, rows, columns, start, grad_stride, 0, ALIGN, ROWS, 1, WIDTH, layout
        )
        biases += g.to(gl.float32)
        if WEIGHT:
            (x,) = load_pieces(
                src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, 1, WIDTH, layout
            )
            weights += g.to(gl.float32) * normalized(x, statistics, row, rows, CENTRED, ROWS)
    return gl.sum(weights, axis=0), gl.sum(biases, axis=0)


@gluon.jit
def column_sums(
    grad, src, statistics, to_weight, to_bias, rows, columns, grad_stride, src_stride, SHARE: gl.constexpr,
    CENTRED: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Store sums over SHARE rows each: of `grad` times the normalized `src`, and of `grad`."""
    start = gl.program_id(0) * WIDTH
    begin = gl.program_id(1) * SHARE
    weights, biases = sums_of(
        grad, src, statistics, begin, gl.minimum(begin + SHARE, rows), start, rows, columns, grad_stride, src_stride,
        to_weight is not None, CENTRED, ALIGN, ROWS, WIDTH, layout,
    )  # fmt: skip
    first = gl.program_id(1).to(gl.int64) * columns
    if to_weight is not None:
        store_columns(to_weight + first, weights, start, columns)
    if to_bias is not None:
        store_columns(to_bias + first, biases, start, columns)


@gluon.jit
def add_parts(
    weights, biases, to_weight, to_bias, parts, columns, ROWS: gl.constexpr, WIDTH: gl.constexpr
):
    """Store the sums of the columns of one or two float32 matrices [parts, columns]; those that are None are left out."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, WIDTH], gl.float32)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.program_id(0) * WIDTH + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    weight = gl.zeros([ROWS, WIDTH], gl.float32, layout)
    bias = gl.zeros([ROWS, WIDTH], gl.float32, layout)
    for first in range(0, parts, ROWS):
        offsets = (first + row).to(gl.int64)[:, None] * columns + column[None, :]
        inside = (first + row < parts)[:, None] & (column < columns)[None, :]
        if weights is not None:
            weight += gl.load(weights + offsets, mask=inside, other=0.0)
        if biases is not None:
            bias += gl.load(biases + offsets, mask=inside, other=0.0)
    if weights is not None:
        total = gl.sum(weight, 0).to(to_weight.dtype.element_ty)
        gl.store(to_weight + column, total, mask=column < columns)
    if biases is not None:
        total = gl.sum(bias, 0).to(to_bias.dtype.element_ty)
        gl.store(to_bias + column, total, mask=column < columns)
