"""Products of few rows with weights of 8 or 4 bits on Hopper: weights go from shared memory to the registers that `wgmma` reads.

The transposed product is computed: rows of the weights are the rows of `wgmma`, whose left operand may be in registers, and
the rows of `x` its columns, of which 8 are enough. A byte is loaded to the thread that needs its weights, so that they never
return to shared memory. Weights stay integers there: the sum of each group along K is scaled in float32, while the weights of
the next group are converted. Groups of 32 with scales that are powers of two are scaled in registers, which is exact.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma, warpgroup_mma_wait
from gluon_kernels.gemm.epilogue import of_columns
from gluon_kernels.gemm.hopper_small_m import share_of, store_shared
from gluon_kernels.quant.weights import dtype_of, packed, power_of_two


@gluon.constexpr_function
def bits_of(size):
    return [1 << i for i in range(size.bit_length() - 1)]


@gluon.constexpr_function
def raw_layout(rows, columns, PACKED, warps):
    """Return where bytes of [rows, columns] are, so that their weights are where `wgmma` reads a left operand from registers.

    A thread has two adjacent elements of each 8 of a row, and rows 8 apart (PTX ISA, wgmma, register fragments of A).
    """
    along = bits_of(columns)
    own = (
        [[0, along[0]]] if PACKED == 1 else []
    )  # the second of two adjacent ones is in the same byte
    lanes = along[1:3] if PACKED == 1 else along[:2]
    rest = along[len(own) + 2 :]
    down = bits_of(rows)
    group = down[4:6] + down[6 : 6 + len(bits_of(warps)) - 2]
    registers = own + [[8, 0]] + [[0, b] for b in rest] + [[r, 0] for r in down[4 + len(group) :]]
    return gl.DistributedLinearLayout(
        registers, [[0, b] for b in lanes] + [[r, 0] for r in down[:3]], [[r, 0] for r in group], [], [rows, columns]
    )  # fmt: skip


@gluon.jit
def pairs(raw, dtype: gl.constexpr):
    """Return both integers of 4 bits of each byte as floats of 16 bits in 32: they take the last bits of a float's mantissa, whose
    value is subtracted again."""
    byte = raw.to(gl.int32)
    code = (byte | (byte << 12)) & 0x000F000F
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 base; mov.b32 base, 0x43084308; sub.rn.bf16x2 $0, $1, base; }",
            "=r,r", [code ^ 0x43084308], gl.int32, True, 1,
        )  # fmt: skip
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 base; mov.b32 base, 0x64086408; sub.rn.f16x2 $0, $1, base; }",
            "=r,r", [code ^ 0x64086408], gl.int32, True, 1,
        )  # fmt: skip


@gluon.jit
def pairs_of_mxfp4(raw, dtype: gl.constexpr):
    """Return both floats of 4 bits of each byte as floats of 16 bits in 32: sign, exponent and mantissa move to their places, and a power of
    two gives the exponent its bias."""
    byte = raw.to(gl.int32)
    code = (byte | (byte << 12)) & 0x000F000F
    sign = (code & 0x00080008) << 12
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 bias; mov.b32 bias, 0x7E807E80; mul.rn.bf16x2 $0, $1, bias; }",
            "=r,r", [sign | ((code & 0x00070007) << 6)], gl.int32, True, 1,
        )  # fmt: skip
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 bias; mov.b32 bias, 0x74007400; mul.rn.f16x2 $0, $1, bias; }",
            "=r,r", [sign | ((code & 0x00070007) << 9)], gl.int32, True, 1,
        )  # fmt: skip


@gluon.jit
def times(numbers, factors, dtype: gl.constexpr):
    """Return products of floats of 16 bits, two at a time."""
    PAIR: gl.constexpr = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
    return gl.inline_asm_elementwise(
        f"mul.rn.{PAIR} $0, $1, $2;", "=r,r,r", [numbers, factors.to(dtype)], dtype, True, 2
    )


@gluon.constexpr_function
def of_bytes(dtype):
    """Return PTX that converts 4 signed bytes to 16-bit floats: a byte takes the last bits of a float32, whose value is subtracted again."""
    lines = [".reg .b32 x, base, a<4>;", "xor.b32 x, $2, 0x80808080;", "mov.b32 base, 0x4B000000;"]
    for i in range(4):
        lines.append(f"prmt.b32 a{i}, x, base, 0x744{i};")
        lines.append(f"sub.rn.f32 a{i}, a{i}, 0f4B000080;")
    pair = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
    lines += [f"cvt.rn.{pair}.f32 $0, a1, a0;", f"cvt.rn.{pair}.f32 $1, a3, a2;"]
    return "{ " + " ".join(lines) + " }"


@gluon.jit
def left_operand(raw, dtype: gl.constexpr, FORMAT: gl.constexpr, SHAPE: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """Return the weights of a tile as the left operand of `wgmma`."""
    if packed(FORMAT) == 2:
        both = pairs(raw, dtype) if FORMAT == "int4" else pairs_of_mxfp4(raw, dtype)
        low = (both & 0xFFFF).to(gl.int16).to(dtype, bitcast=True)
        high = (both >> 16).to(gl.int16).to(dtype, bitcast=True)
        numbers = gl.join(low, high).reshape(SHAPE)
    elif FORMAT == "int8":
        numbers = gl.inline_asm_elementwise(of_bytes(dtype), "=r,=r,r", [raw], dtype, True, 4)
    else:
        numbers = raw.to(dtype_of(FORMAT), bitcast=True).to(dtype)
    return gl.convert_layout(numbers, layout)


@gluon.jit
def scale_at(scales, strides, rows, N, group, pred):
    of_row = scales + rows.to(gl.int64) * strides[0] + group * strides[1]
    return gl.load(of_row, mask=(rows < N) & pred, other=0)


@gluon.jit
def by_group(numbers):
    """Return [rows, K] as [rows, groups, 32]."""
    return numbers.reshape([numbers.shape[0], numbers.shape[1] // 32, 32])


@gluon.jit
def exponents_at(scales, strides, rows, groups, k, N, K, pred):
    """Return the scales of the groups of a step, float32."""
    group = k // 32 + groups
    inside = (rows < N)[:, None] & (group < K // 32)[None, :] & pred
    offsets = rows.to(gl.int64)[:, None] * strides[0] + (group * strides[1])[None, :]
    return power_of_two(gl.load(scales + offsets, mask=inside, other=0))


@gluon.jit
def fetch(ring, put, row, column, k, pred, PACKED: gl.constexpr):
    ring.fetch(put, [[column, k // PACKED], [row, k]], pred=pred)


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row", "tiles_n", "group_size"])
def linear_few(
    w_desc, x_desc, c, sums, counters, bias, scales, strides, M, N, K, c_row, tiles_n, group_size,
    FORMAT: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `x @ weight.T + bias`: `x` is [M, K], `weight` [N, K] in bytes.

    `scales` is None, or has a scale for `group_size` weights along K of each row, a multiple of BLOCK_K, or for mxfp4 an exponent for 32. The other arguments are
    those of `gemm_split_k`.
    """
    PACKED: gl.constexpr = packed(FORMAT)
    EXPONENTS: gl.constexpr = FORMAT == "mxfp4"
    PROMOTED: gl.constexpr = scales is not None and FORMAT != "mxfp4"
    dtype: gl.constexpr = x_desc.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_M, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    bytes_at: gl.constexpr = raw_layout(BLOCK_N, BLOCK_K // PACKED, PACKED, gl.num_warps())
    SHAPE: gl.constexpr = [BLOCK_N, BLOCK_K]
    ring = tma_ring([w_desc, x_desc], STAGES)
    tile = gl.program_id(1)
    row = tile // tiles_n * BLOCK_M
    column = tile % tiles_n * BLOCK_N
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    put = ring.producer()
    for i in gl.static_range(STAGES):
        fetch(ring, put, row, column, (first + i) * BLOCK_K, i < count, PACKED)
        put = put.next()
    position = ring.consumer()
    nothing = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout)
    total = nothing
    if EXPONENTS:
        like = left_operand(gl.full([BLOCK_N, BLOCK_K // PACKED], 0, gl.uint8, bytes_at), dtype, FORMAT, SHAPE, operand)  # fmt: skip
        grouped: gl.constexpr = by_group(like).type.layout
        of_groups: gl.constexpr = gl.SliceLayout(2, grouped)
        rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, of_groups))
        groups = gl.arange(0, BLOCK_K // 32, gl.SliceLayout(0, of_groups))
        coming = exponents_at(scales, strides, rows, groups, first * BLOCK_K, N, K, count > 0)
    elif scales is not None:
        rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
        coming = scale_at(scales, strides, rows, N, first * BLOCK_K // group_size, count > 0)
    for step in range(count):
        w_tile, x_tile = ring.wait(position)
        weights = left_operand(w_tile.load(bytes_at), dtype, FORMAT, SHAPE, operand)
        if EXPONENTS:
            scale = coming
            k = (first + step + 1) * BLOCK_K
            coming = exponents_at(scales, strides, rows, groups, k, N, K, step + 1 < count)
            weights = times(by_group(weights), scale[:, :, None], dtype).reshape(SHAPE)
            weights = gl.convert_layout(weights, operand)
        part = warpgroup_mma(weights, x_tile.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if PROMOTED:
            scale = coming
            k = (first + step + 1) * BLOCK_K
            coming = scale_at(scales, strides, rows, N, k // group_size, step + 1 < count)
        part = warpgroup_mma_wait(0, deps=[part])
        if PROMOTED:
            total += part * scale.to(gl.float32)[:, None]
        else:
            total += part
        ring.release(position)
        position = position.next()
        more = step + STAGES < count
        fetch(ring, put, row, column, (first + step + STAGES) * BLOCK_K, more, PACKED)
        put = put.next()
    gl.barrier()  # all warps have read the slots, whose memory the store may use
    result = gl.permute(total, (1, 0))
    end = of_columns(M, N, bias, ACTIVATION)
    store_shared(c, result, tile, (sums, counters), (row, column), (M, N), c_row, end, SPLITS, VECTOR)  # fmt: skip
