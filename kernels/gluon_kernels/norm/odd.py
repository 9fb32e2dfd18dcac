"""Softmax and norms of rows that begin anywhere: all but a few elements of a row by whole accesses, on any device.

Where the width or the distance of rows is no multiple of an access, rows begin at other places within one. A program loads its row
from the first whole access on: the body. The elements before it and after it are the edges: a small tile, one element for each lane, that the
first program of a row has. Sources and results begin at the same places within an access; vectors that all rows share do not, and are
shifted in registers.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.portable import LOG2E, exponentials, largest
from gluon_kernels.norm.rows import (
    exchange,
    fold,
    load_pieces,
    place_of,
    row_start,
    share,
    store_piece,
)


@gluon.constexpr_function
def shift_text(bits):
    """Return PTX that gives the 16 bytes from element $16 or $12 on of the 32 bytes that two accesses have loaded, elements of `bits`.

    Source: PTX ISA, 9.7.8.6 (shf).
    """
    words = [f"${i}" for i in range(4, 12)]
    steps = (4, 2) if bits == 16 else (2, 1)
    lines = [
        ".reg .pred far, near;",
        ".reg .b32 bits, "
        + ", ".join([f"a{i}" for i in range(6)] + [f"b{i}" for i in range(5)])
        + ";",
        f"and.b32 bits, $12, {steps[0]};",
        "setp.ne.u32 far, bits, 0;",
        f"and.b32 bits, $12, {steps[1]};",
        "setp.ne.u32 near, bits, 0;",
    ]
    lines += [f"selp.b32 a{i}, {words[i + 2]}, {words[i]}, far;" for i in range(6)]
    lines += [f"selp.b32 b{i}, a{i + 1}, a{i}, near;" for i in range(5)]
    if bits == 16:
        lines += ["and.b32 bits, $12, 1;", "shl.b32 bits, bits, 4;"]
        lines += [f"shf.r.wrap.b32 ${i}, b{i}, b{i + 1}, bits;" for i in range(4)]
    else:
        lines += [f"mov.b32 ${i}, b{i};" for i in range(4)]
    return "{\n\t" + "\n\t".join(lines) + "\n}"


@gluon.constexpr_function
def constraints_of(elements):
    """Return the operands of `shift_text`: four words of the result, eight of two accesses, and the shift for each element."""
    return ",".join(["=r"] * 4 + ["r"] * (8 + elements))


@gluon.jit
def body_of(row, columns, stride, ALIGN: gl.constexpr, LESS: gl.constexpr):
    """Return how many elements of a row are before its body, and how many the body has, a multiple of ALIGN.

    Args:
        LESS: accesses that the body has less than it could, 0 or 1.
    """
    before = ((0 - row.to(gl.int64) * stride) & (ALIGN - 1)).to(gl.int32)
    before = gl.minimum(before, columns)
    return before, gl.maximum((columns - before) // ALIGN - LESS, 0) * ALIGN


@gluon.jit
def body_start(pointer, row, stride, before, ALIGN: gl.constexpr):
    """Return a pointer to the body of a row."""
    return pointer + (row.to(gl.int64) * stride + before) // ALIGN * ALIGN


@gluon.constexpr_function
def edge_layout(warps, lanes, cga_layout=()):
    """Return the layout of edges: an element for each lane, rows for warps as in a tile of `warps`."""
    return gl.BlockedLayout([1, 1], [1, lanes], list(warps), [1, 0], list(cga_layout))


@gluon.jit
def edges_of(before, body, columns, part, ALIGN: gl.constexpr, layout: gl.constexpr):
    """Return the columns of the edges, [1, 4 * ALIGN], and which of them this program has: all if `part` is 0."""
    place = gl.arange(0, 4 * ALIGN, gl.SliceLayout(0, layout))[None, :]
    column = gl.where(place < ALIGN, place, before + body + place - ALIGN)
    inside = gl.where(place < ALIGN, place < before, column < columns)
    return column, inside & (part == 0)


@gluon.jit
def load_shifted(pointers, before, inside, ALIGN: gl.constexpr, SHIFT: gl.constexpr):
    """Return float32 elements from `before` elements behind pointers to whole accesses on, 0 where `inside` is False.

    With SHIFT by two accesses for each; the second may not be there for the last one of a vector.
    """
    if SHIFT:
        one = gl.load(pointers, mask=inside, other=0.0)
        other = gl.load(pointers + ALIGN, mask=inside, other=0.0)
        dtype: gl.constexpr = one.dtype
        text: gl.constexpr = shift_text(dtype.primitive_bitwidth)
        words: gl.constexpr = constraints_of(ALIGN)
        by = gl.full(one.shape, before, gl.int32, one.type.layout)
        value = gl.inline_asm_elementwise(text, words, [one, other, by], dtype, True, ALIGN)
    else:
        value = gl.load(pointers + before, mask=inside, other=0.0)
    return value.to(gl.float32)


@gluon.jit
def load_shared(vector, before, start, body, ALIGN: gl.constexpr, SHIFT: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """Return float32 [1, WIDTH] of a vector that all rows share, from element `before + start` on."""
    column = start + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    inside = column < body // ALIGN * ALIGN
    return load_shifted(vector + column, before, inside, ALIGN, SHIFT)[None, :]


@gluon.jit
def softmax(
    src, dst, sums, arrived, rows, columns, src_stride, dst_stride, ALIGN: gl.constexpr,
    PARTS: gl.constexpr, PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.softmax`, a row or a part of one for each program."""
    row, part = share(arrived, PARTS, 1)
    before, body = body_of(row, columns, src_stride, ALIGN, 0)
    start = part * (PIECES * WIDTH)
    low = -float("inf")
    first = body_start(src, row, src_stride, before, ALIGN)
    pieces = load_pieces(first, row * 0, 1, body, start, 0, low, ALIGN, 1, PIECES, WIDTH, layout)
    edges: gl.constexpr = edge_layout(layout.warps_per_cta, gl.target.warp_size())
    place, inside = edges_of(before, body, columns, part, ALIGN, edges)
    edge = gl.load(row_start(src, row, src_stride) + place, mask=inside, other=low).to(gl.float32)
    most = gl.maximum(gl.max(largest(pieces, PIECES), 0), gl.max(gl.max(edge, 1), 0))
    tiles, of_body, rest = exponentials(pieces, gl.full([1], most, gl.float32, gl.SliceLayout(1, layout)), PIECES)  # fmt: skip
    rest = gl.max(rest, 0)
    edge = gl.exp2((edge - most) * LOG2E)
    total = gl.sum(of_body, 0) * rest + gl.sum(gl.sum(edge, 1), 0)
    if PARTS == 1:
        scale = 1 / total
    else:
        flat: gl.constexpr = gl.SliceLayout(1, layout)
        one = gl.full([1], most, gl.float32, flat)
        other = gl.full([1], total, gl.float32, flat)
        of_all, totals = exchange(sums, arrived, row, part, one, other, PARTS)
        highest = gl.max(of_all, 0)
        scale = 1 / gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0)
        scale *= gl.exp2((most - highest) * LOG2E)
    first = body_start(dst, row, dst_stride, before, ALIGN)
    for i in gl.static_range(PIECES):
        store_piece(first, tiles[i] * (scale * rest), row * 0, 1, body, start + i * WIDTH, 0, ALIGN)
    edge = (edge * scale).to(dst.dtype.element_ty)
    gl.store(row_start(dst, row, dst_stride) + place, edge, mask=inside)


@gluon.jit
def norm(
    src, weight, bias, dst, residual, summed, statistics, sums, arrived, rows, columns, src_stride,
    dst_stride, residual_stride, epsilon, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, SHIFT: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `portable.norm` without a residual, a row or a part of one for each program."""
    row, part = share(arrived, PARTS, 1)
    before, body = body_of(row, columns, src_stride, ALIGN, 1 if SHIFT else 0)
    start = part * (PIECES * WIDTH)
    first = body_start(src, row, src_stride, before, ALIGN)
    loaded = load_pieces(first, row * 0, 1, body, start, 0, 0, ALIGN, 1, PIECES, WIDTH, layout)
    edges: gl.constexpr = edge_layout(layout.warps_per_cta, gl.target.warp_size())
    place, inside = edges_of(before, body, columns, part, ALIGN, edges)
    edge = gl.load(row_start(src, row, src_stride) + place, mask=inside, other=0.0).to(gl.float32)
    held = gl.maximum(gl.minimum(body - start, PIECES * WIDTH), 0)
    held = (held + gl.where(part == 0, columns - body, 0)).to(gl.float32)
    pieces = ()
    for i in gl.static_range(PIECES):
        pieces = pieces + (loaded[i].to(gl.float32),)
    middle = 0.0
    if CENTRED:  # squares are summed relative to the mean of the part
        middle = gl.sum(fold(pieces, PIECES), 0) + gl.sum(gl.sum(edge, 1), 0)
        middle = middle / gl.maximum(held, 1.0)
    squares = ()
    for i in gl.static_range(PIECES):
        x = pieces[i] - middle
        if CENTRED:
            _, there = place_of(row * 0, 1, body, start + i * WIDTH, 0, ALIGN, 1, WIDTH, layout)
            x = gl.where(there, x, 0.0)
        squares = squares + (x * x,)
    apart = gl.where(inside, edge - middle, 0.0)
    square = gl.sum(fold(squares, PIECES), 0) + gl.sum(gl.sum(apart * apart, 1), 0)
    if PARTS > 1:
        flat: gl.constexpr = gl.SliceLayout(1, layout)
        one = gl.full([1], middle, gl.float32, flat)
        other = gl.full([1], square, gl.float32, flat)
        means, all_squares = exchange(sums, arrived, row, part, one, other, PARTS)
        if CENTRED:
            number = gl.arange(0, PARTS, means.type.layout)
            each = gl.maximum(gl.minimum(body - number * (PIECES * WIDTH), PIECES * WIDTH), 0)
            each = (each + gl.where(number == 0, columns - body, 0)).to(gl.float32)
            middle = gl.sum(means * each, 0) / columns
            all_squares += each * (means - middle) * (means - middle)
        square = gl.sum(all_squares, 0)
    spread = gl.rsqrt(square / columns + epsilon)
    if statistics is not None:
        gl.store(statistics + row, spread, mask=part == 0)
        if CENTRED:
            gl.store(statistics + rows + row, middle, mask=part == 0)
    first = body_start(dst, row, dst_stride, before, ALIGN)
    for i in gl.static_range(PIECES):
        value = (pieces[i] - middle) * spread
        column = start + i * WIDTH
        if weight is not None:
            value = value * load_shared(weight, before, column, body, ALIGN, SHIFT, WIDTH, layout)
        if bias is not None:
            value = value + load_shared(bias, before, column, body, ALIGN, SHIFT, WIDTH, layout)
        store_piece(first, value, row * 0, 1, body, column, 0, ALIGN)
    value = with_vectors((edge - middle) * spread, weight, bias, place, inside)
    gl.store(row_start(dst, row, dst_stride) + place, value.to(dst.dtype.element_ty), mask=inside)


@gluon.jit
def with_vectors(value, weight, bias, column, inside):
    """Return `value * weight + bias` of some columns."""
    if weight is not None:
        value = value * gl.load(weight + column, mask=inside, other=0.0).to(gl.float32)
    if bias is not None:
        value = value + gl.load(bias + column, mask=inside, other=0.0).to(gl.float32)
    return value
