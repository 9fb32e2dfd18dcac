"""Around the gradients of attention that are added up: statistics of rows before, and the order of sums after.

Sums of 64 x 64 elements lie in memory as threads have them in registers after `wgmma`, so that they are
stored by fours, and to all banks of shared memory.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import wait_for_predecessor


@gluon.constexpr_function
def added_rows(width, last):
    """Return how many of 64 rows of sums a step adds to, whose last products have so many columns."""
    return 64 * (width - 64 + last) // width


@gluon.jit
def prepare(
    out, grad, logsums, statistics, sums, counter, strides, of_sequence, length, padded, width, D: gl.constexpr,
    LAST: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Store of each row less the logarithm of its sum, and less the sum of `out * grad`, and set `sums` and `counter` to 0.

    `out` and `grad` are [batch, of_sequence, length, width], `strides` theirs of batches, heads and rows. `statistics` are [heads, 2, padded], 0 past the end of the rows; `sums` have as many padded rows, of
    which the products of the last LAST columns take less than those of 64.
    """
    wait_for_predecessor()
    row = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    head = gl.program_id(1)
    if gl.program_id(0) + head == 0:
        gl.store(counter, 0)
    there = row < length
    batch = (head // of_sequence).to(gl.int64)
    of_batch = (head % of_sequence).to(gl.int64)
    out += batch * strides[0][0] + of_batch * strides[0][1]
    grad += batch * strides[1][0] + of_batch * strides[1][1]
    rows = row.to(gl.int64)[:, None]
    inside = there[:, None] & (column < width)[None, :]
    offsets = rows * strides[0][2] + column[None, :]
    x = gl.load(out + offsets, mask=inside, other=0.0).to(gl.float32)
    offsets = rows * strides[1][2] + column[None, :]
    y = gl.load(grad + offsets, mask=inside, other=0.0).to(gl.float32)
    targets = (head * padded + row).to(gl.int64)[:, None] * D + column[None, :]
    gl.store(sums + targets, gl.zeros_like(x), mask=(row % 64 < added_rows(D, LAST))[:, None])
    logsum = gl.load(logsums + head * length + row, mask=there, other=0.0)
    gl.store(statistics + 2 * head * padded + row, -logsum)
    gl.store(statistics + (2 * head + 1) * padded + row, -gl.sum(x * y, 1))


@gluon.jit
def in_order_of_registers(x):
    """Return a product of 64 rows so that the elements of a thread lie in memory by fours."""
    EIGHTS: gl.constexpr = x.shape[1] // 8
    x = x.reshape([4, 2, 8, EIGHTS, 4, 2]).permute((3, 0, 2, 4, 1, 5))
    return x.reshape([2 * EIGHTS, 256])


@gluon.jit
def in_order_of_rows(sums, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Load a product of 64 rows from the order of registers."""
    x = gl.load(sums + gl.arange(0, 64 * COLUMNS, LAYOUT))
    x = x.reshape([COLUMNS // 8, 4, 8, 4, 2, 2]).permute((1, 4, 2, 0, 3, 5))
    return x.reshape([64, COLUMNS])


@gluon.jit
def wrapped(step, steps, CAUSAL: gl.constexpr):
    """Return the tile of queries of a step.

    Programs begin at the rows of their keys, with a mask or not, so that they add in different places.
    """
    if CAUSAL:
        return step
    else:
        return gl.where(step < steps, step, step - steps)


@gluon.jit
def finish(
    sums,
    result,
    length,
    padded,
    width,
    scale,
    D: gl.constexpr,
    LAST: gl.constexpr,
    LAYOUT: gl.constexpr,
    OUT: gl.constexpr,
):
    """Bring each 64 x 64 elements, or 64 x LAST in the last columns, back into their order, scale them, and store [heads, length, width]."""
    wait_for_predecessor()
    tile, head = gl.program_id(0), gl.program_id(1)
    finish_at(tile, head, sums, result, (length, padded, width, scale), (D, LAST), LAYOUT, OUT)


@gluon.jit
def finish_at(
    tile, head, sums, result, sizes, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr, OUT: gl.constexpr
):
    """Finish one tile of a head."""
    length, padded, width, scale = sizes
    D: gl.constexpr = COLUMNS[0]
    LAST: gl.constexpr = COLUMNS[1]
    ACROSS: gl.constexpr = D // 64
    sums += (head * (padded // 64) * ACROSS + tile).to(gl.int64) * 4096
    places = (result, length, width, scale)
    if LAST == 64:
        finish_tile(sums, places, head, tile // ACROSS, tile % ACROSS, 64, LAYOUT, OUT)
    elif tile % ACROSS < ACROSS - 1:
        finish_tile(sums, places, head, tile // ACROSS, tile % ACROSS, 64, LAYOUT, OUT)
    else:
        finish_tile(sums, places, head, tile // ACROSS, tile % ACROSS, LAST, LAYOUT, OUT)


@gluon.jit
def finish_tile(
    sums, places, head, down, across, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr, OUT: gl.constexpr
):
    """Store the rows of one tile of sums."""
    result, length, width, scale = places
    x = in_order_of_rows(sums, COLUMNS, LAYOUT) * scale
    x = gl.convert_layout(x.to(result.dtype.element_ty), OUT)
    row = down * 64 + gl.arange(0, 64, gl.SliceLayout(1, OUT))
    column = across * 64 + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    offsets = (head * length + row).to(gl.int64)[:, None] * width + column[None, :]
    gl.store(result + offsets, x, mask=(row < length)[:, None] & (column < width)[None, :])


@gluon.jit
def join_heads(
    keys, values, to_keys, to_values, of_keys, of_values, PARTS: gl.constexpr, BLOCK: gl.constexpr
):
    """Add up the gradients that parts of the heads of queries have for the keys and values that they share, in order.

    The grid has blocks of a head of keys, these heads, and keys and values. `of_keys` and `of_values` are the strides of heads, parts and rows in
    the parts, those of heads and rows in the results, None or four numbers of `launches.Pieces` if the steps of tiles of 128 rows are in parts, too: how many of these a head of queries
    has, the steps of the first tile, how many less each one behind has, and those of a part at most; then how many rows have parts, the others having zeros, and the rows and columns of a result.
    """
    wait_for_predecessor()
    block, head = gl.program_id(0), gl.program_id(1)
    if gl.program_id(2) == 0:
        join(block, head, keys, to_keys, of_keys, PARTS, BLOCK)
    else:
        join(block, head, values, to_values, of_values, PARTS, BLOCK)


@gluon.jit
def finish_and_join(
    sums, result, keys, values, to_keys, to_values, counts, sizes, of_keys, of_values, COLUMNS: gl.constexpr,
    LAYOUT: gl.constexpr, OUT: gl.constexpr, PARTS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Do what `finish` and `join_heads` do, in one launch.

    `counts` are the tiles that a head of queries has in `finish`, the programs of all of these, and the blocks and heads of the grid of `join_heads`, whose
    programs come behind. `sizes` are the length, padded length and width of queries, and the scale.
    """
    wait_for_predecessor()
    tiles, finishing, blocks, heads = counts
    program = gl.program_id(0)
    if program < finishing:
        finish_at(program % tiles, program // tiles, sums, result, sizes, COLUMNS, LAYOUT, OUT)
    else:
        place = program - finishing
        block, head = place % blocks, place // blocks
        if head < heads:
            join(block, head, keys, to_keys, of_keys, PARTS, BLOCK)
        else:
            join(block, head - heads, values, to_values, of_values, PARTS, BLOCK)


@gluon.jit
def join(block, head, parts, result, sizes, PARTS: gl.constexpr, BLOCK: gl.constexpr):
    """Add up the parts of a block of a head."""
    strides, to, divided, seen, length, width = sizes
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], parts.dtype.element_ty)
    place = block * BLOCK + gl.arange(0, BLOCK, layout)
    head = gl.to_tensor(head).to(gl.int64)
    row, column = place // width, place % width
    parts += head * strides[0]
    offsets = row.to(gl.int64) * strides[2] + column
    acc = gl.zeros([BLOCK], gl.float32, layout)
    for part in gl.static_range(PARTS):
        there = row < seen
        if divided is not None:
            many, steps, fewer, most = divided
            steps = gl.maximum(steps - row // 128 * fewer, 1)
            there = there & (part % many * most < steps)
        acc += gl.load(parts + part * strides[1] + offsets, mask=there, other=0.0)
    offsets = row.to(gl.int64) * to[1] + column
    gl.store(result + head * to[0] + offsets, acc, mask=row < length)


def padded(length):
    """Return how many rows the sums of a head have."""
    return -(-length // 128) * 128


def kept(shape):
    """Return the shapes of statistics and sums, float32, for tensors [heads, length, D]."""
    rows = shape[0] * padded(shape[1])
    return {"statistics": (2 * rows,), "sums": (rows * shape[2] // 256, 256)}
