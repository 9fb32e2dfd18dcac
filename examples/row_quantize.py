"""Rows as 8-bit integers or floats with a scale each, as matrix products want their operands."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import main

try:
    from .rows import again, example, keep, memory_for, part_at, row_start, rows_at, sizes_of
except ImportError:  # run as a program
    from rows import again, example, keep, memory_for, part_at, row_start, rows_at, sizes_of

# The largest number of each type.
LIMITS = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0}


@gluon.jit
def scale_of(largest, LIMIT: gl.constexpr):
    """The scale of a row, 1 for a row of zeros, and what its elements are multiplied with."""
    scale = gl.where(largest > 0, largest * (1 / LIMIT), 1.0)
    return scale, 1 / scale


@gluon.jit
def narrowed(x, dtype: gl.constexpr, LIMIT: gl.constexpr):
    """Rounding may lead past the largest number, and some types have infinities there."""
    if dtype.is_int():
        x = gl.floor(x + 0.5)
    return gl.maximum(gl.minimum(x, LIMIT), -LIMIT).to(dtype)


@gluon.jit
def quantize(
    src, dst, scales, rows, columns, stride, LIMIT: gl.constexpr,
    ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """`src = dst * scales`, the largest element of each row of `dst` being LIMIT."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    at, inside = rows_at(rows - first, columns, stride, layout, ROWS, BLOCK)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    x = gl.portable.load(row_start(src, first, stride), at, inside).to(gl.float32)
    scale, factor = scale_of(gl.max(gl.abs(x), axis=1), LIMIT)
    gl.store(scales + row, scale, mask=row < rows)
    result = narrowed(x * factor[:, None], dst.dtype.element_ty, LIMIT)
    gl.portable.store(row_start(dst, first, stride), at, result, inside)


@gluon.jit
def quantize_wide(
    src, dst, scales, rows, columns, stride, LIMIT: gl.constexpr, KEPT: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    row = gl.program_id(0)
    src = row_start(src, row, stride)
    kept = memory_for(KEPT, src.dtype.element_ty, DEPTH, WIDTH)
    largest = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        x = gl.portable.load(src, at, inside)
        keep(kept, start, x)
        largest = gl.maximum(largest, gl.max(gl.abs(x.to(gl.float32)), axis=0))
    scale, factor = scale_of(gl.max(largest, axis=0), LIMIT)
    gl.store(scales + row, scale)
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        x = again(kept, src, start, at, inside, layout).to(gl.float32)
        result = narrowed(x * factor, dst.dtype.element_ty, LIMIT)
        gl.portable.store(row_start(dst, row, stride), at, result, inside)


def arguments(new, large, shape=None, dtype="int8"):
    rows, columns = sizes_of(large, shape)
    integers = dtype == "int8"
    return {
        "src": new.random((rows, columns), "bfloat16"),
        "dst": new.integers((rows, columns), 0, 9, dtype)
        if integers
        else new.empty((rows, columns), dtype),
        "scales": new.empty((rows,)),
        "rows": rows,
        "columns": columns,
        "stride": columns,
    }


def wide_arguments(new, large, shape=None):
    return arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)))


def fp8_arguments(new, large, shape=None):
    return arguments(new, large, shape, "float8_e4m3fn")


def scaled(args, limit):
    src = args["src"].astype(np.float32)
    return src / (np.abs(src).max(axis=1, keepdims=True) * np.float32(1 / limit))


def reference(args):
    return np.floor(scaled(args, 127) + np.float32(0.5))


def fp8_reference(args):
    import ml_dtypes

    return scaled(args, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


# An element on the border between two numbers may become either: among many, some are.
INT8 = {"LIMIT": 127.0, "tolerance": 1 / 200, "large_tolerance": 1 / 126}
FP8 = {"LIMIT": 448.0, "tolerance": 1 / 14}

EXAMPLES = [
    example("quantize rows", quantize, arguments, reference, "dst", 1.5, **INT8),
]
# Not in the demo.
MORE = [
    example("quantize wide rows", quantize_wide, wide_arguments, reference, "dst", 1.5, **INT8),
    example("quantize rows, fp8", quantize, fp8_arguments, fp8_reference, "dst", 1.5, **FP8),
    example(
        "quantize wide rows, fp8", quantize_wide, fp8_arguments, fp8_reference, "dst", 1.5, **FP8
    ),
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
