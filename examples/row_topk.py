"""The largest elements of each row, up to 8, with their columns; among equals, those of lower columns.

An element and its column become one integer that compares as they do. Eight columns far apart are
sorted in each thread by a network, what a thread has seen and what it sees next are merged without a
branch (Batcher, 1968), and at the end of the row threads are merged likewise, as a reduction.
"""

import dataclasses
import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import main

try:
    from .rows import example, row_start, rows_at, sizes_of
except ImportError:  # run as a program
    from rows import example, row_start, rows_at, sizes_of


@gluon.jit
def ordered(a, b):
    return gl.maximum(a, b), gl.minimum(a, b)


@gluon.jit
def merged(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    """The eight largest of two descending lists, descending."""
    a0, a4 = ordered(gl.maximum(a0, b7), gl.maximum(a4, b3))
    a1, a5 = ordered(gl.maximum(a1, b6), gl.maximum(a5, b2))
    a2, a6 = ordered(gl.maximum(a2, b5), gl.maximum(a6, b1))
    a3, a7 = ordered(gl.maximum(a3, b4), gl.maximum(a7, b0))
    a0, a2 = ordered(a0, a2)
    a1, a3 = ordered(a1, a3)
    a4, a6 = ordered(a4, a6)
    a5, a7 = ordered(a5, a7)
    a0, a1 = ordered(a0, a1)
    a2, a3 = ordered(a2, a3)
    a4, a5 = ordered(a4, a5)
    a6, a7 = ordered(a6, a7)
    return a0, a1, a2, a3, a4, a5, a6, a7


@gluon.jit
def sort(a0, a1, a2, a3, a4, a5, a6, a7):
    """Descending."""
    a0, a1 = ordered(a0, a1)
    a2, a3 = ordered(a2, a3)
    a4, a5 = ordered(a4, a5)
    a6, a7 = ordered(a6, a7)
    a0, a2 = ordered(a0, a2)
    a1, a3 = ordered(a1, a3)
    a4, a6 = ordered(a4, a6)
    a5, a7 = ordered(a5, a7)
    a1, a2 = ordered(a1, a2)
    a5, a6 = ordered(a5, a6)
    a0, a4 = ordered(a0, a4)
    a1, a5 = ordered(a1, a5)
    a2, a6 = ordered(a2, a6)
    a3, a7 = ordered(a3, a7)
    a2, a4 = ordered(a2, a4)
    a3, a5 = ordered(a3, a5)
    a1, a2 = ordered(a1, a2)
    a3, a4 = ordered(a3, a4)
    a5, a6 = ordered(a5, a6)
    return a0, a1, a2, a3, a4, a5, a6, a7


@gluon.jit
def keys_of(x, column, inside, KEY: gl.constexpr):
    """The number's bits, ordered, above the columns from the last on; NaN is largest."""
    HALF: gl.constexpr = KEY.primitive_bitwidth // 2
    narrow: gl.constexpr = gl.int16 if HALF == 16 else gl.int32
    MASK: gl.constexpr = 2 ** (HALF - 1) - 1
    bits = x.to(narrow, bitcast=True)
    bits = gl.where(x != x, MASK, bits ^ ((bits >> (HALF - 1)) & MASK))
    key = (bits.to(KEY) << HALF) | (2**HALF - 1 - column.to(KEY))
    return gl.where(inside, key, -(2 ** (2 * HALF - 1)))


@gluon.jit
def seen(src, start, left, columns, stride, layout, KEY: gl.constexpr, ROWS: gl.constexpr,
         BLOCK: gl.constexpr):  # fmt: skip
    at, inside = rows_at(left, columns - start, stride, layout, ROWS, BLOCK)
    x = gl.portable.load(src + start, at, inside)
    if KEY.primitive_bitwidth == 64:
        x = x.to(gl.float32)
    column = start + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    return keys_of(x, column[None, :], inside, KEY)


@gluon.jit
def top_k(
    src, values, indices, rows, columns, stride, count,
    KEY: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """`count` of each row of `src`, descending: `values` and `indices`, int32, are [rows, count].
    Columns may need half of the bits of KEY at most."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    src = row_start(src, first, stride)
    left = rows - first
    nothing = gl.full([ROWS, BLOCK], -(2 ** (KEY.primitive_bitwidth - 1)), KEY, layout)
    best = (nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    for start in range(0, columns, 8 * BLOCK):
        k0 = seen(src, start, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k1 = seen(src, start + BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k2 = seen(src, start + 2 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k3 = seen(src, start + 3 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k4 = seen(src, start + 4 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k5 = seen(src, start + 5 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k6 = seen(src, start + 6 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        k7 = seen(src, start + 7 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK)
        best = merged(*best, *sort(k0, k1, k2, k3, k4, k5, k6, k7))
    largest = gl.reduce(best, 1, merged)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    HALF: gl.constexpr = KEY.primitive_bitwidth // 2
    dtype: gl.constexpr = src.dtype.element_ty if HALF == 16 else gl.float32
    narrow: gl.constexpr = gl.int16 if HALF == 16 else gl.int32
    for i in gl.static_range(8):
        key = largest[i]
        there = (row < rows) & (i < count)
        at = row.to(gl.int64) * count + i
        gl.store(indices + at, (2**HALF - 1 - (key & (2**HALF - 1))).to(gl.int32), mask=there)
        bits = (key >> HALF).to(narrow)
        bits = bits ^ ((bits >> (HALF - 1)) & (2 ** (HALF - 1) - 1))
        gl.store(values + at, bits.to(dtype, bitcast=True).to(values.dtype.element_ty), mask=there)


def arguments(new, large, shape=None, dtype="bfloat16", count=8):
    rows, columns = sizes_of(large, shape)
    count = min(count, columns)
    return {
        "src": new.random((rows, columns), dtype),
        "values": new.empty((rows, count), dtype),
        "indices": new.integers((rows, count), 0, 1, "int32"),
        "rows": rows,
        "columns": columns,
        "stride": columns,
        "count": count,
    }


def single_arguments(new, large, shape=None):
    return arguments(new, large, shape, "float32", 5)


def reference(args):
    return -np.sort(-args["src"].astype(np.float64), axis=1)[:, : args["count"]]


def top(name, arguments, key):
    made = example(name, top_k, arguments, reference, "values", 1, tolerance=1e-7, KEY=key)

    def config(warp_size, columns=1000, rows=None, block=None, num_warps=4):
        block = block or min(512, max(32, 2 ** math.ceil(math.log2(columns / 8))))
        rows = rows or max(1, 256 // block)
        return {"KEY": key, "ROWS": rows, "BLOCK": block, "num_warps": num_warps}

    return dataclasses.replace(made, config=config, large_config=config)


EXAMPLES = [top("top-k", arguments, gl.int32)]
# Not in the demo.
MORE = [top("top-k, single precision", single_arguments, gl.int64)]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
