"""Kernels of plain Triton that quantize and restore, in the styles of public libraries."""

import functools

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.libdevice import round as rounded
except ModuleNotFoundError:
    from triton.language.extra.cuda.libdevice import round as rounded

if triton.__version__ >= "3":
    from triton.language.extra import libdevice

    device_tanh, device_cast = libdevice.tanh, tl.cast
else:
    device_tanh = tl.math.tanh

    @triton.jit
    def device_cast(x, dtype):
        return x.to(dtype)


E4M3_MAX: float = torch.finfo(torch.float8_e4m3fn).max
LIMIT: tl.constexpr = tl.constexpr(127.0)
NIBBLES = tl.constexpr([0, 4, 1, 5, 2, 6, 3, 7])


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(low, high, *shape, seed=0, dtype=torch.int32):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# groups of a row to 8-bit floats, with scales that are powers of two, in columns


def group_quant_8bit(
    x_ptr, q_ptr, s_ptr, n, stride_sk: tl.int64, stride_sm, eps,
    top: tl.constexpr = E4M3_MAX, GROUP: tl.constexpr = 32, PACKED: tl.constexpr = False, ROUNDS: tl.constexpr = True,
):  # fmt: skip
    g_id = tl.program_id(0).to(tl.int64)
    groups = n // GROUP
    row, column = g_id // groups, g_id % groups
    x_ptr += g_id * GROUP
    q_ptr += g_id * GROUP
    s_ptr += column * stride_sk + row * stride_sm
    spot = tl.arange(0, GROUP)
    x = tl.load(x_ptr + spot).to(tl.float32)
    absmax = tl.maximum(tl.max(tl.abs(x)), eps)
    raw = absmax / top
    scale = tl.math.exp2(tl.ceil(tl.log2(raw))) if ROUNDS else raw
    q = tl.clamp(x / scale, -top, top).to(q_ptr.dtype.element_ty)
    tl.store(q_ptr + spot, q)
    if PACKED:
        exponent = (scale.to(tl.int32, bitcast=True) >> 23) & 0xFF
        tl.store(s_ptr, exponent.to(tl.uint8))
    else:
        tl.store(s_ptr, scale)


group_quant_8bit = triton.jit(group_quant_8bit)
group_quant_8bit = triton.heuristics(
    {"ROUNDS": lambda args: args["PACKED"] or args["n"] % 64 == 0}
)(group_quant_8bit)


def _grouped(n, packed):
    R, G = 3, 32
    x = normal(R, n, dtype=torch.bfloat16)
    q = torch.empty(R, n, dtype=torch.float8_e4m3fn)
    s = torch.empty(n // G, R, dtype=torch.uint8 if packed else torch.float32)
    launch = functools.partial(group_quant_8bit[(R * n // G,)], PACKED=packed)
    launch(x, q, s, n, s.stride(0), s.stride(1), 1e-10)
    parts = x.float().view(R, n // G, G)
    scale = parts.abs().amax(-1) / E4M3_MAX
    if packed or n % 64 == 0:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    want = (parts / scale[..., None]).to(torch.float8_e4m3fn)
    if packed:
        scale = torch.log2(scale) + 127
    return torch.cat([q.float().flatten(), s.float().t().flatten()]), torch.cat(
        [want.float().flatten(), scale.flatten()]
    )


def fp8_groups():
    one, other = _grouped(96, False), _grouped(64, True)
    return torch.cat([one[0], other[0]]), torch.cat([one[1], other[1]])


# weights of four bits in the order of AWQ: interleaved eight times, shifted by a row of constants


@triton.jit
def awq_kernel(qw, scales, zeros, group, out, columns, rows, BX: tl.constexpr, BY: tl.constexpr):
    px, py = tl.program_id(axis=0), tl.program_id(axis=1)
    y, x = py * BY + tl.arange(0, BY), px * BX + tl.arange(0, BX)
    words = tl.load(
        qw + columns * y[:, None] + x[None, :], (y[:, None] < rows) & (x[None, :] < columns), 0.0
    )
    words = tl.interleave(words, words)
    words = tl.interleave(words, words)
    words = tl.interleave(words, words)
    order = ((tl.arange(0, 2) * 4)[None, :] + tl.arange(0, 4)[:, None]).reshape(8)
    shifts = order * 4
    shifts = tl.broadcast_to(shifts[None, :], (BY * BX, 8))
    shifts = tl.reshape(shifts, (BY, BX * 8))
    words = (words >> shifts) & 0xF
    zy = py * BY // group + tl.arange(0, 1)
    z = tl.load(zeros + columns * zy[:, None] + x[None, :], mask=x[None, :] < columns, other=0)
    z = tl.interleave(z, z)
    z = tl.interleave(z, z)
    z = tl.interleave(z, z)
    z = tl.broadcast_to(z, (BY, BX * 8))
    z = (z >> shifts) & 0xF
    wide = px * BX * 8 + tl.arange(0, BX * 8)
    s = tl.load(
        scales + columns * 8 * zy[:, None] + wide[None, :], mask=wide[None, :] < columns * 8
    )
    s = tl.broadcast_to(s, (BY, BX * 8))
    r = ((words - z) * s).to(out.dtype.element_ty)
    tl.store(
        out + columns * 8 * y[:, None] + wide[None, :],
        r,
        (y[:, None] < rows) & (wide[None, :] < columns * 8),
    )


def awq_weights():
    K, N, G = 32, 48, 16
    q, z = whole(0, 16, K, N), whole(0, 16, K // G, N, seed=1)
    scale = normal(K // G, N, seed=2, dtype=torch.float16)
    place = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])

    def packed(x):
        total = (x.long().view(x.shape[0], -1, 8) << (4 * place)).sum(-1)
        return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)

    out = torch.empty(K, N, dtype=torch.float16)
    awq_kernel[lambda meta: (triton.cdiv(N // 8, meta["BX"]), triton.cdiv(K, meta["BY"]))](
        packed(q), scale, packed(z), G, out, N // 8, K, BX=4, BY=16)  # fmt: skip
    g = torch.arange(K) // G
    return out, ((q - z[g]) * scale[g].float()).half()


# bytes to floats by their bits, in 16-bit integers; bytes of signs


@triton.jit
def decoded(byte, BIAS: tl.constexpr, MANTISSA: tl.constexpr):
    wide = byte.to(tl.uint16)
    sign = (wide & 0x80) << 8
    bits = sign | ((wide & 0x7F) << (10 - MANTISSA))
    return bits.to(tl.float16, bitcast=True) * (2.0 ** (15 - BIAS))


@triton.jit
def byte_matmul_kernel(
    x, w, bias, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    pm, pn = tl.program_id(0), tl.program_id(1)
    m, n, k = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN), tl.arange(0, BK)
    xp = x + (m[:, None] * K + k[None, :])
    wp = w + (n[None, :] * K + k[:, None])
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(tl.cdiv(K, BK)):
        left = K - i * BK
        a = tl.load(xp, mask=(k[None, :] < left) & (m < M)[:, None], other=0.0)
        b = decoded(tl.load(wp, mask=(k[:, None] < left) & (n < N)[None, :], other=0), 7, 3)
        acc = tl.dot(a, b, acc=acc)
        xp += BK
        wp += BK
    if bias is not None:
        acc += tl.load(bias + n, mask=n < N, other=0.0)[None, :].to(acc.dtype)
    tl.store(
        out + m[:, None] * N + n[None, :],
        device_tanh(acc).to(out.dtype.element_ty),
        mask=(m < M)[:, None] & (n < N)[None, :],
    )


def byte_weights():
    M, N, K = 20, 24, 40
    x = normal(M, K, dtype=torch.float16)
    w = normal(N, K, seed=1).to(torch.float8_e4m3fn)
    bias = normal(N, seed=2)
    outs = [torch.empty(M, N, dtype=torch.float16) for _ in range(2)]
    for out, b in zip(outs, (bias, None)):
        byte_matmul_kernel[(2, 1, 1)](
            x, w.view(torch.uint8), b, out, M, N, K, BM=16, BN=32, BK=16, num_stages=3
        )
    want = x.float() @ w.float().t()
    return torch.stack(outs), torch.stack([(want + bias).tanh(), want.tanh()])


# int8 rows with a scale and a zero point, in two passes, tuned and with helpers that round


@triton.jit
def nearest(x, HOW: tl.constexpr = "even"):
    if HOW == "even":
        return libdevice.nearbyint(x)
    elif HOW == "away":
        return rounded(x)
    else:
        tl.static_assert(HOW == "floor", "no such way of rounding")
        return tl.floor(x + 0.5)


@triton.jit
def row_quant_kernel(
    x_ptr,
    q_ptr,
    scale_ptr,
    zero_ptr,
    x_stride,
    q_stride,
    n,
    ASYMMETRIC: tl.constexpr,
    HOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    x_row, q_row = x_ptr + row.to(tl.int64) * x_stride, q_ptr + row.to(tl.int64) * q_stride
    low = tl.full([], float("inf"), dtype=tl.float32)
    high = -low
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + i, mask=i < n, other=float("nan"))
        low = min(low, tl.min(tl.where(i < n, x, float("inf")).to(tl.float32), axis=0))
        high = max(high, tl.max(tl.where(i < n, x, float("-inf")).to(tl.float32), axis=0))
    if ASYMMETRIC:
        scale = (high - low) / 255
        zero = nearest(-128 - low / scale, HOW="away").to(tl.int32)
    else:
        scale = max(tl.abs(high), tl.abs(low)) / LIMIT
        zero = 0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + i, mask=i < n, other=0.0).to(tl.float32)
        q = nearest(x / scale, HOW) + zero
        q = tl.minimum(tl.maximum(q, -128), 127)
        tl.store(q_row + i, device_cast(q, tl.int8), mask=i < n)
    tl.store(scale_ptr + row, scale)
    if ASYMMETRIC:
        tl.store(zero_ptr + row, zero)


def int8_rows():
    R, N = 5, 100
    x, got, want = normal(R, N, dtype=torch.bfloat16), [], []
    for way, how in enumerate(("even", "away", "floor")):
        q, s, z = (
            torch.empty(R, N, dtype=torch.int8),
            torch.empty(R, 1),
            torch.zeros(R, 1, dtype=torch.int32),
        )
        kwargs = {"ASYMMETRIC": bool(way), "HOW": how, "BLOCK": 64, "num_warps": 2}
        row_quant_kernel[(R,)](
            x_ptr=x,
            q_ptr=q,
            scale_ptr=s,
            zero_ptr=z,
            x_stride=x.stride(0),
            q_stride=N,
            n=N,
            **kwargs,
        )
        got.append((q.float() - z) * s)
        step = (
            (x.float().amax(1) - x.float().amin(1)) / 255 if way else x.float().abs().amax(1) / 127
        )
        assert (s[:, 0] - step).abs().max() < 1e-6
        want.append(x.float())
        assert (got[-1] - want[-1]).abs().max() <= step.max() * 0.51
    return torch.stack(got).half() * 0.2, torch.stack(want) * 0.2


# Four-bit values index a table of 16; a byte holds two of them, and the compiler unrolls the loop over parts.


@triton.jit
def fp4_kernel(packed, scales, lut, out, n, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    i = start + tl.arange(0, BLOCK)
    byte = tl.load(packed + i, mask=i < n)
    low, high = (byte & 0xF).to(tl.int32), (byte >> 4).to(tl.int32)
    table = tl.load(lut + tl.arange(0, 16))
    low, high = table.gather(low, 0), tl.gather(table, high, axis=0)
    both = tl.join(low, high).reshape(2 * BLOCK // GROUP, GROUP)
    exponent = tl.load(
        scales + 2 * start // GROUP + tl.arange(0, 2 * BLOCK // GROUP),
        mask=2 * start // GROUP + tl.arange(0, 2 * BLOCK // GROUP) < 2 * n // GROUP,
        other=0,
    )
    scale = (exponent.to(tl.uint32) << 23).to(tl.float32, bitcast=True)
    y = tl.ravel(both * scale[:, None])
    j = 2 * start + tl.arange(0, 2 * BLOCK)
    tl.store(out + j, y.to(tl.bfloat16), mask=j < 2 * n)


def fp4_table():
    n, GROUP = 80, 32
    packed, scales = (
        whole(0, 256, n, dtype=torch.uint8),
        whole(120, 132, 2 * n // GROUP, seed=1, dtype=torch.uint8),
    )
    lut = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    lut = torch.cat([lut, -lut])
    out = torch.empty(2 * n, dtype=torch.bfloat16)
    fp4_kernel[(2,)](packed, scales, lut, out, n, BLOCK=64, GROUP=GROUP)
    q = torch.stack([packed & 15, packed >> 4], 1).flatten().long()
    return out, lut[q] * torch.exp2(scales.float() - 127).repeat_interleave(GROUP)


# blocks of a matrix to 8-bit floats through a descriptor, and the product restored by both scales


@triton.jit
def tile_quant_kernel(x_ptr, y_ptr, s_ptr, M, N, B: tl.constexpr = 32):
    pm, pn = tl.program_id(axis=0), tl.program_id(axis=1)
    n = tl.cdiv(N, B)
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=(M, N), strides=(N, 1), block_shape=(B, B))
    y_desc = tl.make_tensor_descriptor(y_ptr, shape=(M, N), strides=(N, 1), block_shape=(B, B))
    x = x_desc.load([pm * B, pn * B]).to(tl.float32)
    s = tl.max(tl.abs(x)) / 448.0
    y_desc.store([pm * B, pn * B], (x / s).to(y_desc.dtype))
    tl.store(s_ptr + pm * n + pn, s)


@triton.jit
def scaled_gemm_kernel(
    a_ptr, b_ptr, c_ptr, a_s_ptr, b_s_ptr, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tl.program_id(axis=0), tl.program_id(axis=1)
    k = tl.cdiv(K, BLOCK_K)
    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n[None, :] * K + offs_k[:, None]
    a_s_ptrs = a_s_ptr + offs_m // BLOCK_K * k
    b_s_ptrs = b_s_ptr + (offs_n // BLOCK_K) * k
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(k):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - i * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - i * BLOCK_K, other=0.0)
        a_s, b_s = tl.load(a_s_ptrs), tl.load(b_s_ptrs)
        accumulator += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
        a_s_ptrs += 1
        b_s_ptrs += 1
    c = accumulator.to(c_ptr.dtype.element_ty)
    offs_m, offs_n = (
        pid_m * BLOCK_M + tl.arange(0, BLOCK_M),
        pid_n * BLOCK_N + tl.arange(0, BLOCK_N),
    )
    tl.store(
        c_ptr + offs_m[:, None] * N + offs_n[None, :],
        c,
        mask=(offs_m[:, None] < M) & (offs_n[None, :] < N),
    )


def fp8_tiles():
    M, N, K, B = 40, 64, 96, 32
    x = normal(M, K)
    w = normal(N, K, seed=1)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
    pieces = []
    for t in (x, w):
        q, s = (
            torch.empty(t.shape, dtype=torch.float8_e4m3fn),
            torch.empty(-(-t.shape[0] // B), K // B),
        )
        tile_quant_kernel[(s.shape[0], s.shape[1])](t, q, s, *t.shape)
        pieces.append((q, s))
    (a, a_s), (b, b_s) = pieces
    c = torch.empty(M, N, dtype=torch.bfloat16)
    scaled_gemm_kernel[(2, 2)](a, b, c, a_s, b_s, M, N, K, 32, 32, BLOCK_K=B)
    spread = lambda s, n: s.repeat_interleave(B, 0)[:n].repeat_interleave(B, 1)  # noqa: E731
    want = (a.float() * spread(a_s, M)) @ (b.float() * spread(b_s, N)).t()
    return c.half() * 0.05, want * 0.05


CASES = [fp8_groups, awq_weights, byte_weights, int8_rows, fp4_table, fp8_tiles]
