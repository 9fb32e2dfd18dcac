"""Products of few rows with weights of 8 or 4 bits on Hopper: weights go from shared memory to the registers that `wgmma` reads.

The transposed product is computed: rows of the weights are the rows of `wgmma`, whose left operand may be in registers, and
the rows of `x` its columns, of which 8 are enough. A byte is loaded to the thread that needs its weights, so that they never
return to shared memory. Weights of few rows stay integers there: the sum of each group along K is scaled in float32. Where rows are
more than weights of a thread, and with groups of 32, weights are scaled in registers.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_columns
from gluon_kernels.gemm.hopper_small_m import share_of, store_shared
from gluon_kernels.quant.weights import packed, power_of_two

GROUP = gl.constexpr(32)  # weights along K that share a scale, at least


@gluon.constexpr_function
def bits_of(size):
    return [1 << i for i in range(size.bit_length() - 1)]


@gluon.constexpr_function
def raw_dtype(FORMAT):
    """Return the integers in which weights are read, two weights in each."""
    return gl.uint8 if packed(FORMAT) == 2 else gl.int16


@gluon.constexpr_function
def raw_layout(rows, columns, warps):
    """Return where pairs of weights, [rows, columns], are, so that they are where `wgmma` reads a left operand from registers.

    A thread has two adjacent elements of each 8 of a row, and rows 8 apart (PTX ISA, wgmma, register fragments of A).
    """
    along, down = bits_of(columns), bits_of(rows)
    group = down[4:6] + down[6 : 6 + len(bits_of(warps)) - 2]
    registers = [[8, 0]] + [[0, b] for b in along[2:]] + [[r, 0] for r in down[4 + len(group) :]]
    return gl.DistributedLinearLayout(
        registers, [[0, b] for b in along[:2]] + [[r, 0] for r in down[:3]], [[r, 0] for r in group], [], [rows, columns]
    )  # fmt: skip


@gluon.jit
def pairs(raw, dtype: gl.constexpr):
    """Return both integers of 4 bits of each byte as floats of 16 bits in 32: they take the last bits of a float's mantissa, whose
    value is subtracted again."""
    byte = raw.to(gl.int32)
    return converted_pairs(byte * 0x1001, dtype)


@gluon.jit
def converted_pairs(code, dtype: gl.constexpr):
    """Return integers of 4 bits, the low ones of both halves of 32, as floats of 16 bits. 0x6A is `(a & b) ^ c` (PTX ISA, lop3)."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 base, both; mov.b32 base, 0x43084308; lop3.b32 both, $1, 0x000F000F, base, 0x6A; "
            "sub.rn.bf16x2 $0, both, base; }",
            "=r,r", [code], gl.int32, True, 1,
        )  # fmt: skip
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 base, both; mov.b32 base, 0x64086408; lop3.b32 both, $1, 0x000F000F, base, 0x6A; "
            "sub.rn.f16x2 $0, both, base; }",
            "=r,r", [code], gl.int32, True, 1,
        )  # fmt: skip


@gluon.constexpr_function
def place_of_size(dtype):
    """Return the bit from which on a float of 16 bits has the exponent and the mantissa of one of 4 bits."""
    return 6 if dtype == gl.bfloat16 else 9


@gluon.jit
def pairs_of_mxfp4(raw, dtype: gl.constexpr):
    """Return both floats of 4 bits of each byte as floats of 16 bits in 32."""
    byte = raw.to(gl.int32)
    SIZE: gl.constexpr = place_of_size(dtype)
    return pairs_of_parts(byte * 0x01001000, byte * ((1 << SIZE) + (1 << SIZE + 12)), dtype)


@gluon.jit
def pairs_of_parts(signs, sizes, dtype: gl.constexpr):
    """Return floats of 4 bits, two in each 32, as floats of 16 bits: a power of two gives their exponents the bias.

    `signs` have the sign at its place, `sizes` exponent and mantissa; other bits do not matter. 0xEA is `(a & b) | c` (PTX ISA, lop3).
    """
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 both, bias; and.b32 both, $2, 0x01C001C0; lop3.b32 both, $1, 0x80008000, both, 0xEA; "
            "mov.b32 bias, 0x7E807E80; mul.rn.bf16x2 $0, both, bias; }",
            "=r,r,r", [signs, sizes], gl.int32, True, 1,
        )  # fmt: skip
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 both, bias; and.b32 both, $2, 0x0E000E00; lop3.b32 both, $1, 0x80008000, both, 0xEA; "
            "mov.b32 bias, 0x74007400; mul.rn.f16x2 $0, both, bias; }",
            "=r,r,r", [signs, sizes], gl.int32, True, 1,
        )  # fmt: skip


@gluon.jit
def times(numbers, factors, dtype: gl.constexpr):
    """Return products of floats of 16 bits, two at a time."""
    PAIR: gl.constexpr = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
    return gl.inline_asm_elementwise(
        f"mul.rn.{PAIR} $0, $1, $2;", "=r,r,r", [numbers, factors.to(dtype)], dtype, True, 2
    )


@gluon.constexpr_function
def of_int8(dtype):
    """Return PTX that converts two signed bytes of a 32-bit number to 16-bit floats.

    A float16 holds a byte, plus 128, in the last bits of its mantissa. That of bfloat16 has room for seven bits: the eighth selects the
    number that is subtracted. 0xEA is `(a & b) | c` (PTX ISA, lop3).
    """
    if dtype == gl.bfloat16:
        return (
            "{ .reg .b32 both, low, high, base; prmt.b32 both, $1, 0, 0x4140; mov.b32 base, 0x43004300; "
            "lop3.b32 low, both, 0x007F007F, base, 0xEA; lop3.b32 high, both, 0x00800080, base, 0xEA; "
            "sub.rn.bf16x2 $0, low, high; }"
        )
    return (
        "{ .reg .b32 both, base; prmt.b32 both, $1, 0x64, 0x4140; xor.b32 both, both, 0x00800080; "
        "mov.b32 base, 0x64806480; sub.rn.f16x2 $0, both, base; }"
    )


@gluon.constexpr_function
def of_fp8(dtype, FORMAT):
    """Return PTX that converts two floats of 8 bits in a 32-bit number to 16-bit floats; those of bfloat16 pass through float32, which is
    faster than the direct way."""
    both = "{ .reg .b16 two, none, a, b; .reg .b32 half; .reg .f32 x, y; mov.b32 {two, none}, $1; "
    if dtype == gl.float16:
        return f"{both}cvt.rn.f16x2.{FORMAT}x2 $0, two; }}"
    return (
        f"{both}cvt.rn.f16x2.{FORMAT}x2 half, two; mov.b32 {{a, b}}, half; cvt.f32.f16 x, a; "
        "cvt.f32.f16 y, b; cvt.rn.bf16x2.f32 $0, y, x; }"
    )


@gluon.jit
def pairs_of(raw, dtype: gl.constexpr, FORMAT: gl.constexpr):
    """Return pairs of weights as floats of 16 bits in 32."""
    if FORMAT == "int4":
        both = pairs(raw, dtype)
    elif FORMAT == "mxfp4":
        both = pairs_of_mxfp4(raw, dtype)
    elif FORMAT == "int8":
        both = gl.inline_asm_elementwise(of_int8(dtype), "=r,r", [raw.to(gl.int32)], gl.int32, True, 1)  # fmt: skip
    else:
        both = gl.inline_asm_elementwise(of_fp8(dtype, FORMAT), "=r,r", [raw.to(gl.int32)], gl.int32, True, 1)  # fmt: skip
    return both


@gluon.jit
def numbers_of(both, dtype: gl.constexpr):
    """Return the floats of pairs, two adjacent ones along a new last dimension."""
    low = (both & 0xFFFF).to(gl.int16).to(dtype, bitcast=True)
    high = (both >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.join(low, high)


@gluon.jit
def left_operand(raw, dtype: gl.constexpr, FORMAT: gl.constexpr, SHAPE: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """Return the weights of a tile as the left operand of `wgmma`."""
    return gl.convert_layout(numbers_of(pairs_of(raw, dtype, FORMAT), dtype).reshape(SHAPE), layout)


@gluon.jit
def factor_of(scale, dtype: gl.constexpr):
    """Return the scale; an exponent of 8 bits as the power of two that it stands for: bfloat16 has it in its bits from the seventh on."""
    if scale.dtype == gl.uint8 and dtype == gl.bfloat16:
        bits = scale.to(gl.int16)
        return gl.where(bits == 0, 0x0040, bits << 7).to(gl.int16).to(dtype, bitcast=True)
    else:
        return power_of_two(scale)


@gluon.jit
def converted(raw, scale, dtype: gl.constexpr, FORMAT: gl.constexpr, SHAPE: gl.constexpr, operand: gl.constexpr):  # fmt: skip
    """Return the weights of a step as `wgmma` reads them, times their scales where groups have some."""
    numbers = left_operand(raw, dtype, FORMAT, SHAPE, operand)
    if scale is not None:
        factors = factor_of(scale, dtype)[:, :, None]
        parts = numbers.reshape([SHAPE[0], scale.shape[1], SHAPE[1] // scale.shape[1]])
        if FORMAT == "mxfp4" or scale.dtype == dtype:  # powers of two, or rounded once
            scaled = times(parts, factors, dtype)
        else:
            scaled = (parts.to(gl.float32) * factors).to(dtype)
        numbers = gl.convert_layout(scaled.reshape(SHAPE), operand)
    return numbers


@gluon.jit
def scale_at(scales, strides, rows, N, group, pred):
    of_row = scales + rows.to(gl.int64) * strides[0] + group * strides[1]
    return gl.load(of_row, mask=(rows < N) & pred, other=0)


@gluon.jit
def by_group(numbers):
    """Return [rows, K] as [rows, groups, 32]."""
    return numbers.reshape([numbers.shape[0], numbers.shape[1] // 32, 32])


@gluon.jit
def scales_at(scales, strides, rows, near, k, N, K, SIZE: gl.constexpr):
    """Return the scales of rows of weights and of those columns that are `near` after `k`."""
    start = k + near
    inside = (rows < N)[:, None] & (start < K)[None, :]
    offsets = rows.to(gl.int64)[:, None] * strides[0] + (start // SIZE * strides[1])[None, :]
    return gl.load(scales + offsets, mask=inside, other=0)


@gluon.jit
def add_scaled(total, part, scale):
    return total + part * scale.to(gl.float32)[:, None]


@gluon.jit
def fetch(ring, put, row, column, k, pred):
    ring.fetch(put, [[column, k // 2], [row, k]], pred=pred)


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row", "tiles_n", "group_size"])
def linear_few(
    w_desc, x_desc, c, sums, counters, bias, scales, strides, row_scales, M, N, K, c_row, tiles_n, group_size,
    FORMAT: gl.constexpr, SIZE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `x @ weight.T + bias`: `x` is [M, K], `weight` [N, K] in bytes, of which `w_desc` reads pairs of weights.

    `scales` is None, or has a scale for `group_size` weights along K of each row. With SIZE it is multiplied with the weights, in which case it is
    `group_size` and a multiple of 32; without, with the sums of a step, and `group_size` is a multiple of BLOCK_K. `row_scales` is None, or a vector. The other arguments are those of
    `gemm_split_k`. The weights of a step are converted while those of the one before are multiplied. Each part of K has a step.
    """
    PROMOTED: gl.constexpr = scales is not None and SIZE == 0
    dtype: gl.constexpr = x_desc.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    raw_at: gl.constexpr = raw_layout(BLOCK_N, BLOCK_K // 2, gl.num_warps())
    SHAPE: gl.constexpr = [BLOCK_N, BLOCK_K]
    ring = tma_ring([w_desc, x_desc], STAGES)
    tile = gl.program_id(1)
    row = tile // tiles_n * BLOCK_M
    column = tile % tiles_n * BLOCK_N
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    wait_for_predecessor()
    put = ring.producer()
    for i in gl.static_range(STAGES):
        fetch(ring, put, row, column, (first + i) * BLOCK_K, i < count)
        put = put.next()
    position = ring.consumer()
    total = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    acc = total if PROMOTED else warpgroup_mma_init(total)
    scale = None
    coming = None
    k = first * BLOCK_K
    if PROMOTED:
        rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
        coming = scale_at(scales, strides, rows, N, k // group_size, True)
    elif scales is not None:
        like = left_operand(gl.full([BLOCK_N, BLOCK_K // 2], 0, raw_dtype(FORMAT), raw_at), dtype, FORMAT, SHAPE, operand)  # fmt: skip
        of_groups: gl.constexpr = gl.SliceLayout(2, by_group(like).type.layout)
        rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, of_groups))
        groups = gl.arange(0, BLOCK_K // GROUP, gl.SliceLayout(0, of_groups)) * GROUP
        scale = scales_at(scales, strides, rows, groups, k, N, K, SIZE)
        coming = scales_at(scales, strides, rows, groups, k + BLOCK_K, N, K, SIZE)
    raw = ring.wait(position)[0].load(raw_at)
    weights = converted(raw, scale, dtype, FORMAT, SHAPE, operand)
    for step in range(1, count):
        x_tile = ring.tiles(position)[1].permute((1, 0))
        part = warpgroup_mma(weights, x_tile, acc, use_acc=not PROMOTED, is_async=True)
        following = position.next()
        raw = ring.wait(following)[0].load(raw_at)
        k += BLOCK_K
        now = coming
        if PROMOTED:
            coming = scale_at(scales, strides, rows, N, k // group_size, True)
            after = converted(raw, None, dtype, FORMAT, SHAPE, operand)
        else:
            if scales is not None:
                coming = scales_at(scales, strides, rows, groups, k + BLOCK_K, N, K, SIZE)
            after = converted(raw, now, dtype, FORMAT, SHAPE, operand)
        ring.wait(following)  # a branch: ptxas moves no conversion behind it
        # The registers of the weights are read until the product is over.
        waited = warpgroup_mma_wait(0, deps=[part, weights, after])
        if PROMOTED:
            total = add_scaled(total, waited[0], now)
        else:
            acc = warpgroup_mma_init(waited[0])
        ring.release(position)
        again = step - 1 + STAGES < count
        fetch(ring, put, row, column, (first + step - 1 + STAGES) * BLOCK_K, again)
        put = put.next()
        position = following
        weights = waited[2]
    x_tile = ring.tiles(position)[1].permute((1, 0))
    part = warpgroup_mma(weights, x_tile, acc, use_acc=not PROMOTED, is_async=True)
    part = warpgroup_mma_wait(0, deps=[part, weights])[0]
    if PROMOTED:
        total = add_scaled(total, part, coming)
    else:
        total = part
    ring.release(position)
    gl.barrier()  # all warps have read the slots, whose memory the store may use
    result = gl.permute(total, (1, 0))
    end = of_columns(M, N, bias, ACTIVATION, None, None, row_scales)
    store_shared(c, result, tile, (sums, counters), (row, column), (M, N), c_row, end, SPLITS, VECTOR)  # fmt: skip
