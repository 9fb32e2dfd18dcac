"""Kernels of plain Triton that load tiles by descriptors made in the kernel: a GEMM, and attention."""

import torch
import triton
import triton.language as tl


@triton.jit
def tile_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    pid_m, pid_n = tl.swizzle2d(
        pid // tl.cdiv(N, BN), pid % tl.cdiv(N, BN), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP
    )
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = a_desc.load([pid_m * BM, k])
        b = b_desc.load([k, pid_n * BN])
        acc = tl.dot(a, b, acc)
    c_desc.store([pid_m * BM, pid_n * BN], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def attend(
    acc, l_i, m_i, q, k_desc, v_desc, first, low, high, scale, offs_m,
    BN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for start in tl.range(low, high, BN):
        k = k_desc.load([first + start, 0]).T
        qk = tl.dot(q, k)
        if MASKED:
            keep = offs_m[:, None] >= start + tl.arange(0, BN)[None, :]
            qk = qk * scale + tl.where(keep, 0, -1.0e6)
            m_new = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_new[:, None]
        else:
            m_new = tl.maximum(m_i, tl.max(qk, 1) * scale)
            qk = qk * scale - m_new[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_new)
        l_new = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([first + start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + l_new
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def tile_attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, Z, N_CTX,
    HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    rows = Z * N_CTX
    q_desc = tl.make_tensor_descriptor(q_ptr, [rows, HEAD], [HEAD, 1], [BM, HEAD])
    k_desc = tl.make_tensor_descriptor(k_ptr, [rows, HEAD], [HEAD, 1], [BN, HEAD])
    v_desc = tl.make_tensor_descriptor(v_ptr, [rows, HEAD], [HEAD, 1], [BN, HEAD])
    o_desc = tl.make_tensor_descriptor(o_ptr, [rows, HEAD], [HEAD, 1], [BM, HEAD])
    start_m = tl.program_id(0)
    first = tl.program_id(1) * N_CTX
    offs_m = start_m * BM + tl.arange(0, BM)
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, HEAD], dtype=tl.float32)
    qk_scale = scale * 1.44269504
    q = q_desc.load([first + start_m * BM, 0])
    if CAUSAL:
        acc, l_i, m_i = attend(
            acc, l_i, m_i, q, k_desc, v_desc, first, 0, start_m * BM, qk_scale, offs_m, BN, False
        )
        acc, l_i, m_i = attend(
            acc, l_i, m_i, q, k_desc, v_desc, first, start_m * BM, (start_m + 1) * BM, qk_scale,
            offs_m, BN, True,
        )  # fmt: skip
    else:
        acc, l_i, m_i = attend(
            acc, l_i, m_i, q, k_desc, v_desc, first, 0, N_CTX, qk_scale, offs_m, BN, False
        )
    acc = acc / l_i[:, None]
    o_desc.store([first + start_m * BM, 0], acc.to(o_ptr.dtype.element_ty))


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).half()


def tile_matmul():
    a, b = randn(192, 160), randn(160, 128, seed=1)
    c = torch.empty(192, 128, dtype=torch.float16)
    tile_matmul_kernel[(4,)](a, b, c, 192, 128, 160, BM=128, BN=64, BK=64, GROUP=2, num_stages=3)
    return c, a.float() @ b.float()


def tile_attention(causal=False):
    q, k, v = (randn(2, 256, 64, seed=s) for s in range(3))
    o = torch.empty_like(q)
    tile_attention_kernel[(2, 2)](
        q, k, v, o, 0.125, 2, 256, HEAD=64, BM=128, BN=64, CAUSAL=causal, num_warps=8
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal, scale=0.125
    )
    return o, wanted


def causal_tile_attention():
    return tile_attention(True)


CASES = [tile_matmul, tile_attention, causal_tile_attention]
