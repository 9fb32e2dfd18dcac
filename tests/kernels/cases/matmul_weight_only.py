"""A product with weights of 8 or 4 bits, made bfloat16 on the way: what memory sends is a half or a quarter.

Weights lie as `[N, K]`, two of 4 bits in a byte, and GROUP of them along K share a scale. A tile comes
through a ring of buffers as it is, goes to registers, is unpacked and scaled there, and goes back to
shared memory, where the matrix unit takes it; meanwhile the product of the step before goes on.
"""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def half_of(code, FORMAT: gl.constexpr):
    """The number that 4 bits stand for. Bits are put where bfloat16 has them."""
    bits = code.to(gl.int16)
    if FORMAT == "mxfp4":  # sign, exponent and mantissa
        bits = ((bits & 8) << 12) | ((bits & 7) << 6)
        number = bits.to(gl.bfloat16, bitcast=True) * 2.0**126
    else:  # as 136 and more, up to 143, or less, down to 128
        number = ((bits ^ 8) | 0x4300).to(gl.bfloat16, bitcast=True) - 136.0
    return number.to(gl.bfloat16)


@gluon.jit
def unpacked(raw, FORMAT: gl.constexpr, GROUP: gl.constexpr):
    """Numbers of a tile of bytes [N, bytes], of two to a byte the low half first, in groups [N, groups,
    GROUP]."""
    if FORMAT == "int8":
        result = raw.to(gl.int8, bitcast=True).to(gl.bfloat16)
    else:
        result = gl.join(half_of(raw & 15, FORMAT), half_of(raw >> 4, FORMAT))
    PACKED: gl.constexpr = 1 if FORMAT == "int8" else 2
    return result.reshape([raw.shape[0], PACKED * raw.shape[1] // GROUP, GROUP])


@gluon.jit
def scales_at(scales, place, k, K, GROUP: gl.constexpr):
    """The scales of a tile: bfloat16, or exponents of powers of two."""
    rows, group, inside = place
    group += k // GROUP
    at = rows[:, None] * (K // GROUP) + group[None, :]
    scale = gl.load(scales + at, mask=inside[:, None] & (group < K // GROUP)[None, :], other=0)
    if scale.dtype == gl.uint8:
        scale = (scale.to(gl.int16) << 7).to(gl.bfloat16, bitcast=True)
    return scale


@gluon.jit
def matmul_weight_only(
    a, weights, scales, c, sums, counters, M, N, K, FORMAT: gl.constexpr, GROUP: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """`c = a @ weights.T`. `weights` is [N, K] of int8, or [N, K / 2] of int4 or fp4, as uint8; `scales`
    [N, K / GROUP], bfloat16, or uint8 exponents for "mxfp4". `sums` is [blocks, SPLITS, BLOCK_M,
    BLOCK_N], float32; `counters` has a zero for each block. GROUP divides K and BLOCK_K."""
    dtype: gl.constexpr = a.dtype.element_ty
    PACKED: gl.constexpr = 1 if FORMAT == "int8" else 2
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared", b_transposed=True
    )
    wide: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, BLOCK_K // PACKED], gl.uint8)
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    row_bytes = gl.multiple_of(K // PACKED, GROUP // PACKED)
    w_tiles = gl.portable.descriptor(
        weights, [N, row_bytes], [row_bytes, 1], [BLOCK_N, BLOCK_K // PACKED]
    )
    ring = gl.portable.pipeline([a_tiles, w_tiles], STAGES)
    ready = gl.allocate_shared_memory(dtype, [2, BLOCK_N, BLOCK_K], layouts.b_shared)
    column = gl.program_id(0) * BLOCK_N
    row = gl.program_id(2) * BLOCK_M
    share = gl.cdiv(gl.cdiv(K, BLOCK_K), SPLITS)
    first = gl.program_id(1) * share
    # One step at least, of zeros behind K: where the loop may be left out, sums that are zeros meet those
    # of products, and ptxas waits after each product.
    count = gl.maximum(gl.minimum(share, gl.cdiv(K, BLOCK_K) - first), 1)
    # Scales lie in threads as the groups that they belong to.
    like = unpacked(gl.full([BLOCK_N, BLOCK_K // PACKED], 0, gl.uint8, wide), FORMAT, GROUP)
    by_group: gl.constexpr = gl.SliceLayout(2, like.type.layout)
    rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, by_group))
    place = (rows, gl.arange(0, BLOCK_K // GROUP, gl.SliceLayout(0, by_group)), rows < N)
    coming = scales_at(scales, place, first * BLOCK_K, K, GROUP)
    for i in gl.static_range(STAGES - 1):
        k = (first + i) * BLOCK_K
        ring.fetch(i, [[row, k], [column, k // PACKED]], pred=i < count)
    acc = gl.portable.accumulator(layouts)
    for step in range(count):
        k = (first + step) * BLOCK_K
        a_tile, raw = ring.wait(step)
        scale, coming = coming, scales_at(scales, place, k + BLOCK_K, K, GROUP)
        numbers = unpacked(raw.load(wide), FORMAT, GROUP) * scale[:, :, None]
        b_tile = ready.index(step % 2)
        b_tile.store(numbers.reshape([BLOCK_N, BLOCK_K]))
        gl.portable.fence()
        acc = gl.portable.mma(a_tile, b_tile.permute((1, 0)), acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=1)
        k += (STAGES - 1) * BLOCK_K
        ring.fetch(
            step + STAGES - 1, [[row, k], [column, k // PACKED]], pred=step + STAGES - 1 < count
        )
    result = gl.portable.read(acc)
    ring.close()
    whole = True
    if SPLITS > 1:
        block = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
        of_block = sums + block * (SPLITS * BLOCK_M * BLOCK_N)
        result, whole = gl.portable.split_k_reduce(
            result, of_block, counters + block, gl.program_id(1), SPLITS
        )
    if whole:
        c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])
        gl.portable.store(c_tiles, [row, column], result)


def quantized(number, format, group):
    """Weights and scales of a float array [N, K], in NumPy."""
    n, k = number.shape
    parts = number.reshape(n, k // group, group)
    most = np.abs(parts).max(axis=2, keepdims=True)
    if format == "mxfp4":
        exponent = np.clip(np.floor(np.log2(np.maximum(most, 1e-30))) - 2, -126, 127)
        grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        nearest = np.abs(np.abs(parts / 2.0**exponent)[..., None] - grid).argmin(-1)
        code = (nearest | np.where(parts < 0, 8, 0)).astype(np.uint8)
        scale = (exponent[..., 0] + 127).astype(np.uint8)
    else:
        limit = 127 if format == "int8" else 7
        scale = (most[..., 0] / limit).astype(ml_dtypes.bfloat16)
        step = np.maximum(scale.astype(np.float64), 1e-30)[..., None]
        code = np.clip(np.rint(parts / step), -limit, limit).astype(np.int8).view(np.uint8)
    code = code.reshape(n, k)
    if format != "int8":
        code = (code[:, ::2] & 15) | (code[:, 1::2] << 4)
    return code, scale


def restored(weights, scales, format, group):
    """What weights stand for, in float64."""
    if format == "int8":
        number = weights.view(np.int8).astype(np.float64)
    else:
        code = np.stack([weights & 15, weights >> 4], axis=2).reshape(len(weights), -1)
        grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        plain = np.where(code < 8, code, code.astype(np.int64) - 16).astype(np.float64)
        number = np.where(code < 8, 1, -1) * grid[code & 7] if format == "mxfp4" else plain
    mx = scales.dtype == np.uint8
    scale = 2.0 ** (scales.astype(np.float64) - 127) if mx else scales.astype(np.float64)
    return number * scale.repeat(group, axis=1)


def arguments(format, group):
    def make(new, large, sizes=None, block=None, splits=None):
        m, n, k = sizes or ((16, 8192, 8192) if large else (5, 208, 384))
        block, splits = block or ((64, 128) if large else (64, 64)), splits or 3
        blocks = gluon.cdiv(m, block[0]) * gluon.cdiv(n, block[1])
        packed = k if format == "int8" else k // 2
        weights = new.integers((n, packed), 0, 256, "uint8")
        if format == "mxfp4":
            scales = new.integers((n, k // group), 120, 130, "uint8")
        else:
            scales = new.random((n, k // group), "bfloat16")
        return {
            "a": new.random((m, k), "bfloat16"),
            "weights": weights,
            "scales": scales,
            "c": new.empty((m, n), "bfloat16"),
            "sums": new.empty((blocks, splits, *block)),
            "counters": new.integers((blocks,), 0, 1, "int32"),
            "M": m,
            "N": n,
            "K": k,
        }

    return make


def configure(format, group):
    def config(warp_size, block=(64, 64, 64), stages=3, splits=3, num_warps=4):
        m, n, k = block
        blocks = {"FORMAT": format, "GROUP": group, "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
        return {**blocks, "STAGES": stages, "SPLITS": splits, "num_warps": num_warps}

    return config


def grid(args, config):
    blocks = [gluon.cdiv(args[x], config[f"BLOCK_{x}"]) for x in "NM"]
    return (blocks[0], config["SPLITS"], blocks[1])


def choices(target):
    """What fits into shared memory of 64 KiB."""
    return {} if target.has("nvidia.cp_async") else {"stages": 2}


def example(format, group):
    config = configure(format, group)

    def reference(args):
        weights = restored(args["weights"], args["scales"], format, group)
        # The matrix unit takes bfloat16.
        rounded = weights.astype(ml_dtypes.bfloat16).astype(np.float64)
        return args["a"].astype(np.float64) @ rounded.T

    return Example(
        name=f"matmul, weight-only, {format}",
        kernel=matmul_weight_only,
        arguments=arguments(format, group),
        grid=grid,
        config=config,
        large_config=lambda warp_size, block=(64, 128, 64), **more: config(
            warp_size, block, **more
        ),
        choices=choices,
        reference=reference,
        output="c",
        bytes_moved=lambda args: args["N"] * args["K"] * (2 if format == "int8" else 1) // 2,
        tolerance=4e-3,
    )


EXAMPLES = [example("int4", 64)]
# Not in the demo.
MORE = [example("int8", 64), example("mxfp4", 32)]

if __name__ == "__main__":
    raise SystemExit(main([*EXAMPLES, *MORE]))
