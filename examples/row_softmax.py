"""Softmax of the rows of a matrix, of any width, forward and backward.

A row that registers hold is read once. A longer one is read twice: the first time for its maximum
and its sum, which are kept up to date together (Milakov and Gimelshein, arXiv:1805.02867), in each
thread for the columns that it sees; the second time from the cache.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import main

try:
    from .rows import (
        again,
        example,
        fetch,
        fetch_part,
        keep,
        memory_for,
        part_at,
        row_start,
        rows_at,
        sizes_of,
        slots_for,
    )
except ImportError:  # run as a program
    from rows import (
        again,
        example,
        fetch,
        fetch_part,
        keep,
        memory_for,
        part_at,
        row_start,
        rows_at,
        sizes_of,
        slots_for,
    )

LOG2E: gl.constexpr = gl.constexpr(1.4426950408889634)
LOWEST: gl.constexpr = gl.constexpr(-3.3e38)  # a start for a maximum that can be subtracted


@gluon.jit
def softmax(src, dst, rows, columns, stride, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
    x = gl.portable.load(row_start(src, first, stride), at, inside, -float("inf"))
    x = x.to(gl.float32)
    numerator, _, total = gl.portable.row_exponentials(x)
    result = numerator * (1 / total)[:, None]
    gl.portable.store(row_start(dst, first, stride), at, result, inside)


@gluon.jit
def softmax_streamed(
    src, dst, rows, columns, stride,
    SLOTS: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.portable.blocked_layout([1, BLOCK], src.dtype.element_ty)
    slots = slots_for(SLOTS, src.dtype.element_ty, layout, BLOCK)
    begin = gl.program_id(0)
    for i in gl.static_range(SLOTS):
        row = begin + i * PROGRAMS
        fetch(slots.index(i), src, row, rows, columns, stride, layout, BLOCK)
        gl.portable.commit()
    at, inside = rows_at(1, columns, stride, layout, 1, BLOCK)
    slot = 0
    for row in range(begin, rows, PROGRAMS):
        gl.portable.wait(SLOTS - 1)
        x = slots.index(slot).load(layout)
        after = row + SLOTS * PROGRAMS
        fetch(slots.index(slot), src, after, rows, columns, stride, layout, BLOCK)
        gl.portable.commit()
        x = x.to(gl.float32)
        if columns < BLOCK:
            x = gl.where(inside, x, -float("inf"))
        numerator, _, total = gl.portable.row_exponentials(x)
        result = numerator * (1 / total)[:, None]
        gl.portable.store(row_start(dst, row, stride), at, result, inside)
        slot = (slot + 1) % SLOTS
    gl.portable.wait(0)


@gluon.jit
def with_part(most, total, x):
    """What each thread has seen, and a part more."""
    higher = gl.maximum(most, gl.max(x, axis=0))
    exponential = gl.exp2((x - higher[None, :]) * LOG2E)
    return higher, total * gl.exp2((most - higher) * LOG2E) + gl.sum(exponential, axis=0)


@gluon.jit
def maximum_and_sum(src, kept, columns, layout, DEPTH: gl.constexpr, WIDTH: gl.constexpr):
    """The maximum of a row, and the sum of exponentials of what its elements are below that; the
    first parts stay in `kept`, if that is not None."""
    most = gl.full([WIDTH], LOWEST, gl.float32, gl.SliceLayout(0, layout))
    total = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        part = gl.portable.load(src, at, inside, -float("inf"))
        if kept is not None:
            keep(kept, start, part)
        most, total = with_part(most, total, part.to(gl.float32))
    highest = gl.max(most, axis=0)
    return highest, gl.sum(total * gl.exp2((most - highest) * LOG2E), axis=0)


@gluon.jit
def softmax_wide(
    src, dst, rows, columns, stride, KEPT: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    row = gl.program_id(0)
    src = row_start(src, row, stride)
    dst = row_start(dst, row, stride)
    kept = memory_for(KEPT, src.dtype.element_ty, DEPTH, WIDTH)
    highest, total = maximum_and_sum(src, kept, columns, layout, DEPTH, WIDTH)
    scale = 1 / total
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        x = again(kept, src, start, at, inside, layout).to(gl.float32)
        gl.portable.store(dst, at, gl.exp2((x - highest) * LOG2E) * scale, inside)


@gluon.jit
def softmax_ahead(
    src, dst, rows, columns, stride, KEPT: gl.constexpr, PROGRAMS: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Each program walks over several rows; where a part was, that of the next row is copied to."""
    SIZE: gl.constexpr = DEPTH * WIDTH
    kept = memory_for(KEPT, src.dtype.element_ty, DEPTH, WIDTH)
    begin = gl.program_id(0)
    for i in gl.static_range(KEPT):
        start = i * SIZE
        fetch_part(kept.index(i), src, begin, rows, start, columns, stride, layout, DEPTH, WIDTH)
    for row in range(begin, rows, PROGRAMS):
        own = row_start(src, row, stride)
        out = row_start(dst, row, stride)
        most = gl.full([WIDTH], LOWEST, gl.float32, gl.SliceLayout(0, layout))
        total = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
        for i in gl.static_range(KEPT):
            gl.portable.wait(KEPT - 1 - i)
            x = kept.index(i).load(layout).to(gl.float32)
            if columns < (i + 1) * SIZE:
                _, inside = part_at(i * SIZE, columns, layout, DEPTH, WIDTH)
                x = gl.where(inside, x, -float("inf"))
            most, total = with_part(most, total, x)
        for start in range(KEPT * SIZE, columns, SIZE):
            at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
            x = gl.portable.load(own, at, inside, -float("inf")).to(gl.float32)
            most, total = with_part(most, total, x)
        highest = gl.max(most, axis=0)
        shift = gl.log2(gl.sum(total * gl.exp2((most - highest) * LOG2E), axis=0))
        after = row + PROGRAMS
        for i in gl.static_range(KEPT):
            start = i * SIZE
            x = kept.index(i).load(layout).to(gl.float32)
            fetch_part(
                kept.index(i), src, after, rows, start, columns, stride, layout, DEPTH, WIDTH
            )
            at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
            gl.portable.store(out, at, gl.exp2((x - highest) * LOG2E - shift), inside)
        for start in range(KEPT * SIZE, columns, SIZE):
            at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
            x = gl.portable.load(own, at, inside).to(gl.float32)
            gl.portable.store(out, at, gl.exp2((x - highest) * LOG2E - shift), inside)
    gl.portable.wait(0)


@gluon.jit
def softmax_backward(
    grad, result, dst, rows, columns, stride, ROWS: gl.constexpr, BLOCK: gl.constexpr
):
    """`dst = result * (grad - sum(result * grad))`"""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], grad.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
    g = gl.portable.load(row_start(grad, first, stride), at, inside).to(gl.float32)
    y = gl.portable.load(row_start(result, first, stride), at, inside).to(gl.float32)
    along = gl.sum(g * y, axis=1)
    gl.portable.store(row_start(dst, first, stride), at, y * (g - along[:, None]), inside)


@gluon.jit
def softmax_backward_streamed(
    grad, result, dst, rows, columns, stride,
    SLOTS: gl.constexpr, PROGRAMS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.portable.blocked_layout([1, BLOCK], grad.dtype.element_ty)
    slots_g = slots_for(SLOTS, grad.dtype.element_ty, layout, BLOCK)
    slots_y = slots_for(SLOTS, result.dtype.element_ty, layout, BLOCK)
    begin = gl.program_id(0)
    for i in gl.static_range(SLOTS):
        row = begin + i * PROGRAMS
        fetch(slots_g.index(i), grad, row, rows, columns, stride, layout, BLOCK)
        fetch(slots_y.index(i), result, row, rows, columns, stride, layout, BLOCK)
        gl.portable.commit()
    at, inside = rows_at(1, columns, stride, layout, 1, BLOCK)
    slot = 0
    for row in range(begin, rows, PROGRAMS):
        gl.portable.wait(SLOTS - 1)
        g = slots_g.index(slot).load(layout)
        y = slots_y.index(slot).load(layout)
        after = row + SLOTS * PROGRAMS
        fetch(slots_g.index(slot), grad, after, rows, columns, stride, layout, BLOCK)
        fetch(slots_y.index(slot), result, after, rows, columns, stride, layout, BLOCK)
        gl.portable.commit()
        g, y = g.to(gl.float32), y.to(gl.float32)
        along = gl.sum(gl.sum(g * y, axis=1), axis=0)
        gl.portable.store(row_start(dst, row, stride), at, y * (g - along), inside)
        slot = (slot + 1) % SLOTS
    gl.portable.wait(0)


@gluon.jit
def softmax_backward_wide(
    grad, result, dst, rows, columns, stride, KEPT: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    row = gl.program_id(0)
    grad = row_start(grad, row, stride)
    result = row_start(result, row, stride)
    kept_g = memory_for(KEPT, grad.dtype.element_ty, DEPTH, WIDTH)
    kept_y = memory_for(KEPT, result.dtype.element_ty, DEPTH, WIDTH)
    along = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        g = gl.portable.load(grad, at, inside)
        y = gl.portable.load(result, at, inside)
        keep(kept_g, start, g)
        keep(kept_y, start, y)
        along += gl.sum(g.to(gl.float32) * y.to(gl.float32), axis=0)
    total = gl.sum(along, axis=0)
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        g = again(kept_g, grad, start, at, inside, layout).to(gl.float32)
        y = again(kept_y, result, start, at, inside, layout).to(gl.float32)
        gl.portable.store(row_start(dst, row, stride), at, y * (g - total), inside)


def arguments(new, large, shape=None):
    rows, columns = sizes_of(large, shape)
    return {
        "src": new.random((rows, columns), "bfloat16"),
        "dst": new.empty((rows, columns), "bfloat16"),
        "rows": rows,
        "columns": columns,
        "stride": columns,
    }


def wide_arguments(new, large, shape=None):
    return arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)))


def backward_arguments(new, large, shape=None):
    given = arguments(new, large, shape)
    size = (given["rows"], given["columns"])
    return {"grad": new.random(size, "bfloat16"), "result": given.pop("src"), **given}


def wide_backward_arguments(new, large, shape=None):
    return backward_arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)))


def reference(args):
    src = args["src"].astype(np.float64)
    exponential = np.exp(src - src.max(axis=1, keepdims=True))
    return exponential / exponential.sum(axis=1, keepdims=True)


def backward_reference(args):
    grad, result = args["grad"].astype(np.float64), args["result"].astype(np.float64)
    return result * (grad - (grad * result).sum(axis=1, keepdims=True))


EXAMPLES = [
    example("softmax of rows", softmax, arguments, reference, "dst", 2),
    example("softmax of wide rows", softmax_wide, wide_arguments, reference, "dst", 2),
]
# Not in the demo.
MORE = [
    example(
        "softmax, backward", softmax_backward, backward_arguments, backward_reference, "dst", 3
    ),
    example(
        "softmax of wide rows, backward",
        softmax_backward_wide,
        wide_backward_arguments,
        backward_reference,
        "dst",
        3,
    ),
    example("softmax of rows, streamed", softmax_streamed, arguments, reference, "dst", 2),
    example(
        "softmax, streamed, backward",
        softmax_backward_streamed,
        backward_arguments,
        backward_reference,
        "dst",
        3,
        large={"slots": 1},
    ),
    example("softmax of wide rows, ahead", softmax_ahead, wide_arguments, reference, "dst", 2),
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
