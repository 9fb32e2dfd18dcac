"""Softmax of the rows of a matrix, of any width, forward and backward.

A row that registers hold is read once. A longer one is read twice: the first time for its maximum
and its sum, which are kept up to date together (Milakov and Gimelshein, arXiv:1805.02867), in each
thread for the columns that it sees; the second time from the cache.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.rows import (
    again,
    example,
    keep,
    memory_for,
    part_at,
    row_start,
    rows_at,
    sizes_of,
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
    numerator, _, total = gl.portable.cluster_softmax(x)
    result = numerator * (1 / total)[:, None]
    gl.portable.store(row_start(dst, first, stride), at, result, inside)


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
        x = part.to(gl.float32)
        higher = gl.maximum(most, gl.max(x, axis=0))
        exponential = gl.exp2((x - higher[None, :]) * LOG2E)
        total = total * gl.exp2((most - higher) * LOG2E) + gl.sum(exponential, axis=0)
        most = higher
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
    args = arguments(new, large, shape)
    size = (args["rows"], args["columns"])
    return {"grad": new.random(size, "bfloat16"), "result": args.pop("src"), **args}


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
]
