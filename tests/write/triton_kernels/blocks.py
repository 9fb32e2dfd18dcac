"""Kernels of plain Triton with block pointers and tensor descriptors."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def block_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    pid_m, pid_n = tl.swizzle2d(
        pid // tl.cdiv(N, BN), pid % tl.cdiv(N, BN), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP
    )
    a_block = tl.make_block_ptr(
        base=a_ptr, shape=(M, K), strides=(stride_am, stride_ak),
        offsets=(pid_m * BM, 0), block_shape=(BM, BK), order=(1, 0),
    )  # fmt: skip
    b_block = tl.make_block_ptr(
        b_ptr, (K, N), (stride_bk, stride_bn), (0, pid_n * BN), (BK, BN), (1, 0)
    )
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(a, b, acc)
        a_block = tl.advance(a_block, (0, BK))
        b_block = tl.advance(b_block, (BK, 0))
    c_block = tl.make_block_ptr(
        c_ptr, (M, N), (stride_cm, stride_cn), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0)
    )
    tl.store(c_block, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def attention_inner(
    acc, l_i, m_i, q, K_block_ptr, V_block_ptr, start_m, qk_scale,
    BLOCK_M: tl.constexpr, HEAD: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
    offs_m: tl.constexpr, offs_n: tl.constexpr, N_CTX: tl.constexpr,
):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    K_block_ptr = tl.advance(K_block_ptr, (0, lo))
    V_block_ptr = tl.advance(V_block_ptr, (lo, 0))
    for start_n in range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = tl.load(K_block_ptr)
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        l_ij = tl.sum(p, 1)
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + l_ij
        acc = acc * alpha[:, None]
        v = tl.load(V_block_ptr)
        p = p.to(tl.float16)
        acc = tl.dot(p, v, acc)
        m_i = m_ij
        V_block_ptr = tl.advance(V_block_ptr, (BLOCK_N, 0))
        K_block_ptr = tl.advance(K_block_ptr, (0, BLOCK_N))
    return acc, l_i, m_i


@triton.jit
def attention_kernel(
    Q, K, V, sm_scale, M, Out,
    stride_qz, stride_qh, stride_qm, stride_qk, H, N_CTX,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N <= HEAD)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    offset = off_z.to(tl.int64) * stride_qz + off_h.to(tl.int64) * stride_qh
    Q_block_ptr = tl.make_block_ptr(
        base=Q + offset, shape=(N_CTX, HEAD), strides=(stride_qm, stride_qk),
        offsets=(start_m * BLOCK_M, 0), block_shape=(BLOCK_M, HEAD), order=(1, 0),
    )  # fmt: skip
    v_order: tl.constexpr = (0, 1) if V.dtype.element_ty == tl.float8e5 else (1, 0)
    V_block_ptr = tl.make_block_ptr(
        base=V + offset, shape=(N_CTX, HEAD), strides=(stride_qm, stride_qk),
        offsets=(0, 0), block_shape=(BLOCK_N, HEAD), order=v_order,
    )  # fmt: skip
    K_block_ptr = tl.make_block_ptr(
        base=K + offset, shape=(HEAD, N_CTX), strides=(stride_qk, stride_qm),
        offsets=(0, 0), block_shape=(HEAD, BLOCK_N), order=(0, 1),
    )  # fmt: skip
    O_block_ptr = tl.make_block_ptr(
        base=Out + offset, shape=(N_CTX, HEAD), strides=(stride_qm, stride_qk),
        offsets=(start_m * BLOCK_M, 0), block_shape=(BLOCK_M, HEAD), order=(1, 0),
    )  # fmt: skip
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = tl.load(Q_block_ptr)
    if STAGE & 1:
        acc, l_i, m_i = attention_inner(
            acc, l_i, m_i, q, K_block_ptr, V_block_ptr, start_m, qk_scale,
            BLOCK_M, HEAD, BLOCK_N, 4 - STAGE, offs_m, offs_n, N_CTX,
        )  # fmt: skip
    if STAGE & 2:
        acc, l_i, m_i = attention_inner(
            acc, l_i, m_i, q, K_block_ptr, V_block_ptr, start_m, qk_scale,
            BLOCK_M, HEAD, BLOCK_N, 2, offs_m, offs_n, N_CTX,
        )  # fmt: skip
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    m_ptrs = M + off_hz * N_CTX + offs_m
    tl.store(m_ptrs, m_i)
    tl.store(O_block_ptr, acc.to(Out.type.element_ty))


@triton.jit
def shifted_kernel(x_ptr, y_ptr, B, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """Write the difference of each step and the one before; steps before the first count as zero."""
    i_t, i_b = tl.program_id(0), tl.program_id(1)
    p_x = tl.make_block_ptr(x_ptr + i_b * T * D, (T, D), (D, 1), (i_t * BT, 0), (BT, BD), (1, 0))
    p_l = tl.make_block_ptr(
        x_ptr + i_b * T * D, (T, D), (D, 1), (i_t * BT - 1, 0), (BT, BD), (1, 0)
    )
    p_y = tl.make_block_ptr(
        y_ptr, (B, T, D), (T * D, D, 1), (i_b, i_t * BT, 0), (1, BT, BD), (2, 1, 0)
    )
    x = tl.load(p_x, boundary_check=(0, 1)) - tl.load(p_l, boundary_check=(0, 1))
    tl.store(p_y, x[None, :, :], boundary_check=(1, 2))


@triton.jit
def sum_kernel(x_ptr, y_ptr, n, B: tl.constexpr):
    p = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (B,), (0,))
    total = tl.zeros([B], tl.float32)
    for _ in tl.range(0, tl.cdiv(n, B), num_stages=2):
        total += tl.load(p, boundary_check=(0,), padding_option="zero")
        p = tl.advance(p, (B,))
    tl.store(y_ptr, tl.sum(total))


@triton.jit
def _tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP: tl.constexpr):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP
    group_size_m = min(num_pid_m - first_pid_m, GROUP)
    pid_m = first_pid_m + (tile_id % group_size_m)
    pid_n = (tile_id % num_pid_in_group) // group_size_m
    return pid_m, pid_n


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    dtype = c_ptr.dtype.element_ty
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    k_tiles = tl.cdiv(K, BK)
    num_tiles = num_pid_m * num_pid_n
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    num_pid_in_group = GROUP * num_pid_n
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True, warp_specialize=False):
        pid_m, pid_n = _tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP)
        offs_am = pid_m * BM
        offs_bn = pid_n * BN
        accumulator = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(k_tiles):
            offs_k = ki * BK
            a = a_desc.load([offs_am, offs_k])
            b = b_desc.load([offs_bn, offs_k])
            accumulator = tl.dot(a, b.T, accumulator)
        c_desc.store([offs_am, offs_bn], accumulator.to(dtype))


@triton.jit
def host_desc_kernel(
    a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(a_desc.load([m, k]), b_desc.load([k, n]))
    c_desc.store([m, n], acc.to(tl.float16))


@triton.jit
def reduce_add_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BM, BN])
    out = tl.make_tensor_descriptor(out_ptr, [BM, N], [N, 1], [BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    out.atomic_add([0, n], x.load([m, n]))


def randn(*shape, dtype=torch.float16, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def block_matmul():
    a, b = randn(70, 100), randn(100, 50, seed=1)
    c = torch.empty(70, 50, dtype=torch.float16)
    grid = (triton.cdiv(70, 32) * triton.cdiv(50, 32),)
    block_matmul_kernel[grid](
        a, b, c, 70, 50, 100, *a.stride(), *b.stride(), *c.stride(), 32, 32, 32, 2
    )
    return c, a.float() @ b.float()


def block_attention(stage=1):
    q, k, v = (randn(1, 2, 128, 32, seed=i) for i in range(3))
    o, m = torch.empty_like(q), torch.empty(2, 128)
    attention_kernel[(2, 2)](
        q, k, v, 0.2, m, o, *q.stride(), 2, 128, HEAD=32, BLOCK_M=64, BLOCK_N=32, STAGE=stage
    )
    s = q.float() @ k.float().transpose(-1, -2) * 0.2
    if stage == 3:
        s = s.masked_fill(torch.ones(128, 128).tril() == 0, float("-inf"))
    return o, s.softmax(-1) @ v.float()


def causal_block_attention():
    return block_attention(3)


def shifted():
    x = randn(2, 50, 20, dtype=torch.float32)
    y = torch.empty_like(x)
    shifted_kernel[(4, 2)](x, y, 2, 50, 20, 16, 32)
    before = torch.cat([torch.zeros(2, 1, 20), x[:, :-1]], 1)
    return y, x - before


def block_sum():
    x, y = randn(300, dtype=torch.float32), torch.empty(1)
    sum_kernel[(1,)](x, y, 300, 64)
    return y, x.sum(0, keepdim=True)


def persistent():
    a, b = randn(96, 80), randn(72, 80, seed=1)
    c = torch.empty(96, 72, dtype=torch.float16)
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))
    persistent_kernel[(4,)](a, b, c, 96, 72, 80, 32, 32, 32, 2, 4)
    return c, a.float() @ b.float().T


def host_descriptors():
    a, b = randn(96, 80), randn(80, 72, seed=1)
    c = torch.empty(96, 72, dtype=torch.float16)
    a_desc = TensorDescriptor.from_tensor(a, [32, 32])
    b_desc = TensorDescriptor(b, b.shape, b.stride(), [32, 32])
    c_desc = TensorDescriptor.from_tensor(c, block_shape=[32, 32])
    host_desc_kernel[(3, 3)](a_desc, b_desc, c_desc, 80, 32, 32, 32)
    return c, a.float() @ b.float()


def reduce_add():
    x, out = randn(64, 64, dtype=torch.float32), torch.zeros(32, 64)
    reduce_add_kernel[(2, 2)](x, out, 64, 64, 32, 32)
    return out, x.view(2, 32, 64).sum(0)


CASES = [
    block_matmul, block_attention, causal_block_attention, shifted, block_sum, persistent, host_descriptors, reduce_add,
]  # fmt: skip
