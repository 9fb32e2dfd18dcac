"""Rows as 8-bit floats with a scale each: what a matrix product in fp8 wants of its operands."""

import dataclasses

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import main

try:
    from .rows import example, part_at, row_start, rows_at, sizes_of
except ImportError:  # run as a program
    from rows import example, part_at, row_start, rows_at, sizes_of

# The largest number of each type.
LIMITS = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0}


@gluon.jit
def scale_of(largest, LIMIT: gl.constexpr):
    """The scale of a row, 1 for a row of zeros, and what its elements are multiplied with."""
    scale = gl.where(largest > 0, largest * (1 / LIMIT), 1.0)
    return scale, 1 / scale


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
    result = clamp(x * factor[:, None], LIMIT)
    gl.portable.store(row_start(dst, first, stride), at, result, inside)


@gluon.jit
def quantize_wide(
    src, dst, scales, rows, columns, stride, LIMIT: gl.constexpr,
    DEPTH: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    row = gl.program_id(0)
    src = row_start(src, row, stride)
    largest = gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout))
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        x = gl.portable.load(src, at, inside).to(gl.float32)
        largest = gl.maximum(largest, gl.max(gl.abs(x), axis=0))
    scale, factor = scale_of(gl.max(largest, axis=0), LIMIT)
    gl.store(scales + row, scale)
    for start in range(0, columns, DEPTH * WIDTH):
        at, inside = part_at(start, columns, layout, DEPTH, WIDTH)
        x = gl.portable.load(src, at, inside).to(gl.float32)
        gl.portable.store(row_start(dst, row, stride), at, clamp(x * factor, LIMIT), inside)


@gluon.jit
def clamp(x, LIMIT: gl.constexpr):
    """Rounding may lead past the largest number, and some types have infinities there."""
    return gl.maximum(gl.minimum(x, LIMIT), -LIMIT)


def arguments(new, large, shape=None, dtype="float8_e4m3fn"):
    rows, columns = sizes_of(large, shape)
    return {
        "src": new.random((rows, columns), "bfloat16"),
        "dst": new.empty((rows, columns), dtype),
        "scales": new.empty((rows,)),
        "rows": rows,
        "columns": columns,
        "stride": columns,
    }


def wide_arguments(new, large, shape=None):
    return arguments(new, large, shape or ((1024, 131072) if large else (3, 5000)))


def reference(args):
    """The elements as the type has them, rounded by NumPy."""
    src, dst = args["src"].astype(np.float32), args["dst"]
    scale = np.abs(src).max(axis=1, keepdims=True) * np.float32(1 / 448)
    if not dst.dtype.name.startswith("float8"):  # from a device, as float32
        import ml_dtypes

        return (src / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return (src / scale).astype(dst.dtype).astype(np.float32)


def fp8(name, kernel, arguments):
    """Elements on the border between two numbers may become either: 1/16 of them at most."""
    made = example(name, kernel, arguments, reference, "dst", 1.5, tolerance=1 / 14, LIMIT=448.0)
    return dataclasses.replace(made, requires=("nvidia.fp8",))


EXAMPLES = [
    fp8("quantize rows", quantize, arguments),
    fp8("quantize wide rows", quantize_wide, wide_arguments),
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
