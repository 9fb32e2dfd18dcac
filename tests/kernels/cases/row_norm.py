"""Layer norm and RMS norm of the rows of a matrix, with the sum before them.

RMS norm is layer norm whose mean is taken for zero: CENTRED says which it is. Arguments that are
None are left out while the kernel is compiled: a bias, the residual that is added first.
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


@gluon.jit
def column_vector(pointer, columns, layout, BLOCK: gl.constexpr):
    """Something that all rows share, such as a weight."""
    column = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    return gl.portable.load(pointer, column, column < columns).to(gl.float32)[None, :]


@gluon.jit
def norm(
    src, weight, bias, dst, residual, summed, mean, scale, rows, columns, stride, epsilon,
    CENTRED: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """`dst = (x - mean) * scale * weight + bias` of `x = src + residual`, which goes to `summed`;
    `mean` and `scale` of each row are kept for the way back."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    x = gl.portable.load(row_start(src, first, stride), at, inside).to(gl.float32)
    if residual is not None:
        x += gl.portable.load(row_start(residual, first, stride), at, inside).to(gl.float32)
        added = x.to(summed.dtype.element_ty)  # what is kept for the way back is what counts
        gl.portable.store(row_start(summed, first, stride), at, added, inside)
        x = added.to(gl.float32)
    if CENTRED:
        middle = gl.sum(x, axis=1) / columns
        gl.store(mean + row, middle, mask=row < rows)
        x = gl.where(inside, x - middle[:, None], 0.0)
    spread = 1 / gl.sqrt(gl.sum(x * x, axis=1) / columns + epsilon)
    gl.store(scale + row, spread, mask=row < rows)
    result = x * spread[:, None] * column_vector(weight, columns, layout, BLOCK)
    if bias is not None:
        result += column_vector(bias, columns, layout, BLOCK)
    gl.portable.store(row_start(dst, first, stride), at, result, inside)


@gluon.jit
def norm_wide(
    src, weight, bias, dst, residual, summed, mean, scale, rows, columns, stride, epsilon,
    CENTRED: gl.constexpr, KEPT: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    row = gl.program_id(0)
    src = row_start(src, row, stride)
    dst = row_start(dst, row, stride)
    if residual is not None:
        residual = row_start(residual, row, stride)
        summed = row_start(summed, row, stride)
    kept = memory_for(KEPT, src.dtype.element_ty, DEPTH, WIDTH)
    # Squares are summed of what is near zero: relative to some element of the row.
    origin = 0.0
    if CENTRED:
        origin = gl.load(src).to(gl.float32)
    total = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    squares = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        part = gl.portable.load(src, at, inside)
        if residual is not None:
            x = part.to(gl.float32) + gl.portable.load(residual, at, inside).to(gl.float32)
            part = x.to(part.dtype)
            gl.portable.store(summed, at, part, inside)
        keep(kept, start, part)
        x = part.to(gl.float32)
        if CENTRED:
            x = gl.where(inside, x - origin, 0.0)
            total += gl.sum(x, axis=0)
        squares += gl.sum(x * x, axis=0)
    variance = gl.sum(squares, axis=0) / columns
    middle = 0.0
    if CENTRED:
        middle = gl.sum(total, axis=0) / columns
        variance -= middle * middle
        middle += origin
        gl.store(mean + row, middle)
    spread = 1 / gl.sqrt(variance + epsilon)
    gl.store(scale + row, spread)
    if residual is not None:
        src = summed  # each thread reads what it wrote
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        x = again(kept, src, start, at, inside, layout).to(gl.float32)
        result = (x - middle) * spread * gl.portable.load(weight, at, inside).to(gl.float32)
        if bias is not None:
            result += gl.portable.load(bias, at, inside).to(gl.float32)
        gl.portable.store(dst, at, result, inside)


def arguments(new, large, shape=None, residual=False, bias=True):
    rows, columns = sizes_of(large, shape)
    size = (rows, columns)
    return {
        "src": new.random(size, "bfloat16"),
        "weight": new.random((columns,), "bfloat16"),
        "bias": new.random((columns,), "bfloat16") if bias else None,
        "dst": new.empty(size, "bfloat16"),
        "residual": new.random(size, "bfloat16") if residual else None,
        "summed": new.empty(size, "bfloat16") if residual else None,
        "mean": new.empty((rows,)),
        "scale": new.empty((rows,)),
        "rows": rows,
        "columns": columns,
        "stride": columns,
        "epsilon": 1e-5,
    }


def rms_arguments(new, large, shape=None):
    return arguments(new, large, shape, bias=False)


def residual_arguments(new, large, shape=None):
    return arguments(new, large, shape, residual=True, bias=False)


def wide_arguments(new, large, shape=None):
    return arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)), residual=True)


def normalized(args, x, centred):
    x = x.astype(np.float64)
    if centred:
        x = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + args["epsilon"])


def reference(args):
    """Centred where there is a bias."""
    x = args["src"].astype(np.float64)
    if args["residual"] is not None:
        x = (x + args["residual"].astype(np.float64)).astype(args["src"].dtype).astype(np.float64)
    result = normalized(args, x, args["bias"] is not None) * args["weight"].astype(np.float64)
    return result if args["bias"] is None else result + args["bias"].astype(np.float64)


EXAMPLES = [
    example("layer norm of rows", norm, arguments, reference, "dst", 2, CENTRED=True),
]
# Not in the demo.
MORE = [
    example("RMS norm", norm, rms_arguments, reference, "dst", 2, CENTRED=False),
    example("RMS norm of a sum", norm, residual_arguments, reference, "dst", 4, CENTRED=False),
    example(
        "layer norm of wide rows", norm_wide, wide_arguments, reference, "dst", 4, CENTRED=True
    ),
    example("layer norm, any width", norm_wide, arguments, reference, "dst", 2, CENTRED=True),
    example("RMS norm, any width", norm_wide, rms_arguments, reference, "dst", 2, CENTRED=False),
    example("RMS norm of a sum", norm_wide, residual_arguments, reference, "dst", 4, CENTRED=False),
]
