"""Running sums of rows of any width: each block of a row begins where the one before ended."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.rows import example, row_start, rows_at, sizes_of


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def row_cumsum(src, dst, rows, columns, stride, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    src = row_start(src, first, stride)
    dst = row_start(dst, first, stride)
    before = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
    x = gl.portable.load(src, at, inside).to(gl.float32)
    for start in range(0, columns, BLOCK):
        # What comes next is under way while this is added up.
        after = start + BLOCK
        at, there = rows_at(rows - first, columns - after, stride, layout, ROWS, BLOCK)
        following = gl.portable.load(src + after, at, there)
        at, inside = rows_at(rows - first, columns - start, stride, layout, ROWS, BLOCK)
        result = gl.associative_scan(x, 1, add) + before[:, None]
        gl.portable.store(dst + start, at, result, inside)
        before += gl.sum(x, axis=1)
        x = following.to(gl.float32)


def arguments(new, large, shape=None):
    rows, columns = sizes_of(large, shape)
    return {
        "src": new.random((rows, columns), "bfloat16"),
        "dst": new.empty((rows, columns), "float32"),
        "rows": rows,
        "columns": columns,
        "stride": columns,
    }


def reference(args):
    return args["src"].astype(np.float64).cumsum(axis=1)


def wide_arguments(new, large, shape=None):
    return arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)))


EXAMPLES = [
    example("running sum", row_cumsum, arguments, reference, "dst", 3, tolerance=1e-5),
]
# Not in the demo.
MORE = [
    example(
        "running sum of wide rows",
        row_cumsum,
        wide_arguments,
        reference,
        "dst",
        3,
        tolerance=1e-5,
        large={"most": 8192},
    ),
]
