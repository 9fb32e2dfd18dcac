"""Results of parts of the keys, put together: a sum weighted by what each part's scores add up to."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.tiles import power_of_two, whole_tiles, with_sink
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["join_tiles", "store_part", "sum_of_parts"]


@gluon.jit
def store_columns(parts, place, result, D: gl.constexpr):
    """Store columns of rows from number `place` on, which have D columns."""
    layout: gl.constexpr = result.type.layout
    row = place + gl.arange(0, result.shape[0], gl.SliceLayout(1, layout))
    column = gl.arange(0, result.shape[1], gl.SliceLayout(0, layout))
    gl.store(parts + row[:, None] * D + column[None, :], result)


@gluon.jit
def store_part(parts, place, sizes, results, logsum, SETTINGS: gl.constexpr):
    """Store rows of a part from number `place` on, whose columns are in one tensor or two, and the logarithms of their sums behind all parts."""
    D: gl.constexpr = results[0].shape[1] + (results[1].shape[1] if len(results) == 2 else 0)
    tiles = gl.cdiv(sizes[1], SETTINGS[0]) * sizes[0] - whole_tiles(sizes[4])
    sums = parts + tiles.to(gl.int64) * sizes[5] * (SETTINGS[0] * D)
    begin = 0
    for i in gl.static_range(len(results)):
        store_columns(parts + begin, place, results[i], D)
        begin += results[i].shape[1]
    row = place + gl.arange(0, logsum.shape[0], logsum.type.layout)
    gl.store(sums + row, logsum)


@gluon.jit
def sum_of_parts(
    parts, logsums, first, step, count, there, D: gl.constexpr, layout: gl.constexpr, TOGETHER: gl.constexpr = 4
):  # fmt: skip
    """Return the sums of rows of `parts` [..., D], the powers of 2 that they are relative to, and their totals.

    `first` are the places of the rows of the first part, and `step` is the distance of those of the next; `logsums` have one number for each, the
    logarithm (base 2) of its sum. `layout` is that of the rows, which are `there` or zeros; columns past D, up to a power of two, are zeros, too.
    TOGETHER is how many parts are loaded at a time.
    """
    COLUMNS: gl.constexpr = power_of_two(D)
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    largest = gl.full([first.shape[0]], -1e30, gl.float32, gl.SliceLayout(1, layout))
    total = gl.zeros([first.shape[0]], gl.float32, gl.SliceLayout(1, layout))
    acc = gl.zeros([first.shape[0], COLUMNS], gl.float32, layout)
    for begin in range(0, count, TOGETHER):
        for i in gl.static_range(TOGETHER):
            nth = begin + i
            place = first + nth * step
            exists = there & (nth < count)
            logsum = gl.load(logsums + place, mask=exists, other=-float("inf"))
            inside = exists[:, None]
            if COLUMNS != D:
                inside = inside & (column < D)
            part = gl.load(parts + place[:, None] * D + column, mask=inside, other=0.0)
            higher = gl.maximum(largest, logsum)
            kept = gl.exp2(largest - higher)
            weight = gl.exp2(logsum - higher)
            total = total * kept + weight
            acc = acc * kept[:, None] + part * weight[:, None]
            largest = higher
    return acc, largest, total


@gluon.jit
def join_tiles(
    parts, out, logsums, sinks, strides, of_sequence, length, width, first, count, splits, D: gl.constexpr,
    BLOCK_M: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Put the parts of `count` tiles of BLOCK_M queries from number `first` on together, ROWS at a time.

    `parts` are [count, splits, BLOCK_M, D], and the logarithms of their sums [count, splits, BLOCK_M] behind these. `out` has the `strides` of
    batches, heads and rows, `of_sequence` heads in a batch, rows of `length` and `width` columns. The logarithms of whole sums go to `logsums`
    [heads, length], if that is not None; `sinks`, if not None, are scores without values, one for each head of a batch.
    """
    wait_for_predecessor()
    COLUMNS: gl.constexpr = power_of_two(D)
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, COLUMNS], gl.float32)
    nth = gl.program_id(0) // (BLOCK_M // ROWS)
    begin = gl.program_id(0) % (BLOCK_M // ROWS) * ROWS
    tiles = gl.cdiv(length, BLOCK_M)
    head = (first + nth) // tiles
    inside = begin + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    row = (first + nth) % tiles * BLOCK_M + inside
    there = row < length
    sums = parts + gl.to_tensor(count).to(gl.int64) * splits * (BLOCK_M * D)
    place = nth * splits * BLOCK_M + inside
    acc, largest, total = sum_of_parts(parts, sums, place, BLOCK_M, splits, there, D, layout)
    kept = 1.0
    if sinks is not None:
        largest, total, kept = with_sink(gl.load(sinks + head % of_sequence), largest, total)
    total = gl.where(there, total, 1.0)
    acc = acc * (kept / total)[:, None]
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    batch = (head // of_sequence).to(gl.int64)
    out += batch * strides[0] + (head % of_sequence).to(gl.int64) * strides[1]
    offsets = row.to(gl.int64)[:, None] * strides[2] + column[None, :]
    gl.store(out + offsets, acc.to(out.dtype.element_ty), mask=there[:, None] & (column < width)[None, :])  # fmt: skip
    if logsums is not None:
        gl.store(logsums + head * length + row, largest + gl.log2(total), mask=there)
