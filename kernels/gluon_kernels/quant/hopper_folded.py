"""Weights of 8 or 4 bits as bfloat16 times their scales: the conversion is part of the multiplication.

Below 256 the bits of a bfloat16 count multiples of 2^-133, the least subnormal number, so that an unsigned integer needs no conversion. A
multiply-add scales it and subtracts the excess that makes a signed integer unsigned, times the scale: that product is exact, and the sum is
rounded once, as restored weights are. Floats of 4 bits are looked up as integers: `prmt` selects bytes by three bits of four numbers, and returns
the sign of a byte, none, where the fourth is set. The factors would be too large for bfloat16, so that weights are 2^-48 of what they are, which
the sums make up for. Scales of 2^43 and more become infinite, and weights below 2^-78 lose digits.
"""

import gluon_core as gluon
from gluon_core import language as gl

LESS = gl.constexpr(2.0**48)  # by which weights are too small


@gluon.constexpr_function
def folds(dtype, of_scales, FORMAT):
    """Return True if weights are converted by their multiplication with scales of the dtype `of_scales`."""
    return (
        dtype == gl.bfloat16
        and FORMAT in ("int4", "int8", "mxfp4")
        and of_scales in (gl.bfloat16, gl.uint8)
    )


@gluon.constexpr_function
def both(low, high):
    """Return 32 bits of two powers of two in bfloat16, given by their exponents."""
    return low + 127 << 7 | high + 127 << 23


@gluon.constexpr_function
def multiples(FORMAT):
    """Return what pairs of integers are multiplied with for a scale of one: a high one of 4 bits is in the upper half of a byte."""
    return both(85, 81 if FORMAT == "int4" else 85)


@gluon.constexpr_function
def excess(FORMAT):
    """Return what is added then: -8 or -128, of which 2^-48 are left."""
    return both(-45, -45) | 0x80008000 if FORMAT == "int4" else both(-41, -41) | 0x80008000


@gluon.jit
def times_constant(pairs, BITS: gl.constexpr):
    return gl.inline_asm_elementwise(
        f"{{ .reg .b32 by; mov.b32 by, {BITS}; mul.rn.bf16x2 $0, $1, by; }}", "=r,r", [pairs], gl.int32, True, 1
    )  # fmt: skip


@gluon.jit
def factors_of(scale, FORMAT: gl.constexpr):
    """Return what pairs of integers are multiplied with, and what is added then."""
    if FORMAT == "mxfp4":  # twice the numbers, 12 more
        by = gl.minimum(scale.to(gl.int32) + 84, 255) * 0x00800080
        more = times_constant(by, 0x800C800C)  # -12 * 2^-133
    else:
        twice = (scale.to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF) * 0x10001
        by = times_constant(twice, multiples(FORMAT))
        more = times_constant(twice, excess(FORMAT))
    return by, more


@gluon.constexpr_function
def placed(FORMAT):
    """Return PTX that puts the bits of integers in place: 0x6A is `(a & b) ^ c` (PTX ISA, lop3)."""
    if FORMAT == "int4":
        return "mov.b32 flip, 0x00800008; lop3.b32 pair, $1, 0x00F0000F, flip, 0x6A;"
    if FORMAT == "int8":
        return "prmt.b32 pair, $1, 0, 0x4140; xor.b32 pair, pair, 0x00800080;"
    return "mov.b32 pair, $1;"


@gluon.jit
def looked_up(raw, own, size):
    """Return pairs of integers for floats of 4 bits, [rows, pairs]: twice as large, and 12 more.

    Args:
        raw: 32 bits of each pair, [rows, chunks, threads], of an even number of chunks.
        own: that byte of them, for each thread.
        size: not negative, which the compiler does not know: it would move half of each table to a register before each use otherwise.
    """
    ROWS: gl.constexpr = raw.shape[0]
    CHUNKS: gl.constexpr = raw.shape[1] // 2
    even, odd = gl.split(raw.reshape([ROWS, CHUNKS, 2, raw.shape[2]]).permute((0, 1, 3, 2)))
    own = gl.convert_layout(
        0x40 + own * 0x11, gl.SliceLayout(0, gl.SliceLayout(1, even.type.layout))
    )
    lanes = gl.arange(0, raw.shape[2], own.type.layout)
    zero = (lanes + size >> 31)[
        None, None, :
    ]  # not the same for all threads, or a uniform register would have it
    _, own = gl.broadcast(even, own[None, None, :])
    _, more = gl.broadcast(even, 0x0F0E0D0C + zero)
    _, less = gl.broadcast(even, 0x090A0B0C + zero)
    four = gl.inline_asm_elementwise(
        "{ .reg .b32 at, other, plus, minus; prmt.b32 at, $1, $2, $3; prmt.b32 plus, $4, 0x18141210, at; "
        "xor.b32 other, at, 0x8888; prmt.b32 minus, $5, 0x00040608, other; or.b32 $0, plus, minus; }",
        "=r,r,r,r,r,r", [even, odd, own, more, less], gl.int32, True, 1,
    )  # fmt: skip
    first = gl.inline_asm_elementwise("prmt.b32 $0, $1, 0, 0x4140;", "=r,r", [four], gl.int32, True, 1)  # fmt: skip
    second = gl.inline_asm_elementwise("prmt.b32 $0, $1, 0, 0x4342;", "=r,r", [four], gl.int32, True, 1)  # fmt: skip
    pairs = gl.join(first, second).permute((0, 1, 3, 2))
    return pairs.reshape([ROWS, 2 * CHUNKS * raw.shape[2]])


@gluon.jit
def folded(codes, scale, FORMAT: gl.constexpr):
    """Return 2^-48 of pairs of weights, [rows, pairs], times their scale, [rows, groups of pairs], which may be None.

    `codes` have for a pair of int4 a byte in both halves, of int8 two bytes, and of mxfp4 those of `looked_up`; other bits of the former two do not matter.
    """
    if scale is None:
        pairs = gl.inline_asm_elementwise(
            f"{{ .reg .b32 pair, flip, by, more; {placed(FORMAT)} mov.b32 by, {multiples(FORMAT)}; mov.b32 more, {excess(FORMAT)}; "
            "fma.rn.bf16x2 $0, pair, by, more; }",
            "=r,r", [codes], gl.int32, True, 1,
        )  # fmt: skip
    else:
        parts = codes.reshape([codes.shape[0], scale.shape[1], codes.shape[1] // scale.shape[1]])
        layout: gl.constexpr = gl.SliceLayout(2, parts.type.layout)
        by, more = factors_of(scale, FORMAT)
        by = gl.convert_layout(by, layout)[:, :, None]
        more = gl.convert_layout(more, layout)[:, :, None]
        pairs = gl.inline_asm_elementwise(
            f"{{ .reg .b32 pair, flip; {placed(FORMAT)} fma.rn.bf16x2 $0, pair, $2, $3; }}",
            "=r,r,r,r", [parts, by, more], gl.int32, True, 1,
        )  # fmt: skip
        pairs = pairs.reshape(codes.shape)
    return pairs
