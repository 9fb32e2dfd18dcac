"""Around the gradients of attention over packed sequences: statistics of rows before, and the order of sums after."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.sums import added_rows, in_order_of_rows
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def padded_start(begin, sequence, UNIT: gl.constexpr):
    """Return the row where a sequence's statistics begin: UNIT rows belong to one sequence."""
    return (begin + UNIT * sequence) // UNIT * UNIT


@gluon.jit
def tokens_at(base, near, lists, count, MOST: gl.constexpr, UNIT: gl.constexpr):
    """Return the tokens that have the statistics from `base` on, the token past the last of their sequence, and the sequence."""
    index = gl.arange(0, MOST, near.type.layout)
    last_step = gl.load(lists + index + 1, mask=index < count, other=0)
    past = (index < count) & (padded_start(last_step, index + 1, UNIT) <= base)
    sequence = gl.sum(past.to(gl.int32), 0)
    begin = gl.load(lists + sequence, mask=sequence < count, other=0)
    end = gl.load(lists + sequence + 1, mask=sequence < count, other=0)
    return begin + base + near - padded_start(begin, sequence, UNIT), end, sequence


@gluon.jit
def placed(x, strides, sequence, head):
    """Return a pointer to the rows of a head; strides are those of sequences beyond their rows, of rows and of heads."""
    return x + sequence.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[2]


@gluon.jit
def prepare(
    out, grad, logsums, statistics, sums, counter, strides, lists, count, width, D: gl.constexpr, LAST: gl.constexpr,
    MOST: gl.constexpr, UNIT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Store the logarithm of each query's sum and the sum of `out * grad`, and set `sums` and `counter` to 0.

    Statistics are [heads, rows / UNIT, 2, UNIT], infinite and 0 in rows without a query. `out` and `grad` are [tokens, heads, width] and
    `logsums` [tokens, heads], or batches of them; `strides` are those that `placed` takes. `lists` are the first tokens of the sequences, `sums` [heads, rows, D], `counter` one number, either or both None; of
    which the products of the last LAST columns take less than those of 64.
    """
    wait_for_predecessor()
    base = gl.program_id(0) * UNIT
    head = gl.program_id(1)
    near = gl.arange(0, UNIT, gl.SliceLayout(1, LAYOUT))
    line, end, sequence = tokens_at(base, near, lists, count, MOST, UNIT)
    valid = line < end
    place = line.to(gl.int64)
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    inside = valid[:, None] & (column < width)[None, :]
    out = placed(out, strides[0], sequence, head)
    grad = placed(grad, strides[1], sequence, head)
    logsums = placed(logsums, strides[2], sequence, head)
    position = place[:, None] * strides[0][1] + column[None, :]
    x = gl.load(out + position, mask=inside, other=0.0).to(gl.float32)
    position = place[:, None] * strides[1][1] + column[None, :]
    y = gl.load(grad + position, mask=inside, other=0.0).to(gl.float32)
    logsum = gl.load(logsums + place * strides[2][1], mask=valid, other=float("inf"))
    rows = gl.num_programs(0) * UNIT
    to = statistics + 2 * (head * rows + base) + near
    gl.store(to, logsum)
    gl.store(to + UNIT, gl.sum(x * y, 1))
    if counter is not None:
        if base + head == 0:
            gl.store(counter, 0)
    if sums is not None:
        position = (head * rows + base + near).to(gl.int64)[:, None] * D + column[None, :]
        gl.store(sums + position, gl.zeros_like(x), mask=(near % 64 < added_rows(D, LAST))[:, None])


@gluon.jit
def finish(
    sums, result, lists, count, heads, width, scale, D: gl.constexpr, LAST: gl.constexpr, MOST: gl.constexpr,
    UNIT: gl.constexpr, LAYOUT: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Bring each 64 x 64 elements of the sums, or 64 x LAST in the last columns, back into their order, scale them, and store the rows of tokens."""
    wait_for_predecessor()
    ACROSS: gl.constexpr = D // 64
    tile = gl.program_id(0)
    head = gl.program_id(1)
    sums += (head * gl.num_programs(0) + tile).to(gl.int64) * 4096
    places = (result, lists, count, heads, width, scale)
    if LAST == 64:
        finish_tile(sums, places, head, tile // ACROSS, tile % ACROSS, 64, MOST, UNIT, LAYOUT, OUT)
    elif tile % ACROSS < ACROSS - 1:
        finish_tile(sums, places, head, tile // ACROSS, tile % ACROSS, 64, MOST, UNIT, LAYOUT, OUT)
    else:
        finish_tile(
            sums, places, head, tile // ACROSS, tile % ACROSS, LAST, MOST, UNIT, LAYOUT, OUT
        )


@gluon.jit
def finish_tile(
    sums, places, head, down, across, COLUMNS: gl.constexpr, MOST: gl.constexpr, UNIT: gl.constexpr,
    LAYOUT: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Store the tokens of one tile of sums."""
    result, lists, count, heads, width, scale = places
    x = in_order_of_rows(sums, COLUMNS, LAYOUT) * scale
    x = gl.convert_layout(x.to(result.dtype.element_ty), OUT)
    inside = down * 64 % UNIT + gl.arange(0, 64, gl.SliceLayout(1, OUT))
    line, end, _ = tokens_at(down * 64 // UNIT * UNIT, inside, lists, count, MOST, UNIT)
    column = across * 64 + gl.arange(0, COLUMNS, gl.SliceLayout(0, OUT))
    position = (line.to(gl.int64) * heads + head)[:, None] * width + column[None, :]
    gl.store(result + position, x, mask=(line < end)[:, None] & (column < width)[None, :])


def rows_of(tokens, sequences, unit=64):
    """Return how many rows the statistics have."""
    return (tokens // unit + sequences) * unit
