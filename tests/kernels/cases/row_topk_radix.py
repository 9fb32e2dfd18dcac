"""The largest elements of each row, any number of them, with their columns; among equals, those of lower
columns.

What comes k-th is found bit by bit, from the highest on: if at least k elements have the bits found so far
and a one, the next bit is a one. Elements above it are chosen, and of those equal to it the first ones;
a running sum says where each goes. There each counts how many of the chosen are larger, and that is its
place. A row too long for registers is cut into pieces, and the largest of the pieces' largest are taken.
"""

import dataclasses
import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.row_cumsum import add
from tests.kernels.cases.rows import example, row_start, sizes_of


@gluon.jit
def ordered_bits(x, BITS: gl.constexpr):
    """The number's bits as an unsigned integer that compares as it does; NaN is largest, zeros are equal."""
    signed: gl.constexpr = gl.int16 if BITS == 16 else gl.int32
    plain: gl.constexpr = gl.uint16 if BITS == 16 else gl.uint32
    bits = (x + 0.0).to(signed, bitcast=True)
    # All bits of a negative number are turned over, of others the sign alone.
    turned = bits ^ ((bits >> (BITS - 1)) | -(2 ** (BITS - 1)))
    return gl.where(x != x, -1, turned).to(plain, bitcast=True).to(gl.uint32)


@gluon.jit
def top_k_radix(
    src, names, values, indices, pieces, columns, stride, count,
    BITS: gl.constexpr, BLOCK: gl.constexpr, MOST: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """`count` of each piece of each row of `src`, descending, to `values` and `indices`, int32, [rows,
    pieces, count]; a program has one piece, of at most BLOCK columns, and 32768. `names`, like `src`, are the
    columns that elements had before, or None. `count` is at most MOST, and at most a piece's columns. In `layout` a thread has
    columns side by side, which running sums want; the cache makes up for loads that are apart."""
    row = gl.program_id(0)
    width = gl.cdiv(columns, pieces)
    first = gl.program_id(1) * width
    column = first + gl.arange(0, BLOCK, layout)
    inside = (column < columns) & (column < first + width)
    x = gl.portable.load(row_start(src, row, stride), column, inside)
    key = gl.where(inside, ordered_bits(x, BITS), 0)
    bound = gl.to_tensor(0).to(gl.uint32)
    for i in range(BITS):
        higher = bound | (gl.to_tensor(1).to(gl.uint32) << (BITS - 1 - i).to(gl.uint32))
        enough = gl.sum((inside & (key >= higher)).to(gl.int32), 0) >= count
        bound = gl.where(enough, higher, bound)
    above = inside & (key > bound)
    equal = inside & (key == bound)
    # Both are counted by one running sum, in halves of an integer.
    counted = gl.associative_scan((above.to(gl.int32) << 16) + equal.to(gl.int32), 0, add)
    of_above, of_equal = counted >> 16, counted & 0xFFFF
    left = count - gl.sum(above.to(gl.int32), 0)
    chosen = above | (equal & (of_equal <= left))
    place = of_above + gl.minimum(of_equal, left) - 1

    # The chosen, in the order of their columns, where threads can read them all.
    out = (row.to(gl.int64) * pieces + gl.program_id(1)) * count
    name = column
    if names is not None:
        name = gl.load(row_start(names, row, stride) + column, mask=inside, other=0)
    gl.store(values + out + place, x.to(values.dtype.element_ty), mask=chosen)
    gl.store(indices + out + place, name, mask=chosen)
    gl.barrier()
    pairs: gl.constexpr = gl.portable.blocked_layout([MOST, MOST], gl.int32)
    mine = gl.arange(0, MOST, gl.SliceLayout(1, pairs))
    other = gl.arange(0, MOST, gl.SliceLayout(0, pairs))
    value = gl.load(values + out + mine, mask=mine < count, other=0)
    kept = gl.load(indices + out + mine, mask=mine < count, other=0)
    others = gl.load(values + out + other, mask=other < count, other=0)
    lower = ordered_bits(value, BITS)[:, None]
    upper = ordered_bits(others, BITS)[None, :]
    before = (upper > lower) | ((upper == lower) & (other[None, :] < mine[:, None]))
    rank = gl.sum((before & (other < count)[None, :]).to(gl.int32), 1)
    gl.barrier()  # all have read before one writes
    gl.store(values + out + rank, value, mask=mine < count)
    gl.store(indices + out + rank, kept, mask=mine < count)


def arguments(new, large, shape=None, dtype="bfloat16", count=64, pieces=1):
    rows, columns = sizes_of(large, shape)
    count = min(count, columns // pieces)
    return {
        "src": new.random((rows, columns), dtype),
        "names": None,
        "values": new.empty((rows, pieces * count), dtype),
        "indices": new.integers((rows, pieces * count), 0, 1, "int32"),
        "pieces": pieces,
        "columns": columns,
        "stride": columns,
        "count": count,
    }


def single_arguments(new, large, shape=None):
    return arguments(new, large, shape, "float32", 100)


def between(args, pieces, new):
    """Arguments for the pieces of `args`' rows; `new` is an `Arrays`."""
    size = args["src"].shape[0], pieces * args["count"]
    kind = str(args["values"].dtype).removeprefix("torch.")
    outputs = {"values": new.empty(size, kind), "indices": new.integers(size, 0, 1, "int32")}
    return {**args, **outputs, "pieces": pieces}


def top_k(args, config, first=None, **options):
    """Values and indices of rows of any width; `first` is what `between` made, for rows in pieces, and
    `config` what `config_of` did."""
    rows, columns = args["src"].shape
    if first is not None:
        pieces = first["pieces"]
        piece = gluon.cdiv(columns, pieces)
        top_k_radix[(rows, pieces)](*first.values(), **config(piece, args["count"]), **options)
        columns = pieces * args["count"]
        args = {**args, "src": first["values"], "names": first["indices"]}
        args.update(columns=columns, stride=columns)
    top_k_radix[(rows, 1)](*args.values(), **config(columns, args["count"]), **options)
    return args["values"], args["indices"]


def config_of(bits, warp_size):
    def config(columns, count, num_warps=None):
        block = max(64, 2 ** math.ceil(math.log2(columns)))
        warps = num_warps or min(max(1, block // (32 * warp_size)), 1024 // warp_size)
        most = max(16, 2 ** math.ceil(math.log2(count)))
        wide = max(1, block // (warps * warp_size))
        layout = gl.BlockedLayout([wide], [warp_size], [warps], [0])
        sizes = {"BITS": bits, "BLOCK": block, "MOST": most}
        return {**sizes, "layout": layout, "num_warps": warps}

    return config


def reference(args):
    return -np.sort(-args["src"].astype(np.float64), axis=1)[:, : args["count"]]


def top(name, arguments, bits, count):
    entry = example(name, top_k_radix, arguments, reference, "values", 1, tolerance=1e-7)

    def config(warp_size, columns=1000, num_warps=None):
        return config_of(bits, warp_size)(columns, min(columns, count), num_warps)

    def large_config(warp_size, columns=8192, num_warps=4):
        return config(warp_size, columns, num_warps)

    return dataclasses.replace(
        entry,
        config=config,
        large_config=large_config,
        grid=lambda args, config: (args["src"].shape[0], args["pieces"]),
        bytes_moved=lambda args: args["src"].shape[0] * args["src"].shape[1] * bits // 8,
    )


EXAMPLES = [top("top-k, radix", arguments, 16, 64)]
# Not in the demo.
MORE = [top("top-k, radix, single precision", single_arguments, 32, 100)]
