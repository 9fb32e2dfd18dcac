"""Kernels other than matmuls as libraries for AMD GPUs write them, in our own words; `GLUON` is either package.

Each source ends with the ARGS and KWARGS of a call; see `test_amd_kernels.py`.
"""

from __future__ import annotations

# Causal attention with an online softmax; VERSION_ and KDIM differ by generation.
ATTENTION = """
@gluon.jit
def kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    sm_scale,
    stride_qz,
    stride_qm,
    N_CTX,
    CAUSAL: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    D: gl.constexpr,
):
    RCP_LN2: gl.constexpr = 1.4426950408889634
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(VERSION_, [32, 32, KDIM], True, [4, 1])
    blk: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    q_dot: gl.constexpr = gl.DotOperandLayout(0, mfma, 8)
    k_dot: gl.constexpr = gl.DotOperandLayout(1, mfma, 8)
    p_dot: gl.constexpr = gl.DotOperandLayout(0, mfma, 4)
    v_dot: gl.constexpr = gl.DotOperandLayout(1, mfma, 4)
    start_m = gl.program_id(0)
    base = gl.program_id(1).to(gl.int64) * stride_qz
    q_ptr += base
    k_ptr += base
    v_ptr += base
    o_ptr += base
    offs_m = start_m * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, blk))
    offs_d = gl.arange(0, D, layout=gl.SliceLayout(0, blk))
    q = gl.amd.cdna3.buffer_load(
        q_ptr,
        offs_m[:, None] * stride_qm + offs_d[None, :],
        mask=offs_m[:, None] < N_CTX,
        other=0.0,
    )
    q = gl.convert_layout(q, q_dot)
    offs_n = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, blk))
    smem_k = gl.allocate_shared_memory(
        k_ptr.dtype.element_ty, [BLOCK_N, D], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    )
    smem_v = gl.allocate_shared_memory(
        v_ptr.dtype.element_ty, [BLOCK_N, D], gl.SwizzledSharedLayout(4, 1, 16, [1, 0])
    )
    m_i = gl.full([BLOCK_M], float("-inf"), gl.float32, layout=gl.SliceLayout(1, mfma))
    l_i = gl.full([BLOCK_M], 1.0, gl.float32, layout=gl.SliceLayout(1, mfma))
    acc = gl.zeros([BLOCK_M, D], gl.float32, layout=mfma)
    hi = N_CTX
    if CAUSAL:
        hi = gl.minimum(N_CTX, (start_m + 1) * BLOCK_M)
    rows = start_m * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, mfma))
    for start_n in range(0, hi, BLOCK_N):
        kv_offs = (start_n + offs_n)[:, None] * stride_qm + offs_d[None, :]
        kv_mask = (start_n + offs_n)[:, None] < N_CTX
        k = gl.amd.cdna3.buffer_load(k_ptr, kv_offs, mask=kv_mask, other=0.0)
        v = gl.amd.cdna3.buffer_load(v_ptr, kv_offs, mask=kv_mask, other=0.0)
        smem_k.store(k)
        smem_v.store(v)
        kt = smem_k.permute([1, 0]).load(k_dot)
        qk = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout=mfma)
        qk = gl.amd.cdna3.mfma(q, kt, qk)
        cols = start_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, mfma))
        keep = cols[None, :] < N_CTX
        if CAUSAL:
            keep = keep & (rows[:, None] >= cols[None, :])
        qk = gl.where(keep, qk * (sm_scale * RCP_LN2), float("-inf"))
        m_ij = gl.maximum(m_i, gl.max(qk, 1))
        p = gl.exp2(qk - m_ij[:, None])
        alpha = gl.exp2(m_i - m_ij)
        l_ij = gl.sum(p, 1)
        acc = acc * alpha[:, None]
        l_i = l_i * alpha + l_ij
        m_i = m_ij
        p = gl.convert_layout(p.to(v.dtype), p_dot)
        acc = gl.amd.cdna3.mfma(p, smem_v.load(v_dot), acc)
    acc = acc / l_i[:, None]
    gl.store(lse_ptr + gl.program_id(1) * N_CTX + rows, m_i + gl.log2(l_i), mask=rows < N_CTX)
    od = gl.arange(0, D, layout=gl.SliceLayout(0, mfma))
    gl.amd.cdna3.buffer_store(
        acc.to(o_ptr.dtype.element_ty),
        o_ptr,
        rows[:, None] * stride_qm + od[None, :],
        mask=rows[:, None] < N_CTX,
    )

ARGS = (
    ptr(gl.float16),
    ptr(gl.float16),
    ptr(gl.float16),
    ptr(gl.float16),
    ptr(gl.float32),
    0.125,
    12800,
    64,
    200,
)
KWARGS = dict(CAUSAL=True, BLOCK_M=128, BLOCK_N=64, D=64, num_warps=4)
"""

# fp8 logits of one query over pages: tables, scales, a ReLU and weights.
PAGED_MQA_LOGITS = """
@gluon.jit
def kernel(
    q_ptr,
    kv_ptr,
    scale_ptr,
    weights_ptr,
    ctx_ptr,
    table_ptr,
    out_ptr,
    stride_table,
    stride_out,
    HEADS: gl.constexpr,
    D: gl.constexpr,
    PAGE: gl.constexpr,
    CHUNK: gl.constexpr,
):
    batch = gl.program_id(0)
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(
        version=3, instr_shape=[16, 16, 32], transposed=False, warps_per_cta=[1, 4]
    )
    lq: gl.constexpr = gl.DotOperandLayout(0, mfma, 16)
    lk: gl.constexpr = gl.DotOperandLayout(1, mfma, 16)
    row: gl.constexpr = gl.SliceLayout(0, mfma)
    heads_q = gl.arange(0, HEADS, layout=gl.SliceLayout(1, lq))
    d_q = gl.arange(0, D, layout=gl.SliceLayout(0, lq))
    q = gl.amd.cdna3.buffer_load(q_ptr, batch * HEADS * D + heads_q[:, None] * D + d_q[None, :])
    w = gl.load(weights_ptr + batch * HEADS + gl.arange(0, HEADS, layout=gl.SliceLayout(1, mfma)))
    length = gl.load(ctx_ptr + batch)
    n_k = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, lk))
    d_k = gl.arange(0, D, layout=gl.SliceLayout(1, lk))
    n_o = gl.arange(0, CHUNK, layout=row)
    for start in range(0, length, CHUNK):
        page = gl.amd.cdna3.buffer_load(
            table_ptr,
            batch * stride_table + (start + n_k) // PAGE,
            mask=start + n_k < length,
            other=0,
        )
        kv_off = (page * PAGE + (start + n_k) % PAGE)[None, :] * D + d_k[:, None]
        k = gl.amd.cdna3.buffer_load(kv_ptr, kv_off, mask=(start + n_k < length)[None, :])
        page_o = gl.convert_layout(page, row)
        s = gl.amd.cdna3.buffer_load(
            scale_ptr, page_o * PAGE + (start + n_o) % PAGE, mask=start + n_o < length, other=0.0
        )
        o = gl.amd.cdna3.mfma(q, k, gl.zeros([HEADS, CHUNK], gl.float32, mfma))
        o = o * s[None, :]
        o = gl.maximum(o, 0.0)
        o = o * w[:, None]
        logits = gl.reduce(o, 0, add)
        gl.amd.cdna3.buffer_store(
            logits, out_ptr, batch * stride_out + start + n_o, mask=start + n_o < length
        )

@gluon.jit
def add(a, b):
    return a + b

ARGS = (
    ptr(gl.float8e4b8),
    ptr(gl.float8e4b8),
    ptr(gl.float32),
    ptr(gl.float32),
    ptr(gl.int32),
    ptr(gl.int32),
    ptr(gl.float32),
    16,
    256,
)
KWARGS = dict(HEADS=32, D=128, PAGE=16, CHUNK=128, num_warps=4)
"""

# Decoding over pages: keys of five dims, reshaped and permuted into operands.
PA_DECODE = """
@gluon.jit
def kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    table_ptr,
    scale,
    PAGE: gl.constexpr,
    D: gl.constexpr,
    G: gl.constexpr,
    PAGES: gl.constexpr,
):
    X: gl.constexpr = 8
    seq = gl.program_id(0)
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(3, [16, 16, 16], True, [1, 4])
    k_blk: gl.constexpr = gl.BlockedLayout(
        [1, 1, 1, 8], [1, 4, 16, 1], [1, 4, 1, 1], [3, 2, 1, 0]
    )
    v_blk: gl.constexpr = gl.BlockedLayout([1, 1, 8], [2, 16, 2], [1, 4, 1], [2, 1, 0])
    q_blk: gl.constexpr = gl.BlockedLayout([1, 8], [4, 16], [4, 1], [1, 0])
    P: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, k_blk)))
    pg = gl.arange(0, PAGES, layout=P)
    blocks = gl.load(table_ptr + seq * PAGES + pg)
    dx = gl.arange(
        0, D // X, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, k_blk)))
    )
    t = gl.arange(0, PAGE, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, k_blk))))
    x = gl.arange(0, X, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, k_blk))))
    k_off = (
        blocks[:, None, None, None] * (PAGE * D)
        + dx[None, :, None, None] * (PAGE * X)
        + t[None, None, :, None] * X
        + x[None, None, None, :]
    )
    k = gl.load(k_ptr + k_off)
    k = gl.permute(k, [1, 3, 0, 2])
    k = gl.reshape(k, [D, PAGES * PAGE])
    k = gl.convert_layout(k, gl.DotOperandLayout(1, mfma, 4))
    rows = gl.arange(0, G, layout=gl.SliceLayout(1, q_blk))
    cols = gl.arange(0, D, layout=gl.SliceLayout(0, q_blk))
    q = gl.load(q_ptr + seq * G * D + rows[:, None] * D + cols[None, :])
    q = gl.convert_layout(q, gl.DotOperandLayout(0, mfma, 4))
    qk = gl.amd.cdna3.mfma(q, k, gl.zeros([G, PAGES * PAGE], gl.float32, mfma)) * scale
    m = gl.max(qk, axis=1)
    p = gl.exp2((qk - m[:, None]) * 1.44269504)
    l = gl.sum(p, axis=1)
    pv = gl.arange(0, PAGES, layout=gl.SliceLayout(1, gl.SliceLayout(2, v_blk)))
    vb = gl.load(table_ptr + seq * PAGES + pv)
    vd = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(2, v_blk)))
    vt = gl.arange(0, PAGE, layout=gl.SliceLayout(0, gl.SliceLayout(1, v_blk)))
    v = gl.load(
        v_ptr + vb[:, None, None] * (PAGE * D) + vd[None, :, None] * PAGE + vt[None, None, :]
    )
    v = gl.reshape(gl.permute(v, (0, 2, 1)), (PAGES * PAGE, D))
    v = gl.convert_layout(v, gl.DotOperandLayout(1, mfma, 4))
    p = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, mfma, 4))
    o = gl.amd.cdna3.mfma(p, v, gl.zeros([G, D], gl.float32, mfma)) / l[:, None]
    orow = gl.arange(0, G, layout=gl.SliceLayout(1, mfma))
    ocol = gl.arange(0, D, layout=gl.SliceLayout(0, mfma))
    gl.store(o_ptr + seq * G * D + orow[:, None] * D + ocol[None, :], o.to(o_ptr.type.element_ty))

ARGS = (
    ptr(gl.bfloat16),
    ptr(gl.bfloat16),
    ptr(gl.bfloat16),
    ptr(gl.bfloat16),
    ptr(gl.int32),
    0.1,
)
KWARGS = dict(PAGE=16, D=128, G=16, PAGES=8, num_warps=4)
"""

# TDM loads that arrive at barriers, and a TDM store.
TDM_MBARRIER = """
from GLUON.language.amd.gfx1250 import tdm, mbarrier

@gluon.jit
def kernel(a_ptr, o_ptr, M, N, BM: gl.constexpr, BN: gl.constexpr, NB: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    S: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[BN, 4]], [BM, BN], [1, 0])
    d = tdm.make_tensor_descriptor(a_ptr, (M, N), (N, 1), (BM, BN), S)
    o = tdm.make_tensor_descriptor(
        o_ptr, (M, BN), (BN, 1), (BM, BN), gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    buf = gl.allocate_shared_memory(d.dtype, [NB] + d.block_shape, d.layout)
    out = gl.allocate_shared_memory(o.dtype, o.block_shape, o.layout)
    bars = gl.allocate_shared_memory(gl.int64, [NB, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NB):
        mbarrier.init(bars.index(i), count=4)
    row = gl.program_id(0) * BM
    n = gl.cdiv(N, BN)
    for i in gl.static_range(NB):
        tdm.async_load(d, [row, i * BN], buf.index(i), mbarrier=bars.index(i))
    acc = gl.zeros([BM, BN], gl.float32, L)
    for i in range(0, n):
        slot = i % NB
        mbarrier.wait(bars.index(slot), (i // NB) & 1)
        acc += buf.index(slot).load(L).to(gl.float32)
        gl.barrier()
        if i + NB < n:
            tdm.async_load(d, [row, (i + NB) * BN], buf.index(slot), mbarrier=bars.index(slot))
    out.store(acc)
    gl.barrier()
    tdm.async_store(o, [row, 0], out)
    tdm.async_wait(0)

ARGS = (ptr(gl.float16), ptr(gl.float32), 100, 320)
KWARGS = dict(BM=32, BN=64, NB=2, num_warps=4)
"""

# RMS norm with a dynamic fp8 scale per row.
RMSNORM_QUANT = """
from GLUON.language.extra import libdevice

@gluon.jit
def amax(a, b):
    return gl.maximum(a, b)

@gluon.jit
def kernel(
    x_ptr,
    w_ptr,
    q_ptr,
    s_ptr,
    n_rows,
    n_cols,
    eps,
    BLOCK: gl.constexpr,
    NUM_PRGMS: gl.constexpr,
    QMAX: gl.constexpr,
):
    L: gl.constexpr = gl.BlockedLayout([8], [64], [4], [0])
    cols = gl.arange(0, BLOCK, layout=L)
    mask = cols < n_cols
    w = gl.amd.cdna3.buffer_load(w_ptr, cols, mask=mask, other=0.0, cache=".ca").to(gl.float32)
    for row in range(gl.program_id(0), n_rows, NUM_PRGMS):
        x = gl.amd.cdna3.buffer_load(
            x_ptr, row * n_cols + cols, mask=mask, other=0.0, cache=".cg"
        ).to(gl.float32)
        ms = gl.sum(x * x, axis=-1) / n_cols
        y = x * gl.rsqrt(ms + eps) * w
        hi = gl.reduce(gl.abs(y), 0, amax)
        scale = gl.maximum(hi, 1e-10) / QMAX
        y = y * (1.0 / scale)
        y = libdevice.rint(y)
        gl.amd.cdna3.buffer_store(
            y.to(q_ptr.dtype.element_ty), q_ptr, row * n_cols + cols, mask=mask
        )
        gl.store(s_ptr + row, scale)

ARGS = (ptr(gl.bfloat16), ptr(gl.bfloat16), ptr(gl.float8e4b8), ptr(gl.float32), 11, 1000, 1e-6)
KWARGS = dict(BLOCK=2048, NUM_PRGMS=3, QMAX=240.0, num_warps=4)
"""

# A binary search with a while loop, and the reduction of segments.
FIND_SEQ_AND_REDUCE = """
@gluon.jit
def find_seq_idx(
    q_start_ptr, target_idx, num_seqs, BLOCK_Q: gl.constexpr, use_q_block: gl.constexpr
):
    left: gl.int32 = 0
    right = num_seqs
    while left < right:
        mid = (left + right) // 2
        val = gl.load(q_start_ptr + mid)
        mid_val = val // BLOCK_Q + mid if use_q_block else val
        if mid_val <= target_idx:
            left = mid + 1
        else:
            right = mid
    return left - 1

@gluon.jit
def kernel(
    start_ptr, part_ptr, m_ptr, l_ptr, out_ptr, num_seqs, SEG: gl.constexpr, D: gl.constexpr
):
    L: gl.constexpr = gl.BlockedLayout([1, 4], [4, 16], [4, 1], [1, 0])
    t = gl.program_id(0)
    seq = find_seq_idx(start_ptr, t, num_seqs, 4, False)
    s = gl.arange(0, SEG, layout=gl.SliceLayout(1, L))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, L))
    m = gl.load(m_ptr + t * SEG + s, mask=s < SEG - 1, other=float("-inf"))
    top = gl.max(m, axis=0)
    l = gl.load(l_ptr + t * SEG + s, mask=s < SEG - 1, other=0.0) * gl.exp2(m - top)
    total = gl.sum(l)
    acc = gl.amd.cdna4.buffer_load(
        part_ptr,
        (t.to(gl.int32) * SEG + s)[:, None] * D + d[None, :],
        mask=(s < SEG - 1)[:, None],
        other=0.0,
    )
    acc = gl.sum(acc * gl.exp2(m - top)[:, None], axis=0)
    acc = gl.where(total == 0.0, 0.0, acc / total)
    acc = acc + seq
    gl.store(out_ptr + t * D + d, acc)

ARGS = (ptr(gl.int32), ptr(gl.float32), ptr(gl.float32), ptr(gl.float32), ptr(gl.float32), 5)
KWARGS = dict(SEG=16, D=64, num_warps=4)
"""

# Rotary embedding by split and join; top-k by a reduction of pairs; a histogram.
ROPE_TOPK = """
@gluon.jit
def argmax_combine(v0, i0, v1, i1):
    gt = (v0 > v1) | ((v0 == v1) & (i0 < i1))
    return gl.where(gt, v0, v1), gl.where(gt, i0, i1)

@gluon.jit
def kernel(
    x_ptr, cos_ptr, sin_ptr, o_ptr, idx_ptr, hist_ptr, T, K: gl.constexpr, D: gl.constexpr
):
    L: gl.constexpr = gl.BlockedLayout([1, 4], [4, 16], [4, 1], [1, 0])
    t = gl.program_id(0) * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, L))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, L))
    x = gl.load(x_ptr + t[:, None] * D + d[None, :], mask=t[:, None] < T, other=0.0)
    even, odd = gl.split(gl.reshape(x, [16, D // 2, 2]))
    half: gl.constexpr = gl.BlockedLayout([1, 2], [4, 16], [4, 1], [1, 0])
    tt = gl.program_id(0) * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, half))
    hh = gl.arange(0, D // 2, layout=gl.SliceLayout(0, half))
    c = gl.load(cos_ptr + tt[:, None] * (D // 2) + hh[None, :], mask=tt[:, None] < T, other=0.0)
    s = gl.load(sin_ptr + tt[:, None] * (D // 2) + hh[None, :], mask=tt[:, None] < T, other=0.0)
    even = gl.convert_layout(even, half, assert_trivial=False)
    odd = gl.convert_layout(odd, half)
    y = gl.reshape(gl.join(even * c - odd * s, odd * c + even * s), [16, D])
    y = gl.convert_layout(y, L)
    gl.store(o_ptr + t[:, None] * D + d[None, :], y, mask=t[:, None] < T)
    cols = d[None, :] + gl.zeros([16, D], gl.int32, L)
    for k in gl.static_range(K):
        best, at = gl.reduce((y, cols), 1, argmax_combine)
        gl.store(idx_ptr + t * K + k, at, mask=t < T)
        gl.atomic_add(hist_ptr + at, 1, mask=t < T, sem="relaxed", scope="gpu")
        y = gl.where(cols == at[:, None], float("-inf"), y)

ARGS = (
    ptr(gl.float32),
    ptr(gl.float32),
    ptr(gl.float32),
    ptr(gl.float32),
    ptr(gl.int32),
    ptr(gl.int32),
    20,
)
KWARGS = dict(K=2, D=64, num_warps=4)
"""

# A linear recurrence by an associative scan of pairs.
SCAN_SSM = """
@gluon.jit
def combine(al, bl, ar, br):
    return al * ar, ar * bl + br

@gluon.jit
def kernel(a_ptr, x_ptr, o_ptr, T, REV: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([4, 1], [16, 4], [1, 4], [0, 1])
    t = gl.arange(0, 64, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, 16, layout=gl.SliceLayout(0, L))
    h = gl.full([16], 0.0, gl.float32, gl.SliceLayout(0, L))
    for s in range(0, T, 64):
        m = (s + t < T)[:, None]
        a = gl.load(a_ptr + (s + t)[:, None] * 16 + c[None, :], mask=m, other=1.0)
        x = gl.load(x_ptr + (s + t)[:, None] * 16 + c[None, :], mask=m, other=0.0)
        p, y = gl.associative_scan((a, x), 0, combine)
        y = y + p * h[None, :]
        gl.store(o_ptr + (s + t)[:, None] * 16 + c[None, :], y, mask=m)
        h = gl.sum(gl.where((t == 63)[:, None], y, 0.0), axis=0)

ARGS = (ptr(gl.float32), ptr(gl.float32), ptr(gl.float32), 200)
KWARGS = dict(REV=False, num_warps=4)
"""
