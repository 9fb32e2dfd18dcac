"""The gradients of layer norm and RMS norm.

The weight's gradient is a sum over rows. Each program sums over its own and stores that; what is
left are a few rows to be added up, always in the same order.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.row_norm import column_vector
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
def norm_backward(
    grad, x, weight, mean, scale, dst, to_weight, to_bias, rows, columns, stride,
    CENTRED: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """The gradient of `x`, and for each program the sums over its rows of the others."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], x.dtype.element_ty)
    factor = column_vector(weight, columns, layout, BLOCK)
    weight_sum = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    bias_sum = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    begin = gl.program_id(0) * ROWS
    step = gl.num_programs(0) * ROWS
    at, inside = rows_at(rows - begin, columns, stride, layout, ROWS, BLOCK)
    next_g = gl.portable.load(row_start(grad, begin, stride), at, inside)
    next_x = gl.portable.load(row_start(x, begin, stride), at, inside)
    for first in range(begin, rows, step):
        row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        g = next_g.to(gl.float32)
        normal = next_x.to(gl.float32)
        # The rows that come next are under way while these are worked on.
        after = first + step
        at, inside = rows_at(rows - after, columns, stride, layout, ROWS, BLOCK)
        inside = inside & (after < rows)
        next_g = gl.portable.load(row_start(grad, after, stride), at, inside)
        next_x = gl.portable.load(row_start(x, after, stride), at, inside)
        at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
        spread = gl.load(scale + row, mask=row < rows, other=0.0)[:, None]
        if CENTRED:
            normal = normal - gl.load(mean + row, mask=row < rows, other=0.0)[:, None]
        normal = normal * spread
        weight_sum += g * normal
        bias_sum += g
        g = g * factor
        along = (gl.sum(g * normal, axis=1) / columns)[:, None]
        result = g - normal * along
        if CENTRED:
            result -= (gl.sum(g, axis=1) / columns)[:, None]
        gl.portable.store(row_start(dst, first, stride), at, result * spread, inside)
    column = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    to_weight += gl.program_id(0) * columns
    gl.store(to_weight + column, gl.sum(weight_sum, axis=0), mask=column < columns)
    if to_bias is not None:
        to_bias += gl.program_id(0) * columns
        gl.store(to_bias + column, gl.sum(bias_sum, axis=0), mask=column < columns)


@gluon.jit
def norm_backward_wide(
    grad, x, weight, mean, scale, dst, rows, columns, stride,
    CENTRED: gl.constexpr, KEPT: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """The gradient of `x` alone: registers cannot hold sums for all columns; see `column_sums`."""
    row = gl.program_id(0)
    grad = row_start(grad, row, stride)
    x = row_start(x, row, stride)
    spread = gl.load(scale + row)
    middle = 0.0
    if CENTRED:
        middle = gl.load(mean + row)
    kept_g = memory_for(KEPT, grad.dtype.element_ty, DEPTH, WIDTH)
    kept_x = memory_for(KEPT, x.dtype.element_ty, DEPTH, WIDTH)
    along = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    total = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        g = gl.portable.load(grad, at, inside)
        normal = gl.portable.load(x, at, inside)
        keep(kept_g, start, g)
        keep(kept_x, start, normal)
        g = g.to(gl.float32) * gl.portable.load(weight, at, inside).to(gl.float32)
        normal = normal.to(gl.float32) - middle
        along += gl.sum(g * normal, axis=0)
        total += gl.sum(g, axis=0)
    slope = gl.sum(along, axis=0) / columns * spread * spread
    offset = 0.0
    if CENTRED:
        offset = gl.sum(total, axis=0) / columns
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        g = again(kept_g, grad, start, at, inside, layout).to(gl.float32)
        g *= gl.portable.load(weight, at, inside).to(gl.float32)
        normal = again(kept_x, x, start, at, inside, layout).to(gl.float32) - middle
        result = (g - normal * slope - offset) * spread
        gl.portable.store(row_start(dst, row, stride), at, result, inside)


@gluon.jit
def column_sums(
    grad, x, mean, scale, dst, rows, columns, stride, SHARE: gl.constexpr,
    CENTRED: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Sums over SHARE rows each: of `grad`, or of `grad` times the normalized `x`."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], grad.dtype.element_ty)
    start = gl.program_id(0) * BLOCK
    total = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    begin = gl.program_id(1) * SHARE
    for first in range(begin, gl.minimum(begin + SHARE, rows), ROWS):
        at, inside = rows_at(rows - first, columns - start, stride, layout, ROWS, BLOCK)
        g = gl.portable.load(row_start(grad, first, stride) + start, at, inside).to(gl.float32)
        if x is not None:
            row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
            normal = gl.portable.load(row_start(x, first, stride) + start, at, inside)
            normal = normal.to(gl.float32)
            if CENTRED:
                normal -= gl.load(mean + row, mask=row < rows, other=0.0)[:, None]
            g *= normal * gl.load(scale + row, mask=row < rows, other=0.0)[:, None]
        total += g
    column = start + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    at = gl.program_id(1) * columns + column
    gl.store(dst + at, gl.sum(total, axis=0), mask=column < columns)


def backward_arguments(new, large, shape=None, programs=None):
    rows, columns = sizes_of(large, shape)
    size, programs = (rows, columns), programs or (min(1056, 2**21 // columns) if large else 3)
    return {
        "grad": new.random(size, "bfloat16"),
        "x": new.random(size, "bfloat16"),
        "weight": new.random((columns,), "bfloat16"),
        "mean": new.random((rows,)),  # not those of `x`: the kernel has no say in them
        "scale": new.random((rows,)),
        "dst": new.empty(size, "bfloat16"),
        "to_weight": new.empty((programs, columns)),
        "to_bias": new.empty((programs, columns)),
        "rows": rows,
        "columns": columns,
        "stride": columns,
    }


def wide_backward_arguments(new, large, shape=None):
    args = backward_arguments(
        new, large, shape or ((1024, 131072) if large else (3, 5000)), programs=1
    )
    return {name: value for name, value in args.items() if not name.startswith("to_")}


def sums_arguments(new, large, shape=None):
    args = backward_arguments(new, large, shape)
    shares = -(-args["rows"] // (SHARE if large else SMALL_SHARE))
    names = ("grad", "x", "mean", "scale", "dst", "rows", "columns", "stride")
    return {**{n: args[n] for n in names}, "dst": new.empty((shares, args["columns"]))}


def backward_reference(args):
    names = ("grad", "x", "weight", "mean", "scale")
    grad, x, weight, mean, scale = (args[name].astype(np.float64) for name in names)
    normal, g = (x - mean[:, None]) * scale[:, None], grad * weight
    along = (g * normal).mean(axis=1, keepdims=True)
    return (g - normal * along - g.mean(axis=1, keepdims=True)) * scale[:, None]


def sums_reference(args):
    grad, x, mean, scale = (args[n].astype(np.float64) for n in ("grad", "x", "mean", "scale"))
    product = grad * (x - mean[:, None]) * scale[:, None]
    share = SHARE if len(product) > SHARE else SMALL_SHARE
    return np.stack([product[i : i + share].sum(axis=0) for i in range(0, len(product), share)])


SHARE, SMALL_SHARE = 256, 8


def backward_grid(args, config):
    return (args["to_weight"].shape[0],)


def sums_grid(args, config):
    return (-(-args["columns"] // config["BLOCK"]), -(-args["rows"] // config["SHARE"]))


def sums_config(warp_size, share=SMALL_SHARE, rows=8, block=256, num_warps=4):
    return {"SHARE": share, "CENTRED": True, "ROWS": rows, "BLOCK": block, "num_warps": num_warps}


def large_sums_config(warp_size, share=SHARE, rows=32, block=256, num_warps=8):
    return sums_config(warp_size, share, rows, block, num_warps)


EXAMPLES = [
    example(
        "norm, backward",
        norm_backward,
        backward_arguments,
        backward_reference,
        "dst",
        3,
        backward_grid,
        choices=lambda target: {"num_warps": 16} if target.has("amd.wmma_v1") else {},
        CENTRED=True,
    ),
]
# Not in the demo.
MORE = [
    example(
        "norm of wide rows, backward",
        norm_backward_wide,
        wide_backward_arguments,
        backward_reference,
        "dst",
        3,
        CENTRED=True,
    ),
    Example(
        name="sums for the weight's gradient",
        kernel=column_sums,
        arguments=sums_arguments,
        grid=sums_grid,
        config=sums_config,
        large_config=large_sums_config,
        reference=sums_reference,
        output="dst",
        bytes_moved=lambda args: 4 * args["rows"] * args["columns"],
        tolerance=1e-5,
    ),
]
