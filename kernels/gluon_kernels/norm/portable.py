"""Softmax, cross entropy and norms of rows, forward and backward, on any device."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.rows import (
    exchange,
    fold,
    is_whole,
    load_columns,
    load_pieces,
    place_of,
    row_start,
    share,
    store_piece,
)

LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)
LOWEST: gl.constexpr = gl.constexpr(-3.3e38)  # a maximum that can be subtracted


@gluon.jit
def largest(pieces, PIECES: gl.constexpr):
    """Return the maximum of each row, [ROWS], never -inf."""
    most = pieces[0].to(gl.float32)
    for i in gl.static_range(1, PIECES):
        most = gl.maximum(most, pieces[i].to(gl.float32))
    return gl.maximum(gl.max(most, axis=1), LOWEST)


@gluon.jit
def anew(pieces, size, PIECES: gl.constexpr):
    """Return tiles of 16 bits as they are, such that the compiler converts them again: converted ones would keep twice the registers until then.

    Each pair of elements is combined with zeros of which the compiler does not know that they are, by an instruction of NVIDIA's.

    Args:
        size: an integer that is not negative.
    """
    zero = (size >> 31).to(gl.int16)
    same = ()
    for i in gl.static_range(PIECES):
        zeros = gl.zeros(pieces[i].shape, gl.int16, pieces[i].type.layout) + zero
        same = same + (gl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [pieces[i], zeros], pieces[i].dtype, False, 2),)  # fmt: skip
    return same


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
def exponential_sums(pieces, most, PIECES: gl.constexpr):
    """Return the sums of exp(x - most) along the rows of all tiles together, [ROWS]."""
    factor, low, rest = exponent_of(most)
    total = raised(pieces[0], factor[:, None], low[:, None])
    for i in gl.static_range(1, PIECES):
        total += raised(pieces[i], factor[:, None], low[:, None])
    return gl.sum(total, 1) * gl.exp2(0.0 - rest)


@gluon.jit
def exponentials(pieces, most, PIECES: gl.constexpr):
    """Return tiles that are exp(x - most) but for a factor, their sums, [ROWS], and the factor, [ROWS]."""
    factor, low, rest = exponent_of(most)
    tiles = ()
    for i in gl.static_range(PIECES):
        tiles = tiles + (raised(pieces[i], factor[:, None], low[:, None]),)
    return tiles, fold(tiles, PIECES), gl.exp2(0.0 - rest)


@gluon.jit
def softmax(
    src, dst, sums, arrived, rows, columns, src_stride, dst_stride, ALIGN: gl.constexpr,
    PARTS: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """`dst = exp(src) / sum(exp(src))` along rows."""
    row, part = share(arrived, PARTS, ROWS)
    start = part * (PIECES * WIDTH)
    low = -float("inf")
    pieces = load_pieces(
        src, row, rows, columns, start, src_stride, low, ALIGN, ROWS, PIECES, WIDTH, layout, PARTS == 1
    )  # fmt: skip
    store_softmax(
        dst,
        pieces,
        sums,
        arrived,
        row,
        part,
        rows,
        columns,
        dst_stride,
        ALIGN,
        PARTS,
        PIECES,
        WIDTH,
    )


@gluon.jit
def store_softmax(
    dst, pieces, sums, arrived, row, part, rows, columns, dst_stride, ALIGN: gl.constexpr, PARTS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Store the softmax of rows whose tiles are in registers."""
    most = largest(pieces, PIECES)
    tiles, total, rest = exponentials(pieces, most, PIECES)
    if PARTS == 1:
        scale = (1 / total)[:, None]
    else:
        of_all, totals = exchange(sums, arrived, row, part, most, total * rest, PARTS)
        highest = gl.max(of_all, 0)
        scale = gl.max(rest, 0) / gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0)
        scale *= gl.exp2((gl.max(most, 0) - highest) * LOG2E)
    for i in gl.static_range(PIECES):
        column = part * (PIECES * WIDTH) + i * WIDTH
        store_piece(
            dst, tiles[i] * scale, row, rows, columns, column, dst_stride, ALIGN, is_whole(i, PARTS, PIECES)
        )  # fmt: skip


@gluon.jit
def softmax_backward(
    grad, result, dst, sums, arrived, rows, columns, grad_stride, result_stride, dst_stride,
    ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr,
    WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """`dst = result * (grad - sum(result * grad))` along rows."""
    row, part = share(arrived, PARTS, ROWS)
    start = part * (PIECES * WIDTH)
    gs = load_pieces(
        grad, row, rows, columns, start, grad_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout, PARTS == 1
    )  # fmt: skip
    ys = load_pieces(
        result, row, rows, columns, start, result_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout, PARTS == 1
    )  # fmt: skip
    products = ()
    for i in gl.static_range(PIECES):
        products = products + (gs[i].to(gl.float32) * ys[i].to(gl.float32),)
    along = fold(products, PIECES)
    if PARTS == 1:
        shift = along[:, None]
    else:
        parts, _ = exchange(sums, arrived, row, part, along, along, PARTS)
        shift = gl.sum(parts, 0)
    for i in gl.static_range(PIECES):
        value = products[i] - ys[i].to(gl.float32) * shift
        store_piece(
            dst, value, row, rows, columns, start + i * WIDTH, dst_stride, ALIGN, is_whole(i, PARTS, PIECES)
        )  # fmt: skip


@gluon.jit
def store_mean(
    loss, labels, mean, inverse, rows, label_stride, ignored, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store the mean of the losses whose label is not `ignored`, and 1 / their number unless `inverse` is None."""
    total = gl.zeros([WIDTH], gl.float32, layout)
    counted = gl.zeros([WIDTH], gl.float32, layout)
    for start in range(0, rows, WIDTH):
        row = start + gl.arange(0, WIDTH, layout)
        total += gl.load(loss + row, mask=row < rows, other=0.0)
        label = gl.load(labels + row.to(gl.int64) * label_stride, mask=row < rows, other=ignored)
        counted += gl.where(label != ignored, 1.0, 0.0)
    number = gl.sum(counted, 0)
    gl.store(mean, gl.sum(total, 0) / number)
    if inverse is not None:
        gl.store(inverse, 1 / number)


@gluon.jit
def mean_of(
    loss, labels, mean, inverse, rows, label_stride, ignored, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Store the mean of losses; one program."""
    store_mean(loss, labels, mean, inverse, rows, label_stride, ignored, WIDTH, layout)


@gluon.jit
def cross_entropy(
    src, labels, loss, logsum, sums, arrived, mean, inverse, rows, columns, src_stride, label_stride,
    ignored, ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr,
    WIDTH: gl.constexpr, layout: gl.constexpr, ANEW: gl.constexpr,
):  # fmt: skip
    """Store the loss of each row, 0 for the label `ignored`, and unless `logsum` is None the logarithm of its sum for the gradient.

    A label that is no class gives NaN; no memory is read for it. The last program of a long row to come finishes it; none waits. Where `mean` is not None, PARTS is 1, and the last program
    stores the mean of all rows, see `store_mean`; `arrived` is one counter, which it leaves at 0.
    """
    if PARTS == 1:
        row = gl.program_id(0) * ROWS
        part = gl.to_tensor(0)
    else:
        row = gl.program_id(0) // PARTS
        part = gl.program_id(0) % PARTS
    start = part * (PIECES * WIDTH)
    near = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    exists = row + near < rows
    # The load of the logit waits for this one.
    label = gl.load(labels + (row + near).to(gl.int64) * label_stride, mask=exists, other=0)
    pieces = load_pieces(
        src, row, rows, columns, start, src_stride, -float("inf"), ALIGN, ROWS, PIECES, WIDTH, layout, PARTS == 1
    )  # fmt: skip
    counts = exists & (label != ignored)
    known = counts & (label >= 0) & (label < columns)
    hit = row_start(src, row, src_stride) + near * src_stride + label
    hit = gl.load(hit, mask=known, other=float("nan")).to(gl.float32)
    most = largest(pieces, PIECES)
    if ANEW:
        pieces = anew(pieces, columns, PIECES)
    total = exponential_sums(pieces, most, PIECES)
    if PARTS > 1:
        mine = sums + (row.to(gl.int64) * PARTS + part) * 2
        gl.store(mine, gl.max(most, 0))
        gl.store(mine + 1, gl.sum(total, 0))
        gl.barrier()
        before = gl.atomic_add(arrived + 1 + row, 1, sem="acq_rel", scope="gpu")
        exists = exists & (before % PARTS == PARTS - 1)
        gl.barrier()
        others: gl.constexpr = gl.portable.blocked_layout([PARTS], gl.float32)
        parts = sums + row.to(gl.int64) * (PARTS * 2) + gl.arange(0, PARTS, others) * 2
        # Another program's numbers may not be there yet; then nothing is stored below.
        last = gl.full([PARTS], before % PARTS == PARTS - 1, gl.int1, others)
        of_all = gl.load(parts, mask=last, other=0.0)
        totals = gl.load(parts + 1, mask=last, other=0.0)
        highest = gl.max(of_all, 0)
        total = total * 0 + gl.sum(totals * gl.exp2((of_all - highest) * LOG2E), 0)
        most = most * 0 + highest
    normal = most + gl.log(total)
    gl.store(loss + row + near, gl.where(counts, normal - hit, 0.0), mask=exists)
    if logsum is not None:
        gl.store(logsum + row + near, normal, mask=exists)
    if mean is not None:
        gl.barrier()
        last = gl.num_programs(0) - 1
        before = gl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
        gl.barrier()
        if before == last:
            gl.atomic_add(arrived, -1 - last, sem="relaxed", scope="gpu")
            flat: gl.constexpr = gl.portable.blocked_layout([1024], gl.float32)
            store_mean(loss, labels, mean, inverse, rows, label_stride, ignored, 1024, flat)


@gluon.jit
def cross_entropy_walk(
    src, labels, loss, logsum, rows, columns, src_stride, label_stride, ignored, ALIGN: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Do as `cross_entropy` for long rows, each of which one program walks over, [DEPTH, WIDTH] at a time.

    Each column of a tile, all of it one thread's, has its own maximum and sum; these meet once, after the row.
    """
    row = gl.program_id(0)
    label = gl.load(labels + row.to(gl.int64) * label_stride)
    counts = label != ignored
    known = counts & (label >= 0) & (label < columns)
    hit = gl.load(row_start(src, row, src_stride) + label, mask=known, other=float("nan"))
    of_row = row_start(src, row, src_stride // ALIGN * ALIGN)
    deep = gl.arange(0, DEPTH, gl.SliceLayout(1, layout)) * WIDTH
    wide = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    most = gl.full([WIDTH], LOWEST, gl.float32, gl.SliceLayout(0, layout))
    total = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        column = start + deep[:, None] + wide[None, :]
        inside = column < columns // ALIGN * ALIGN
        x = gl.portable.load(of_row, column, inside, -float("inf")).to(gl.float32)
        higher = gl.maximum(most, gl.max(x, 0))
        raised = gl.exp2((x - higher[None, :]) * LOG2E)
        total = total * gl.exp2((most - higher) * LOG2E) + gl.sum(raised, 0)
        most = higher
    highest = gl.max(most, 0)
    normal = highest + gl.log(gl.sum(total * gl.exp2((most - highest) * LOG2E), 0))
    gl.store(loss + row, gl.where(counts, normal - hit.to(gl.float32), 0.0))
    if logsum is not None:
        gl.store(logsum + row, normal)


@gluon.jit
def cross_entropy_backward(
    grad, src, labels, logsum, inverse, dst, rows, columns, grad_stride, src_stride, label_stride,
    dst_stride, ignored, ALIGN: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Store the gradient of the logits; blocks of columns are programs of their own. `grad` is None for ones; `inverse` is None, or a factor of all rows."""
    row = gl.program_id(0) * ROWS
    start = gl.program_id(1) * WIDTH
    near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = start + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    exists = near < rows
    label = gl.load(labels + near.to(gl.int64) * label_stride, mask=exists, other=0)
    factor = gl.where(exists, 1.0, 0.0)
    if grad is not None:
        factor = gl.load(grad + near * grad_stride, mask=exists, other=0.0).to(gl.float32)
    if inverse is not None:
        factor *= gl.load(inverse)
    factor = gl.where(label == ignored, 0.0, factor)
    normal = gl.load(logsum + near, mask=exists, other=0.0)
    (x,) = load_pieces(src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, 1, WIDTH, layout)
    hit = gl.where(column[None, :] == label[:, None], 1.0, 0.0)
    value = (gl.exp2((x.to(gl.float32) - normal[:, None]) * LOG2E) - hit) * factor[:, None]
    store_piece(dst, value, row, rows, columns, start, dst_stride, ALIGN)


@gluon.jit
def norm(
    src, weight, bias, dst, residual, summed, statistics, sums, arrived, rows, columns, src_stride,
    dst_stride, residual_stride, epsilon, CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr,
    ROWS: gl.constexpr, PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """`dst = (x - mean) * scale * weight + bias` of `x = src + residual`, which goes to `summed`.

    RMS norm is layer norm whose mean is taken for zero: CENTRED is False. Arguments that are None are left
    out when the kernel is compiled. `summed` has rows like `dst`. `statistics`, kept for the gradient, are the factors of all rows,
    and after them their means if CENTRED. With EARLY, weight and bias are loaded before the programs wait for their rows.
    """
    row, part = share(arrived, PARTS, ROWS)
    start = part * (PIECES * WIDTH)
    loaded = load_pieces(
        src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout, PARTS == 1
    )  # fmt: skip
    if residual is not None:
        more = load_pieces(
            residual, row, rows, columns, start, residual_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout, PARTS == 1
        )  # fmt: skip
        added = ()
        for i in gl.static_range(PIECES):
            value = (loaded[i].to(gl.float32) + more[i].to(gl.float32)).to(summed.dtype.element_ty)
            store_piece(summed, value, row, rows, columns, start + i * WIDTH, dst_stride, ALIGN)
            added = added + (value,)
        loaded = added
    store_norm(
        loaded, weight, bias, dst, statistics, sums, arrived, row, part, rows, columns, dst_stride, epsilon,
        CENTRED, ALIGN, PARTS, ROWS, PIECES, WIDTH, layout, EARLY,
    )  # fmt: skip


@gluon.jit
def shared_columns(
    src, columns, start, ALIGN: gl.constexpr, PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    """Return the tiles of a vector that all rows share, [1, WIDTH] as they were loaded; none without a vector."""
    pieces = ()
    if src is not None:
        for i in gl.static_range(PIECES):
            here = start + i * WIDTH
            column = gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
            piece = gl.portable.load(src + here, column, here + column < columns // ALIGN * ALIGN)
            pieces = pieces + (piece[None, :],)
    return pieces


@gluon.jit
def store_norm(
    loaded, weight, bias, dst, statistics, sums, arrived, row, part, rows, columns, dst_stride, epsilon,
    CENTRED: gl.constexpr, ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
    PIECES: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Store the norm of rows whose tiles are in registers, and their statistics."""
    start = part * (PIECES * WIDTH)
    weights = ()
    biases = ()
    if EARLY:
        weights = shared_columns(weight, columns, start, ALIGN, PIECES, WIDTH, layout)
        biases = shared_columns(bias, columns, start, ALIGN, PIECES, WIDTH, layout)
    pieces = ()
    for i in gl.static_range(PIECES):
        pieces = pieces + (loaded[i].to(gl.float32),)
    middle = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    if CENTRED:
        # Squares are summed relative to the mean of the part.
        held = gl.maximum(gl.minimum(columns - start, PIECES * WIDTH), 1).to(gl.float32)
        middle = fold(pieces, PIECES) / held
    squares = ()
    for i in gl.static_range(PIECES):
        x = pieces[i] - middle[:, None]
        if CENTRED:
            _, inside = place_of(
                row, rows, columns, start + i * WIDTH, 0, ALIGN, ROWS, WIDTH, layout
            )
            x = gl.where(inside, x, 0.0)
        squares = squares + (x * x,)
    square = fold(squares, PIECES)
    if PARTS > 1:
        means, all_squares = exchange(sums, arrived, row, part, middle, square, PARTS)
        if CENTRED:
            number = gl.arange(0, PARTS, means.type.layout)
            held = gl.minimum(columns - number * (PIECES * WIDTH), PIECES * WIDTH)
            held = gl.maximum(held, 0).to(gl.float32)
            centre = gl.sum(means * held, 0) / columns
            all_squares += held * (means - centre) * (means - centre)
            middle = middle * 0 + centre
        square = square * 0 + gl.sum(all_squares, 0)
    spread = gl.rsqrt(square / columns + epsilon)
    near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    first = (near < rows) & (part == 0)
    if statistics is not None:
        gl.store(statistics + near, spread, mask=first)
        if CENTRED:
            gl.store(statistics + rows + near, middle, mask=first)
    for i in gl.static_range(PIECES):
        column = start + i * WIDTH
        value = (pieces[i] - middle[:, None]) * spread[:, None]
        if weight is not None:
            if EARLY:
                value = value * weights[i].to(gl.float32)
            else:
                value = value * load_columns(
                    weight, columns, column, ALIGN, WIDTH, layout, is_whole(i, PARTS, PIECES)
                )  # fmt: skip
        if bias is not None:
            if EARLY:
                value = value + biases[i].to(gl.float32)
            else:
                value = value + load_columns(
                    bias, columns, column, ALIGN, WIDTH, layout, is_whole(i, PARTS, PIECES)
                )  # fmt: skip
        store_piece(
            dst, value, row, rows, columns, column, dst_stride, ALIGN, is_whole(i, PARTS, PIECES)
        )  # fmt: skip
