"""Rows as 8-bit integers or floats, as matrix products want their operands: with a scale for each row, or
for each 128 elements of one, or, as mxfp8, with a power of two for each 32 (OCP Microscaling, 2023)."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.rows import (
    again,
    block_grid,
    example,
    keep,
    memory_for,
    part_at,
    row_start,
    rows_at,
    sizes_of,
)

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


@gluon.jit
def power_of_two(largest, EXPONENT: gl.constexpr):
    """The scale of a block as an exponent of 8 bits, and what its elements are multiplied with; EXPONENT
    is that of the largest number of the narrow type."""
    exponent = gl.maximum((largest.to(gl.int32, bitcast=True) >> 23) - EXPONENT, 0)
    # At most 2^126: all elements of such a block become 0 or nearly.
    factor = (gl.minimum(254 - exponent, 253) << 23).to(gl.float32, bitcast=True)
    return exponent.to(gl.uint8), factor


@gluon.jit
def quantize_blocks(
    src, dst, scales, rows, columns, stride, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    EXPONENT: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """A scale for each SIZE elements of a row: float32, [columns / SIZE, rows], or where there is an
    EXPONENT powers of two, [rows, columns / SIZE], both rounded up."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], src.dtype.element_ty)
    first = gl.program_id(0) * ROWS
    start = gl.program_id(1) * BLOCK
    at, inside = rows_at(rows - first, columns - start, stride, layout, ROWS, BLOCK)
    x = gl.portable.load(row_start(src, first, stride) + start, at, inside).to(gl.float32)
    x = x.reshape([ROWS, BLOCK // SIZE, SIZE])
    largest = gl.max(gl.abs(x), axis=2)
    blocks = gl.cdiv(columns, SIZE)
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, largest.type.layout))[:, None]
    block = start // SIZE + gl.arange(0, BLOCK // SIZE, gl.SliceLayout(0, largest.type.layout))
    there = (row < rows) & (block < blocks)[None, :]
    if EXPONENT is not None:
        scale, factor = power_of_two(largest, EXPONENT)
        gl.store(scales + row * blocks + block[None, :], scale, mask=there)
    else:
        scale, factor = scale_of(largest, LIMIT)
        gl.store(scales + block[None, :] * rows + row, scale, mask=there)
    result = narrowed(x * factor[:, :, None], dst.dtype.element_ty, LIMIT)
    result = gl.convert_layout(result.reshape([ROWS, BLOCK]), layout)
    gl.portable.store(row_start(dst, first, stride) + start, at, result, inside)


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


def block_arguments(size, powers):
    def make(new, large, shape=None):
        args = fp8_arguments(new, large, shape)
        rows, blocks = args["rows"], -(-args["columns"] // size)
        powers_of_two = new.integers((rows, blocks), 0, 1)
        return {**args, "scales": powers_of_two if powers else new.empty((blocks, rows))}

    return make


def by_block(args, size):
    """Blocks of rows, the last filled up with zeros, and the largest of each."""
    src = args["src"].astype(np.float32)
    filled = np.pad(src, ((0, 0), (0, -src.shape[1] % size))).reshape(len(src), -1, size)
    return filled, np.abs(filled).max(axis=2, keepdims=True)


def block_reference(size, powers):
    """The blocks divided by their scales; another number's neighbour is within the tolerance."""

    def quantized(args):
        blocks, largest = by_block(args, size)
        scale = np.where(largest > 0, largest * np.float32(1 / 448), 1)
        if powers:
            exponent = np.frexp(largest)[1].astype(np.float32) - 9
            scale = np.exp2(np.where(largest > 0, np.maximum(exponent, -127), 0))
        rounded = np.clip(blocks / scale, -448, 448).reshape(len(blocks), -1)
        return rounded[:, : args["columns"]]

    return quantized


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


def of_blocks(name, size, exponent):
    case = block_arguments(size, exponent is not None), block_reference(size, exponent is not None)
    more = {"SIZE": size, "EXPONENT": exponent, "LIMIT": 448.0, "tolerance": 1 / 14}
    return example(name, quantize_blocks, *case, "dst", 1.5, block_grid, **more)


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
    of_blocks("quantize blocks of rows, fp8", 128, None),
    of_blocks("quantize to mxfp8", 32, 8),
]
