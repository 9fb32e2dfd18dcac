"""Rows as 8-bit integers or floats with scales, on any device."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.norm.rows import exchange, load_pieces, share, store_piece


@gluon.jit
def scale_of(largest, LIMIT: gl.constexpr):
    """Return the scale, 1 where all elements are 0, and the factor of its elements."""
    scale = gl.where(largest > 0, largest * (1 / LIMIT), 1.0)
    return scale, 1 / scale


@gluon.jit
def narrowed(x, dtype: gl.constexpr, LIMIT: gl.constexpr):
    """Round to the narrow dtype, or to the codes of float8_e4m3fn for uint8; rounding may lead past the largest number, and some dtypes have infinities there."""
    if dtype == gl.int8:
        x = gl.floor(x + 0.5)
    x = gl.maximum(gl.minimum(x, LIMIT), -LIMIT)
    return e4m3_of(x) if dtype == gl.uint8 else x.to(dtype)


@gluon.jit
def e4m3_of(x):
    """Return the codes of float32 up to 448 as float8_e4m3fn, rounded to nearest even, for targets without an instruction for that."""
    size = gl.abs(x)
    bits = size.to(gl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Subnormal numbers are multiples of 2^-9, which the last bits of a sum with 2^14 count.
    small = (size + 2.0**14).to(gl.int32, bitcast=True) & 15
    code = gl.where(size < 2.0**-6, small, normal)
    return (code | ((x.to(gl.int32, bitcast=True) >> 24) & 0x80)).to(gl.uint8)


@gluon.jit
def quantize_rows(
    src, dst, scales, sums, arrived, rows, columns, src_stride, dst_stride, LIMIT: gl.constexpr,
    ALIGN: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr, PIECES: gl.constexpr,
    WIDTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """`src = dst * scales`, where the largest element of each row of `dst` is LIMIT."""
    row, part = share(arrived, PARTS, ROWS)
    start = part * (PIECES * WIDTH)
    pieces = load_pieces(
        src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, PIECES, WIDTH, layout
    )
    most = gl.abs(pieces[0].to(gl.float32))
    for i in gl.static_range(1, PIECES):
        most = gl.maximum(most, gl.abs(pieces[i].to(gl.float32)))
    largest = gl.max(most, axis=1)
    if PARTS > 1:
        of_all, _ = exchange(sums, arrived, row, part, largest, largest, PARTS)
        largest = gl.maximum(largest, gl.max(of_all, 0))
    scale, factor = scale_of(largest, LIMIT)
    near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    gl.store(scales + near, scale, mask=(near < rows) & (part == 0))
    for i in gl.static_range(PIECES):
        value = narrowed(pieces[i].to(gl.float32) * factor[:, None], dst.dtype.element_ty, LIMIT)
        store_piece(dst, value, row, rows, columns, start + i * WIDTH, dst_stride, ALIGN)


@gluon.jit
def power_of_two(largest, EXPONENT: gl.constexpr):
    """Return the scale of a block as an exponent of 8 bits, and the factor of its elements.

    EXPONENT is that of the largest number of the narrow dtype.
    """
    exponent = gl.maximum((largest.to(gl.int32, bitcast=True) >> 23) - EXPONENT, 0)
    # At most 2^126: all elements of such a block become 0 or nearly.
    factor = (gl.minimum(254 - exponent, 253) << 23).to(gl.float32, bitcast=True)
    return exponent.to(gl.uint8), factor


@gluon.jit
def quantize_blocks(
    src, dst, scales, rows, columns, src_stride, dst_stride, pitch, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    EXPONENT: gl.constexpr, ALIGN: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Quantize with a scale for each SIZE elements of a row.

    Scales are float32 [columns / SIZE, rows], `pitch` from a row to the next, or where there is an EXPONENT powers of two, [rows, columns / SIZE], both
    rounded up.
    """
    row = gl.program_id(0) * ROWS
    start = gl.program_id(1) * WIDTH
    (x,) = load_pieces(src, row, rows, columns, start, src_stride, 0, ALIGN, ROWS, 1, WIDTH, layout)
    x = x.to(gl.float32).reshape([ROWS, WIDTH // SIZE, SIZE])
    largest = gl.max(gl.abs(x), axis=2)
    blocks = gl.cdiv(columns, SIZE)
    near = row + gl.arange(0, ROWS, gl.SliceLayout(1, largest.type.layout))[:, None]
    block = start // SIZE + gl.arange(0, WIDTH // SIZE, gl.SliceLayout(0, largest.type.layout))
    exists = (near < rows) & (block < blocks)[None, :]
    if EXPONENT is not None:
        scale, factor = power_of_two(largest, EXPONENT)
        gl.store(scales + near * blocks + block[None, :], scale, mask=exists)
    else:
        scale, factor = scale_of(largest, LIMIT)
        gl.store(scales + block[None, :] * pitch + near, scale, mask=exists)
    value = narrowed(x * factor[:, :, None], dst.dtype.element_ty, LIMIT)
    value = gl.convert_layout(value.reshape([ROWS, WIDTH]), layout)
    store_piece(dst, value, row, rows, columns, start, dst_stride, ALIGN)
