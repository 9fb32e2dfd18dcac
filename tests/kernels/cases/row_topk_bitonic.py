"""The largest elements of each row, up to 8, with their columns; among equals, those of lower columns.

An element and its column become one integer that compares as they do, and so do a group of neighbours,
16 bytes of a row, and its largest element. Each thread keeps the eight best of the groups that it saw, in
order; networks of comparisons merge four new ones without a branch (Batcher, 1968). A warp then picks its
eight best, and the eight best elements of those.
"""

import dataclasses

import numpy as np
import triton.language as tl

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.rows import example, row_start, rows_at, sizes_of

NAN_WINS = gl.constexpr(tl.PropagateNan.ALL)


@gluon.jit
def ordered(a, b):
    return gl.maximum(a, b), gl.minimum(a, b)


@gluon.jit
def merged(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3):
    """The eight largest of two descending lists, descending."""
    a0, a4 = ordered(a0, gl.maximum(a4, b3))
    a1, a5 = ordered(a1, gl.maximum(a5, b2))
    a2, a6 = ordered(a2, gl.maximum(a6, b1))
    a3, a7 = ordered(a3, gl.maximum(a7, b0))
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
def sort(a0, a1, a2, a3):
    """Descending."""
    a0, a1 = ordered(a0, a1)
    a2, a3 = ordered(a2, a3)
    a0, a2 = ordered(a0, a2)
    a1, a3 = ordered(a1, a3)
    a1, a2 = ordered(a1, a2)
    return a0, a1, a2, a3


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
def later(a, b):
    return gl.maximum(a, b, propagate_nan=NAN_WINS)


@gluon.jit
def best_of_groups(src, start, left, columns, stride, layout, KEY: gl.constexpr,
                   ROWS: gl.constexpr, BLOCK: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """Keys of groups of columns: that of the largest element, above the group's number."""
    at, inside = rows_at(left, columns - start, stride, layout, ROWS, BLOCK)
    x = gl.portable.load(src + start, at, inside, -float("inf")).to(gl.float32)
    largest = gl.reduce(x.reshape([ROWS, BLOCK // GROUP, GROUP]), 2, later) + 0.0  # no zero below 0
    if KEY.primitive_bitwidth == 32:
        largest = largest.to(src.dtype.element_ty)  # one of its elements: exact
    near = gl.arange(0, BLOCK // GROUP, gl.SliceLayout(0, largest.type.layout))
    group = start // GROUP + near
    return keys_of(largest, group[None, :], (group * GROUP < columns)[None, :], KEY)


@gluon.jit
def top_k(
    src, values, indices, rows, columns, stride, count,
    KEY: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """`count` of each row of `src`, descending, 8 at most: `values` and `indices`, int32, are [rows,
    count]. Columns may need half of the bits of KEY at most. Zeros of either sign are equal, and given as
    0; NaN is largest. A block of columns is one group for each thread of a warp, and a warp has rows of
    its own.

    Groups are looked at by their largest elements alone, until eight are left, whose elements are compared
    one by one. No other group is needed: if there are eight before it, because their largest elements are
    larger, or as large and further left, then the largest elements of those eight come before all that it
    has. The same is true of the groups that one thread saw, so that each thread keeps eight.
    """
    SIZE: gl.constexpr = KEY.primitive_bitwidth
    HALF: gl.constexpr = SIZE // 2
    LOW: gl.constexpr = -(2 ** (SIZE - 1))
    MASK: gl.constexpr = 2**HALF - 1
    GROUP: gl.constexpr = 128 // src.dtype.element_ty.primitive_bitwidth  # 16 bytes
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    src = row_start(src, first, stride)
    left = rows - first
    k0 = best_of_groups(src, 0, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
    k1 = best_of_groups(src, BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
    k2 = best_of_groups(src, 2 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
    k3 = best_of_groups(src, 3 * BLOCK, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
    k0, k1, k2, k3 = sort(k0, k1, k2, k3)
    none = gl.full(k0.shape, LOW, KEY, k0.type.layout)
    k4, k5, k6, k7 = none, none, none, none
    for start in range(4 * BLOCK, columns, 4 * BLOCK):
        b0 = best_of_groups(src, start, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
        start += BLOCK
        b1 = best_of_groups(src, start, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
        start += BLOCK
        b2 = best_of_groups(src, start, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
        start += BLOCK
        b3 = best_of_groups(src, start, left, columns, stride, layout, KEY, ROWS, BLOCK, GROUP)
        b0, b1, b2, b3 = sort(b0, b1, b2, b3)
        k0, k1, k2, k3, k4, k5, k6, k7 = merged(k0, k1, k2, k3, k4, k5, k6, k7, b0, b1, b2, b3)
    # Candidates lie side by side in a warp: the elements of the best group, of the next, and so on.
    of_some: gl.constexpr = gl.portable.blocked_layout([ROWS, 8 * GROUP], src.dtype.element_ty)
    place = gl.arange(0, 8 * GROUP, gl.SliceLayout(0, of_some))
    group = gl.zeros([ROWS, 8 * GROUP], gl.int32, of_some)
    for i in gl.static_range(8):
        best = gl.max(k0, axis=1)
        taken = k0 == best[:, None]
        k0 = gl.where(taken, k1, k0)
        k1 = gl.where(taken, k2, k1)
        k2 = gl.where(taken, k3, k2)
        k3 = gl.where(taken, k4, k3)
        k4 = gl.where(taken, k5, k4)
        k5 = gl.where(taken, k6, k5)
        k6 = gl.where(taken, k7, k6)
        k7 = gl.where(taken, none, k7)
        number = (MASK - (best & MASK)).to(gl.int32)
        number = gl.convert_layout(number, gl.SliceLayout(1, of_some))[:, None]
        group = gl.where((place // GROUP == i)[None, :], number, group)
    column = group * GROUP + (place % GROUP)[None, :]
    row = gl.arange(0, ROWS, gl.SliceLayout(1, of_some))
    inside = (column >= 0) & (column < columns) & (row < left)[:, None]  # of no group: -1
    x = gl.portable.load(src, row[:, None] * stride + column, inside).to(gl.float32) + 0.0
    if SIZE == 32:
        x = x.to(src.dtype.element_ty)
    keys = keys_of(x, column, inside, KEY)
    out: gl.constexpr = k0.type.layout
    slot = gl.arange(0, k0.shape[1], gl.SliceLayout(0, out))[None, :]
    chosen = none
    for i in gl.static_range(8):
        best = gl.max(keys, axis=1)
        keys = gl.where(keys == best[:, None], LOW, keys)
        chosen = gl.where(
            slot == i, gl.convert_layout(best, gl.SliceLayout(1, out))[:, None], chosen
        )
    near = gl.arange(0, ROWS, gl.SliceLayout(1, out))
    there = (slot < count) & (near < left)[:, None]
    at = (first + near).to(gl.int64)[:, None] * count + slot
    dtype: gl.constexpr = src.dtype.element_ty if HALF == 16 else gl.float32
    narrow: gl.constexpr = gl.int16 if HALF == 16 else gl.int32
    gl.store(indices + at, (MASK - (chosen & MASK)).to(gl.int32), mask=there)
    bits = (chosen >> HALF).to(narrow)
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


def top(name, arguments, bits):
    case = example(name, top_k, arguments, reference, "values", 1, tolerance=1e-7)

    def config(warp_size, columns=1000, num_warps=4):
        key = gl.int32 if bits == 16 and columns <= 2**16 else gl.int64
        block = warp_size * 128 // bits
        return {"KEY": key, "ROWS": num_warps, "BLOCK": block, "num_warps": num_warps}

    return dataclasses.replace(case, config=config, large_config=config)


EXAMPLES = [top("top-k", arguments, 16)]
# Not in the demo.
MORE = [top("top-k, single precision", single_arguments, 32)]
