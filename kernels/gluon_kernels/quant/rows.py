"""Products of a few rows with weights of 8 or 4 bits by multiply-adds, on any device: the time is that of reading the weights.

A thread loads 16 bytes of each of some rows of weights, converts them to float32 in registers and multiplies them with the elements of `x`
that it loaded for all of these rows. Nothing goes through shared memory but the last sums of warps that share a row.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_columns, store_part
from gluon_kernels.quant.weights import packed, power_of_two

__all__ = ["linear_rows"]

WORDS = gl.constexpr(4)  # of 32 bits, that a thread loads at once
SIGN = gl.constexpr(-(1 << 31))
FLIPS = gl.constexpr(
    -0x77777778
)  # 0x88888888, which makes signed integers of 4 bits unsigned ones, 8 more


@gluon.constexpr_function
def weights_of_word(FORMAT):
    return 4 * packed(FORMAT)


@gluon.constexpr_function
def excess_of(FORMAT):
    """Return a number that is subtracted from sums, times those of `x`, rather than from each weight: small enough to cost no digits of
    float32 that matter."""
    return 136.0 if FORMAT == "int4" else 0.0


@gluon.jit
def number(word, base, i: gl.constexpr, FORMAT: gl.constexpr):
    """Return weight `i` of each 32-bit word as float32, plus `excess_of`.

    Integers take the last bits of a mantissa, whose value is subtracted again; the bits of a small float move to those of float32, and a power of
    two, with which subnormal numbers become normal, gives the exponent its bias.
    """
    if FORMAT == "int4":
        code = word >> (4 * i - 16) if i >= 4 else word << (16 - 4 * i)
        return ((code & 0x000F0000) | base).to(gl.float32, bitcast=True)
    elif FORMAT == "int8":
        code = ((word >> (8 * i)) & 255) ^ 0x4B000080
        return code.to(gl.float32, bitcast=True) - 8388736.0
    elif FORMAT == "mxfp4":
        code = word << (28 - 4 * i)
        bits = (code & SIGN) | ((code >> 6) & (7 << 22))
        return bits.to(gl.float32, bitcast=True) * 2.0**126
    elif FORMAT == "e5m2":
        code = word << (24 - 8 * i)
        bits = (code & SIGN) | ((code >> 3) & (127 << 21))
        large = (bits | (255 << 23)).to(gl.float32, bitcast=True)  # infinite, or no number
        value = bits.to(gl.float32, bitcast=True) * 2.0**112
        return gl.where((bits & (31 << 23)) == (31 << 23), large, value)
    else:
        code = word << (24 - 8 * i)
        bits = (code & SIGN) | ((code >> 4) & (127 << 20))
        value = bits.to(gl.float32, bitcast=True) * 2.0**120
        return gl.where((bits & (127 << 20)) == (127 << 20), float("nan"), value)


@gluon.jit
def columns_of(x, PER: gl.constexpr, layout: gl.constexpr):
    """Return [rows, words, weights of a word] as a tuple of [rows, words]."""
    wide: gl.constexpr = [x.shape[0], x.shape[1], 2]
    if PER == 4:
        even, odd = gl.split(x.reshape(wide + [2]))
        c0, c2 = gl.split(even)
        c1, c3 = gl.split(odd)
        parts = (c0, c1, c2, c3)
    else:
        even, odd = gl.split(x.reshape(wide + [2, 2]))
        a, b = gl.split(even)
        c, d = gl.split(odd)
        c0, c4 = gl.split(a)
        c2, c6 = gl.split(b)
        c1, c5 = gl.split(c)
        c3, c7 = gl.split(d)
        parts = (c0, c1, c2, c3, c4, c5, c6, c7)
    return parts


@gluon.jit(do_not_specialize=["M", "N", "w_row", "c_row"])
def linear_rows(
    w, x, c, bias, scales, strides, row_scales, M, N, K, w_row, c_row, SIZE: gl.constexpr, FORMAT: gl.constexpr,
    BLOCK_M: gl.constexpr, ROWS: gl.constexpr, ALONG: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `x @ weight.T + bias`: `x` is [M, K], contiguous, `w` [N, w_row] of 32-bit words. The grid is [tiles of N].

    A tile has BLOCK_M rows of `x`, of which there are no more, and ROWS rows of weights for each thread; ALONG warps share a row. A row of weights has
    a multiple of 16 bytes, and begins at one. `scales` is None, or has a scale for SIZE weights along K of each row, a multiple of 32; `row_scales` is
    None, or a vector.
    """
    PER: gl.constexpr = weights_of_word(FORMAT)
    LANES: gl.constexpr = gl.target.warp_size()
    DOWN: gl.constexpr = gl.num_warps() // ALONG
    BLOCK_N: gl.constexpr = ROWS * DOWN
    WIDE: gl.constexpr = WORDS * LANES * ALONG
    whole: gl.constexpr = gl.BlockedLayout(
        [BLOCK_M, ROWS, WORDS, PER], [1, 1, LANES, 1], [1, DOWN, ALONG, 1], [3, 2, 1, 0]
    )
    of_words: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(3, whole))
    of_x: gl.constexpr = gl.SliceLayout(1, whole)
    of_parts: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, whole))
    if gl.target.has("nvidia.tma"):  # as have all targets with dependent launches
        wait_for_predecessor()
    column = gl.program_id(0) * BLOCK_N
    rows = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, of_words))
    words = gl.arange(0, WIDE, gl.SliceLayout(0, of_words))
    m = gl.arange(0, BLOCK_M, gl.SliceLayout(1, gl.SliceLayout(2, of_x)))
    near = gl.arange(0, WIDE, gl.SliceLayout(0, gl.SliceLayout(2, of_x)))
    j = gl.arange(0, PER, gl.SliceLayout(0, gl.SliceLayout(1, of_x)))
    K = K // (WORDS * PER) * (WORDS * PER)  # the compiler sees the multiples
    count = K // PER
    of_row = w + rows.to(gl.int64)[:, None] * (w_row // WORDS * WORDS)
    of_m = x + m.to(gl.int64)[:, None, None] * K
    steps = gl.cdiv(count, WIDE)
    raw = gl.load(of_row + words[None, :], mask=(rows < N)[:, None] & (words < count)[None, :], other=0)  # fmt: skip
    xs = gl.load(
        of_m + near[None, :, None] * PER + j[None, None, :],
        mask=(m < M)[:, None, None] & (near < count)[None, :, None], other=0,
    )  # fmt: skip
    total = gl.zeros([BLOCK_M, BLOCK_N, WIDE], gl.float32, gl.SliceLayout(3, whole))
    total = gl.sum(total.reshape([BLOCK_M, BLOCK_N, WIDE // WORDS, WORDS]), 3)
    thread: gl.constexpr = total.type.layout
    if scales is not None:
        down = column + gl.arange(0, BLOCK_N, gl.SliceLayout(1, gl.SliceLayout(0, thread)))
        chunk = gl.arange(0, WIDE // WORDS, gl.SliceLayout(0, gl.SliceLayout(0, thread)))
        of_scale = scales + down.to(gl.int64)[:, None] * strides[0]
    # In a register: an instruction takes one constant, and mask and base of a weight are two.
    base = 0x43000000 + (N >> 31)
    for step in range(steps):
        word = raw ^ FLIPS if FORMAT == "int4" else raw
        floats = columns_of(xs.to(gl.float32), PER, of_parts)
        following = (step + 1) * WIDE
        inside = words + following < count
        raw = gl.load(of_row + words[None, :] + following, mask=(rows < N)[:, None] & inside[None, :], other=0)  # fmt: skip
        inside = near + following < count
        xs = gl.load(
            of_m + (near[None, :, None] + following) * PER + j[None, None, :],
            mask=(m < M)[:, None, None] & inside[None, :, None], other=0,
        )  # fmt: skip
        part = gl.zeros([BLOCK_M, BLOCK_N, WIDE], gl.float32, gl.SliceLayout(3, whole))
        excess = gl.zeros([BLOCK_M, WIDE], gl.float32, of_parts)
        for i in gl.static_range(PER):
            of_i = gl.convert_layout(floats[i], of_parts)
            part += number(word, base, i, FORMAT)[None, :, :] * of_i[:, None, :]
            excess += of_i
        sums = gl.sum(part.reshape([BLOCK_M, BLOCK_N, WIDE // WORDS, WORDS]), 3)
        if excess_of(FORMAT) > 0:
            less = gl.sum(excess.reshape([BLOCK_M, WIDE // WORDS, WORDS]), 2)
            sums -= gl.convert_layout(less, gl.SliceLayout(1, thread))[:, None, :] * excess_of(FORMAT)  # fmt: skip
        if scales is not None:
            k = (step * (WIDE // WORDS) + chunk) * (WORDS * PER)
            scale = gl.load(of_scale + (k // SIZE * strides[1])[None, :], mask=(down < N)[:, None] & (k < K)[None, :], other=0)  # fmt: skip
            sums *= power_of_two(scale)[None, :, :]
        total += sums
    result = gl.sum(total, 2)
    end = of_columns(M, N, bias, ACTIVATION, None, None, row_scales)
    store_part(c, result, 0, column, (M, N), c_row, end, False, min(VECTOR, BLOCK_N))
