"""Products of up to eight rows with weights of 8 or 4 bits: weights go from global memory to the registers that `mma.sync` reads.

A thread loads 16 adjacent bytes of a row of weights, and the elements of a row of `x` that belong to them. The order of K within a step does not
matter if both sides have the same: each of four threads has a quarter of a step's weights, and `mma` multiplies them as the elements of K
that are this thread's (PTX ISA 9.7.14, fragments of mma.m16n8k16). So no tile passes shared memory, and no step has a barrier.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import mma_v2
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_columns
from gluon_kernels.gemm.hopper_small_m import share_of, store_shared
from gluon_kernels.quant.hopper import (
    converted_pairs,
    of_fp8,
    of_int8,
    pairs_of_parts,
    place_of_size,
    times,
)
from gluon_kernels.quant.rows import weights_of_word
from gluon_kernels.quant.weights import packed, power_of_two

__all__ = ["linear_tokens"]

WORDS = gl.constexpr(16)  # of 32 bits, of a row in a step
ROWS = gl.constexpr(8)  # of `x`


@gluon.constexpr_function
def words_layout(rows):
    """Return where words, [rows, WORDS], are: four adjacent ones in a thread, rows as those of a left operand."""
    more = [[64 << i, 0] for i in range((rows // 64).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], *more], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [rows, 16]
    )  # fmt: skip


@gluon.constexpr_function
def x_layout(depth):
    """Return where [ROWS, depth] of `x` are: a quarter of a row in a thread, in each warp."""
    near = [[0, 1 << i] for i in range((depth // 4).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        near, [[0, depth // 4], [0, depth // 2], [1, 0], [2, 0], [4, 0]], [[0, 0], [0, 0]], [], [8, depth]
    )  # fmt: skip


@gluon.jit
def pair(word, i: gl.constexpr, dtype: gl.constexpr, FORMAT: gl.constexpr):
    """Return two weights of each word as floats of 16 bits: of 4 bits `i` and `i + 4`, of 8 bits `2 * i` and `2 * i + 1`."""
    if FORMAT == "int4":
        both = converted_pairs(word >> (4 * i), dtype)
    elif FORMAT == "mxfp4":
        SIZE: gl.constexpr = place_of_size(dtype)
        sizes = word << (SIZE - 4 * i) if SIZE >= 4 * i else word >> (4 * i - SIZE)
        both = pairs_of_parts(word << (12 - 4 * i), sizes, dtype)
    elif FORMAT == "int8":
        both = gl.inline_asm_elementwise(of_int8(dtype), "=r,r", [word >> (16 * i)], gl.int32, True, 1)  # fmt: skip
    else:
        both = gl.inline_asm_elementwise(of_fp8(dtype, FORMAT), "=r,r", [word >> (16 * i)], gl.int32, True, 1)  # fmt: skip
    low = (both & 0xFFFF).to(gl.int16).to(dtype, bitcast=True)
    high = (both >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.join(low, high)


@gluon.jit
def left_operand(word, scale, dtype: gl.constexpr, FORMAT: gl.constexpr, operand: gl.constexpr):
    """Return the weights of a step, times `scale` of [rows, 4] if that is not None."""
    ROWS_OF: gl.constexpr = word.shape[0]
    DEPTH: gl.constexpr = WORDS * weights_of_word(FORMAT)
    if packed(FORMAT) == 2:
        even = gl.join(pair(word, 0, dtype, FORMAT), pair(word, 1, dtype, FORMAT))
        odd = gl.join(pair(word, 2, dtype, FORMAT), pair(word, 3, dtype, FORMAT))
        numbers = gl.join(even, odd)
    else:
        numbers = gl.join(pair(word, 0, dtype, FORMAT), pair(word, 1, dtype, FORMAT))
    if scale is not None:
        quarters = numbers.reshape([ROWS_OF, 4, DEPTH // 4])
        scale = gl.convert_layout(scale, gl.SliceLayout(2, quarters.type.layout))
        quarters = times(quarters, power_of_two(scale)[:, :, None], dtype)
        numbers = quarters
    if packed(FORMAT) == 2:  # threads, words, halves of a byte's pairs, then numbers of pairs
        numbers = numbers.reshape([ROWS_OF, 4, 4, 2, 2, 2]).permute((0, 2, 5, 4, 1, 3))
    else:
        numbers = numbers.reshape([ROWS_OF, 4, 4, 2, 2]).permute((0, 2, 4, 1, 3))
    return gl.convert_layout(numbers.reshape([ROWS_OF, DEPTH]), operand)


@gluon.jit
def right_operand(x, FORMAT: gl.constexpr, operand: gl.constexpr):
    """Return the elements of `x` of a step in the order of K that `left_operand` has."""
    if packed(FORMAT) == 2:
        ordered = x.reshape([ROWS, 4, 4, 2, 2, 2]).permute((0, 2, 4, 5, 1, 3))
    else:
        ordered = x.reshape([ROWS, 4, 4, 2, 2]).permute((0, 2, 3, 1, 4))
    return gl.convert_layout(ordered.reshape(x.shape).permute((1, 0)), operand)


@gluon.jit(do_not_specialize=["M", "N", "w_row", "c_row"])
def linear_tokens(
    w, x, c, sums, counters, bias, scales, strides, row_scales, M, N, K, w_row, c_row,
    SIZE: gl.constexpr, FORMAT: gl.constexpr, BLOCK_N: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `x @ weight.T + bias`: `x` is [M, K], contiguous, with up to eight rows, `w` [N, w_row] of 32-bit words. The grid is [parts of K, tiles].

    A tile has BLOCK_N rows of weights, a multiple of 64. The other arguments are those of `linear_rows` and of `gemm_split_k`.
    """
    gl.static_assert(gl.num_warps() == 4, "four warps have the rows of a tile")
    dtype: gl.constexpr = x.dtype.element_ty
    PER: gl.constexpr = weights_of_word(FORMAT)
    DEPTH: gl.constexpr = WORDS * PER
    SUMMED: gl.constexpr = scales is not None and SIZE % DEPTH == 0
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    of_words: gl.constexpr = words_layout(BLOCK_N)
    of_x: gl.constexpr = x_layout(DEPTH)
    wait_for_predecessor()
    tile = gl.program_id(1)
    column = tile * BLOCK_N
    first, count = share_of(gl.cdiv(K, DEPTH), SPLITS)
    rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, of_words))
    words = first * WORDS + gl.arange(0, WORDS, gl.SliceLayout(0, of_words))
    m = gl.arange(0, ROWS, gl.SliceLayout(1, of_x))
    near = first * DEPTH + gl.arange(0, DEPTH, gl.SliceLayout(0, of_x))
    K = K // (4 * PER) * (4 * PER)  # the compiler sees the multiples
    across = K // PER
    inside, valid = (rows < N)[:, None], (m < M)[:, None]
    w += rows.to(gl.int64)[:, None] * (w_row // 4 * 4) + words[None, :]
    x += m.to(gl.int64)[:, None] * K + near[None, :]
    acc = gl.zeros([BLOCK_N, ROWS], gl.float32, layout)
    raw = gl.load(w, mask=inside & (words < across)[None, :], other=0)
    xs = gl.load(x, mask=valid & (near < K)[None, :], other=0)
    raw_next = gl.load(w + WORDS, mask=inside & (words + WORDS < across)[None, :], other=0)
    xs_next = gl.load(x + DEPTH, mask=valid & (near + DEPTH < K)[None, :], other=0)
    if SUMMED:
        down = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    elif scales is not None:
        quarter: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [4, 1], [1, 0])
        down = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, quarter))
        quarters = gl.arange(0, 4, gl.SliceLayout(0, quarter)) * (DEPTH // 4)
    k = first * DEPTH
    for step in range(count):
        word, elements = raw, xs
        raw, xs = raw_next, xs_next
        ahead = (step + 2) * DEPTH
        raw_next = gl.load(w + ahead // PER, mask=inside & (words + ahead // PER < across)[None, :], other=0)  # fmt: skip
        xs_next = gl.load(x + ahead, mask=valid & (near + ahead < K)[None, :], other=0)
        scale = None
        if scales is not None and not SUMMED:
            places = down.to(gl.int64)[:, None] * strides[0] + ((k + quarters) // SIZE * strides[1])[None, :]  # fmt: skip
            scale = gl.load(scales + places, mask=(down < N)[:, None] & (k + quarters < K)[None, :], other=0)  # fmt: skip
        a = left_operand(word, scale, dtype, FORMAT, gl.DotOperandLayout(0, layout, 2))
        b = right_operand(elements, FORMAT, gl.DotOperandLayout(1, layout, 2))
        if SUMMED:
            of_row = gl.load(scales + down.to(gl.int64) * strides[0] + k // SIZE * strides[1], mask=down < N, other=0)  # fmt: skip
            part = mma_v2(a, b, gl.zeros([BLOCK_N, ROWS], gl.float32, layout))
            acc += part * power_of_two(of_row)[:, None]
        else:
            acc = mma_v2(a, b, acc)
        k += DEPTH
    end = of_columns(M, N, bias, ACTIVATION, None, None, row_scales)
    value = gl.permute(acc, (1, 0))
    store_shared(c, value, tile, (sums, counters), (0, column), (M, N), c_row, end, SPLITS, VECTOR)
