"""Kernels that round, pack and quantize in the styles of public libraries for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def adam_bytes(
    p_ptr, g_ptr, m_ptr, scale_ptr, n, lr, beta, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """Take a step of momentum that is kept in bytes, with a scale for each group of neighbours."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = place < n
    known = group * GROUP < n
    scale = tl.load(scale_ptr + group, mask=known, other=0.0)
    m = tl.load(m_ptr + place, mask=inside, other=0).to(tl.float32) * scale[:, None]
    g = tl.load(g_ptr + place, mask=inside, other=0.0).to(tl.float32)
    m = beta * m + (1 - beta) * g
    top = tl.max(tl.abs(m), 1) / 127.0 + 1e-12
    code = tl.floor(m / top[:, None] + 0.5).to(tl.int8)
    p = tl.load(p_ptr + place, mask=inside, other=0.0).to(tl.float32) - lr * m
    tl.store(p_ptr + place, p.to(p_ptr.dtype.element_ty), mask=inside)
    tl.store(m_ptr + place, code, mask=inside)
    tl.store(scale_ptr + group, top, mask=known)


@triton.jit
def round_by_chance(x_ptr, y_ptr, n, seed, BLOCK: tl.constexpr):
    """Round to bfloat16 at random, four numbers from each draw of Philox."""
    part = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    base = tl.program_id(0) * 4 * BLOCK
    a, b, c, d = tl.randint4x(seed, part)
    index = tl.arange(0, BLOCK)
    for quarter in tl.static_range(4):
        place = base + quarter * BLOCK + index
        noise = a if quarter == 0 else (b if quarter == 1 else (c if quarter == 2 else d))
        x = tl.load(x_ptr + place, mask=place < n, other=0.0)
        bits = x.to(tl.uint32, bitcast=True) + (noise.to(tl.uint32, bitcast=True) & 0xFFFF)
        y = (bits & 0xFFFF0000).to(tl.float32, bitcast=True).to(tl.bfloat16)
        tl.store(y_ptr + place, y, mask=place < n)


@triton.jit
def pack_nibbles(x_ptr, q_ptr, scale_ptr, zero_ptr, M, N, BM: tl.constexpr, GROUP: tl.constexpr):
    """Quantize groups of a row to 4 bits with a scale and a zero, two neighbours in a byte."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    group = tl.program_id(1)
    n = group * GROUP + tl.arange(0, GROUP)
    groups = N // GROUP
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=(m < M)[:, None], other=0.0).to(
        tl.float32
    )
    low = tl.min(x, 1)
    scale = tl.maximum((tl.max(x, 1) - low) / 15.0, 1e-6)
    code = tl.minimum(tl.maximum(tl.floor((x - low[:, None]) / scale[:, None] + 0.5), 0.0), 15.0)
    a, b = tl.split(tl.reshape(code.to(tl.uint8), [BM, GROUP // 2, 2]))
    half = group * (GROUP // 2) + tl.arange(0, GROUP // 2)
    tl.store(q_ptr + m[:, None] * (N // 2) + half[None, :], a | (b << 4), mask=(m < M)[:, None])
    tl.store(scale_ptr + m * groups + group, scale, mask=m < M)
    tl.store(zero_ptr + m * groups + group, low, mask=m < M)


@triton.jit
def quantize_rows(x_ptr, q_ptr, scale_ptr, N, BLOCK: tl.constexpr):
    """Quantize a row to FP8 by its largest element, in two walks."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + row * N + start + place, mask=start + place < N, other=0.0).to(
            tl.float32
        )
        most = tl.maximum(most, tl.abs(x))
    scale = tl.maximum(tl.max(most, 0) / 448.0, 1e-8)
    tl.store(scale_ptr + row, scale)
    for start in range(0, N, BLOCK):
        x = tl.load(x_ptr + row * N + start + place, mask=start + place < N, other=0.0).to(
            tl.float32
        )
        q = tl.minimum(tl.maximum(x / scale, -448.0), 448.0)
        tl.store(
            q_ptr + row * N + start + place, q.to(q_ptr.dtype.element_ty), mask=start + place < N
        )


@triton.jit
def quantize_tiles(x_ptr, q_ptr, scale_ptr, M, N, B: tl.constexpr):
    """Quantize tiles of a matrix to FP8 by the largest element of each."""
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    place = m[:, None] * N + n[None, :]
    inside = (m < M)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)) / 448.0, 1e-8)
    tl.store(q_ptr + place, (x / scale).to(q_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), scale)


@triton.jit
def gate_and_quantize(x_ptr, q_ptr, scale_ptr, N, GROUP: tl.constexpr):
    """Gate one half of a row by SiLU of the other, and quantize groups of the result to FP8."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    place = group * GROUP + tl.arange(0, GROUP)
    a = tl.load(x_ptr + row * 2 * N + place, mask=place < N, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row * 2 * N + N + place, mask=place < N, other=0.0).to(tl.float32)
    y = a * tl.sigmoid(a) * b
    scale = tl.maximum(tl.max(tl.abs(y), 0) / 448.0, 1e-8)
    tl.store(q_ptr + row * N + place, (y / scale).to(q_ptr.dtype.element_ty), mask=place < N)
    tl.store(scale_ptr + row * tl.num_programs(1) + group, scale)


@triton.jit
def words_of_table(q_ptr, table_ptr, scale_ptr, y_ptr, n, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Look up both nibbles of bytes in a table of 16 numbers, with a scale for each group."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    q = tl.load(q_ptr + place, mask=place < n, other=0).to(tl.int32)
    scale = tl.load(scale_ptr + place * 2 // GROUP, mask=place < n, other=0.0)
    high = tl.load(table_ptr + (q >> 4)) * scale
    low = tl.load(table_ptr + (q & 15)) * scale
    y = tl.reshape(tl.join(high, low), [2 * BLOCK])
    out = tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    tl.store(y_ptr + out, y.to(y_ptr.dtype.element_ty), mask=out < 2 * n)
