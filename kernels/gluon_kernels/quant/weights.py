"""Weights of 8 or 4 bits as floats: a kernel for any device that restores them, and the parts that products share."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import wait_for_predecessor


@gluon.constexpr_function
def packed(FORMAT):
    """Return how many weights a byte holds."""
    return 2 if FORMAT in ("int4", "mxfp4") else 1


@gluon.jit
def of_int4(byte, SHIFT: gl.constexpr):
    """Return float32 of a signed integer of 4 bits of a byte: the last bits of a mantissa, whose value is subtracted again."""
    bits = ((byte >> SHIFT) & 15) ^ 0x4B000008
    return bits.to(gl.float32, bitcast=True) - (2.0**23 + 8)


@gluon.jit
def of_mxfp4(code):
    """Return float32 of the first 4 bits of 32: sign, two bits of exponent and one of mantissa, which a power of two gives the bias."""
    bits = (code & -0x80000000) | ((code >> 6) & 0x01C00000)
    return bits.to(gl.float32, bitcast=True) * 2.0**126


@gluon.constexpr_function
def dtype_of(FORMAT):
    """Return the dtype that a byte of weights has."""
    return {"int8": gl.int8, "e4m3": gl.float8e4nv, "e5m2": gl.float8e5}[FORMAT]


@gluon.jit
def e4m3(raw):
    """Return float32 of float8_e4m3fn, also where a target has no instruction for that."""
    bits = raw.to(gl.int32)
    low = bits & 127
    normal = ((low << 20) + (120 << 23)).to(gl.float32, bitcast=True)
    value = gl.where(
        low < 8, low.to(gl.float32) * 2.0**-9, normal
    )  # subnormal numbers are multiples
    value = gl.where(low == 127, float("nan"), value)
    return gl.where(bits > 127, -value, value)


@gluon.jit
def restored(raw, FORMAT: gl.constexpr, SHAPE: gl.constexpr):
    """Return the numbers of a tile of bytes, float32; of two in a byte the low half is first."""
    if FORMAT == "int4":
        byte = raw.to(gl.int32)
        low = of_int4(byte, 0)
        return gl.join(low, of_int4(byte, 4)).reshape(SHAPE)
    elif FORMAT == "mxfp4":
        byte = raw.to(gl.int32)
        return gl.join(of_mxfp4(byte << 28), of_mxfp4(byte << 24)).reshape(SHAPE)
    elif FORMAT == "e4m3":
        return e4m3(raw)
    else:
        return raw.to(dtype_of(FORMAT), bitcast=True).to(gl.float32)


@gluon.jit
def power_of_two(scale):
    """Return the scale; an exponent of 8 bits as the float32 that it stands for, as in OCP Microscaling."""
    if scale.dtype == gl.uint8:
        bits = scale.to(gl.int32) << 23
        return gl.where(bits == 0, 2.0**-127, bits.to(gl.float32, bitcast=True))
    else:
        return scale.to(gl.float32)


@gluon.constexpr_function
def run_of(group, columns):
    """Return the largest power of two that divides a group, `columns` at most."""
    return min(group & -group, columns)


@gluon.jit(do_not_specialize=["N", "K", "groups"])
def restore_weights(
    weight, scales, out, N, K, row_bytes, scale_strides, out_row, groups, FORMAT: gl.constexpr,
    GROUP: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Store weights times their scales in `out` [N, K]; `weight` is [N, K], or half as many columns, in bytes. The grid is [columns / COLUMNS, rows / ROWS].

    GROUP weights along K share a scale, 0 for all of a row. VECTOR bytes divide a row of `weight` and K of `out`.
    """
    PACKED: gl.constexpr = packed(FORMAT)
    BYTES: gl.constexpr = COLUMNS // PACKED
    lanes: gl.constexpr = min(BYTES // VECTOR, gl.target.warp_size())
    layout: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [gl.target.warp_size() // lanes, lanes], [gl.num_warps(), 1], [1, 0]
    )
    if gl.target.has("nvidia.tma"):  # as have all targets with dependent launches
        wait_for_predecessor()
    row = gl.program_id(1) * ROWS
    left = gl.program_id(0) * BYTES
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = left + gl.arange(0, BYTES, gl.SliceLayout(0, layout))
    bytes_of_row = K // PACKED // VECTOR * VECTOR
    pitch = row_bytes // VECTOR * VECTOR
    inside = (rows < N)[:, None] & (columns < bytes_of_row)[None, :]
    raw = gl.load(weight + rows.to(gl.int64)[:, None] * pitch + columns[None, :], mask=inside, other=0)  # fmt: skip
    numbers = restored(raw, FORMAT, [ROWS, COLUMNS])
    wide: gl.constexpr = numbers.type.layout
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, wide))
    columns = left * PACKED + gl.arange(0, COLUMNS, gl.SliceLayout(0, wide))
    extent = K // (PACKED * VECTOR) * (PACKED * VECTOR)
    inside = (rows < N)[:, None] & (columns < extent)[None, :]
    if scales is not None:
        if GROUP == 0:
            of_row = scales + rows.to(gl.int64) * scale_strides[0]
            numbers = numbers * power_of_two(gl.load(of_row, mask=rows < N, other=0))[:, None]
        else:  # a thread loads one scale for elements in a row
            EACH: gl.constexpr = run_of(GROUP, COLUMNS)
            parts = numbers.reshape([ROWS, COLUMNS // EACH, EACH])
            by_group: gl.constexpr = gl.SliceLayout(2, parts.type.layout)
            near = row + gl.arange(0, ROWS, gl.SliceLayout(1, by_group))
            start = (
                left * PACKED + gl.arange(0, COLUMNS // EACH, gl.SliceLayout(0, by_group)) * EACH
            )
            there = (near < N)[:, None] & (start < K)[None, :]
            places = (
                near.to(gl.int64)[:, None] * scale_strides[0]
                + (start // GROUP * scale_strides[1])[None, :]
            )
            scale = power_of_two(gl.load(scales + places, mask=there, other=0))
            numbers = gl.convert_layout((parts * scale[:, :, None]).reshape([ROWS, COLUMNS]), wide)
    to = out + rows.to(gl.int64)[:, None] * (out_row // VECTOR * VECTOR) + columns[None, :]
    gl.store(to, numbers.to(out.dtype.element_ty), mask=inside)
