"""Matmuls as libraries for AMD GPUs write them, in our own words; `GLUON` is either package.

Each source ends with the ARGS and KWARGS of a call; see `test_amd_kernels.py`.
"""

from __future__ import annotations

# A matmul with a bias: programs remapped to chiplets and grouped, masks along K.
GEMM_A16W16 = """
from GLUON.language.amd import cdna3

@gluon.jit
def remap_xcd(pid, GRID_MN, NUM_XCDS: gl.constexpr = 8):
    pids_per_xcd = (GRID_MN + NUM_XCDS - 1) // NUM_XCDS
    tall_xcds = GRID_MN % NUM_XCDS
    tall_xcds = NUM_XCDS if tall_xcds == 0 else tall_xcds
    xcd = pid % NUM_XCDS
    local_pid = pid // NUM_XCDS
    if xcd < tall_xcds:
        pid = xcd * pids_per_xcd + local_pid
    else:
        pid = tall_xcds * pids_per_xcd + (xcd - tall_xcds) * (pids_per_xcd - 1) + local_pid
    return pid

@gluon.jit
def pid_grid(pid, num_pid_m, num_pid_n, GROUP_SIZE_M: gl.constexpr = 1):
    if GROUP_SIZE_M == 1:
        pid_m = pid // num_pid_n
        pid_n = pid % num_pid_n
    else:
        num_pid_in_group = GROUP_SIZE_M * num_pid_n
        group_id = pid // num_pid_in_group
        first_pid_m = group_id * GROUP_SIZE_M
        group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
        gl.assume(group_size_m >= 0)
        pid_m = first_pid_m + (pid % group_size_m)
        pid_n = (pid % num_pid_in_group) // group_size_m
    return pid_m, pid_n

@gluon.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: gl.constexpr,
    BLOCK_SIZE_N: gl.constexpr,
    BLOCK_SIZE_K: gl.constexpr,
    GROUP_SIZE_M: gl.constexpr,
    EVEN_K: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    cache_modifier: gl.constexpr,
    NUM_WARPS: gl.constexpr,
):
    gl.assume(stride_am > 0)
    gl.assume(stride_bk > 0)
    pid = gl.program_id(axis=0)
    num_pid_m = gl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = gl.cdiv(N, BLOCK_SIZE_N)
    pid = remap_xcd(pid, num_pid_m * num_pid_n)
    pid_m, pid_n = pid_grid(pid, num_pid_m, num_pid_n, GROUP_SIZE_M=GROUP_SIZE_M)
    blocked_mk: gl.constexpr = gl.BlockedLayout(
        size_per_thread=[1, 8],
        threads_per_warp=[16, 4],
        warps_per_cta=[NUM_WARPS, 1],
        order=[1, 0],
    )
    blocked_kn: gl.constexpr = gl.BlockedLayout(
        size_per_thread=[8, 1],
        threads_per_warp=[4, 16],
        warps_per_cta=[1, NUM_WARPS],
        order=[0, 1],
    )
    mfma_layout: gl.constexpr = gl.amd.AMDMFMALayout(
        version=3, instr_shape=[16, 16, 16], transposed=True, warps_per_cta=[NUM_WARPS // 2, 2]
    )
    shared_a: gl.constexpr = gl.SwizzledSharedLayout(
        vec=8, per_phase=1, max_phase=8, order=[1, 0]
    )
    shared_b: gl.constexpr = gl.SwizzledSharedLayout(
        vec=8, per_phase=1, max_phase=8, order=[0, 1]
    )
    dot_a: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=mfma_layout, k_width=8)
    dot_b: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=mfma_layout, k_width=8)
    offs_ak = gl.arange(0, BLOCK_SIZE_K, layout=gl.SliceLayout(0, blocked_mk))
    offs_am = (
        pid_m * BLOCK_SIZE_M + gl.arange(0, BLOCK_SIZE_M, layout=gl.SliceLayout(1, blocked_mk))
    ) % M
    offs_a = offs_am[:, None] * stride_am + offs_ak[None, :] * stride_ak
    offs_bk = gl.arange(0, BLOCK_SIZE_K, layout=gl.SliceLayout(1, blocked_kn))
    offs_bn = (
        pid_n * BLOCK_SIZE_N + gl.arange(0, BLOCK_SIZE_N, layout=gl.SliceLayout(0, blocked_kn))
    ) % N
    offs_b = offs_bk[:, None] * stride_bk + offs_bn[None, :] * stride_bn
    if EVEN_K:
        a = gl.amd.cdna3.buffer_load(ptr=a_ptr, offsets=offs_a)
        b = gl.amd.cdna3.buffer_load(ptr=b_ptr, offsets=offs_b, cache=cache_modifier)
    else:
        a = gl.amd.cdna3.buffer_load(ptr=a_ptr, offsets=offs_a, mask=offs_ak[None, :] < K)
        b = gl.amd.cdna3.buffer_load(
            ptr=b_ptr, offsets=offs_b, mask=offs_bk[:, None] < K, cache=cache_modifier
        )
    smem_a = gl.allocate_shared_memory(
        a_ptr.type.element_ty, [BLOCK_SIZE_M, BLOCK_SIZE_K], layout=shared_a
    )
    smem_b = gl.allocate_shared_memory(
        b_ptr.type.element_ty, [BLOCK_SIZE_K, BLOCK_SIZE_N], layout=shared_b
    )
    smem_a.store(a)
    acc_dtype = gl.float32 if c_ptr.type.element_ty != gl.int8 else gl.int32
    if HAS_BIAS:
        bias = gl.amd.cdna3.buffer_load(
            ptr=bias_ptr,
            offsets=(
                pid_n * BLOCK_SIZE_N
                + gl.arange(0, BLOCK_SIZE_N, layout=gl.SliceLayout(0, mfma_layout))
            )
            % N,
        )
        acc = (
            gl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=acc_dtype, layout=mfma_layout)
            + bias.to(gl.float32)[None, :]
        )
    else:
        acc = gl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=acc_dtype, layout=mfma_layout)
    for k in range(0, gl.cdiv(K, BLOCK_SIZE_K) - 1):
        a_ptr += BLOCK_SIZE_K * stride_ak
        b_ptr += BLOCK_SIZE_K * stride_bk
        if EVEN_K:
            a = gl.amd.cdna3.buffer_load(ptr=a_ptr, offsets=offs_a)
            smem_b.store(b)
            b = gl.amd.cdna3.buffer_load(ptr=b_ptr, offsets=offs_b, cache=cache_modifier)
        else:
            a = gl.amd.cdna3.buffer_load(
                ptr=a_ptr, offsets=offs_a, mask=offs_ak[None, :] < K - (k + 1) * BLOCK_SIZE_K
            )
            smem_b.store(b)
            b = gl.amd.cdna3.buffer_load(
                ptr=b_ptr,
                offsets=offs_b,
                mask=offs_bk[:, None] < K - (k + 1) * BLOCK_SIZE_K,
                cache=cache_modifier,
            )
        cur_a = smem_a.load(layout=dot_a)
        cur_b = smem_b.load(layout=dot_b)
        acc = gl.amd.cdna3.mfma(cur_a, cur_b, acc)
        smem_a.store(a)
    smem_b.store(b)
    cur_a = smem_a.load(layout=dot_a)
    cur_b = smem_b.load(layout=dot_b)
    acc = gl.amd.cdna3.mfma(cur_a, cur_b, acc)
    c = acc.to(c_ptr.type.element_ty)
    offs_cm = pid_m * BLOCK_SIZE_M + gl.arange(
        0, BLOCK_SIZE_M, layout=gl.SliceLayout(1, mfma_layout)
    )
    offs_cn = pid_n * BLOCK_SIZE_N + gl.arange(
        0, BLOCK_SIZE_N, layout=gl.SliceLayout(0, mfma_layout)
    )
    c_offs = stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    gl.amd.cdna3.buffer_store(stored_value=c, ptr=c_ptr, offsets=c_offs, mask=c_mask)

ARGS = (
    ptr(gl.bfloat16),
    ptr(gl.bfloat16),
    ptr(gl.bfloat16),
    ptr(gl.bfloat16),
    200,
    136,
    144,
    144,
    1,
    1,
    144,
    136,
    1,
)
KWARGS = dict(
    BLOCK_SIZE_M=64,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=64,
    GROUP_SIZE_M=2,
    EVEN_K=False,
    HAS_BIAS=True,
    cache_modifier=".cg",
    NUM_WARPS=4,
    num_warps=4,
)
"""

# mxfp4 with scales in their operand layout, split along K, added atomically.
GEMM_AFP4WFP4 = """
@gluon.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    as_ptr,
    bs_ptr,
    M,
    N,
    K,
    stride_am,
    stride_bn,
    stride_cm,
    stride_asm,
    stride_bsn,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    NUM_KSPLIT: gl.constexpr,
):
    SCALE_GROUP_SIZE: gl.constexpr = 32
    pid = gl.program_id(0)
    pid_k = pid % NUM_KSPLIT
    pid = pid // NUM_KSPLIT
    num_n = gl.cdiv(N, BLOCK_N)
    pid_m = pid // num_n
    pid_n = pid % num_n
    blocked_mk: gl.constexpr = gl.BlockedLayout([1, 16], [8, 8], [4, 1], [1, 0])
    blocked_kn: gl.constexpr = gl.BlockedLayout([16, 1], [8, 8], [1, 4], [0, 1])
    mfma_layout: gl.constexpr = gl.amd.AMDMFMALayout(
        version=4,
        instr_shape=[32, 32, 64],
        transposed=True,
        warps_per_cta=[2, 2],
        tiles_per_warp=[1, 1],
    )
    shared_a: gl.constexpr = gl.SwizzledSharedLayout(16, 2, 8, order=[1, 0])
    shared_b: gl.constexpr = gl.SwizzledSharedLayout(16, 2, 8, order=[0, 1])
    dot_a: gl.constexpr = gl.DotOperandLayout(0, mfma_layout, k_width=16)
    dot_b: gl.constexpr = gl.DotOperandLayout(1, mfma_layout, k_width=16)
    a_scale_layout: gl.constexpr = gl.amd.cdna4.get_mfma_scale_layout(
        dot_a, [BLOCK_M, BLOCK_K // SCALE_GROUP_SIZE]
    )
    b_scale_layout: gl.constexpr = gl.amd.cdna4.get_mfma_scale_layout(
        dot_b, [BLOCK_N, BLOCK_K // SCALE_GROUP_SIZE]
    )
    offs_ak = gl.arange(0, BLOCK_K // 2, layout=gl.SliceLayout(0, blocked_mk))
    offs_am = pid_m * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, blocked_mk))
    offs_a = offs_am[:, None] * stride_am + offs_ak[None, :]
    offs_bk = gl.arange(0, BLOCK_K // 2, layout=gl.SliceLayout(1, blocked_kn))
    offs_bn = pid_n * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, blocked_kn))
    offs_b = offs_bk[:, None] + offs_bn[None, :] * stride_bn
    offs_ks = gl.arange(0, BLOCK_K // SCALE_GROUP_SIZE, layout=gl.SliceLayout(0, a_scale_layout))
    offs_asm = pid_m * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, a_scale_layout))
    offs_as = offs_asm[:, None] * stride_asm + offs_ks[None, :]
    offs_ksb = gl.arange(0, BLOCK_K // SCALE_GROUP_SIZE, layout=gl.SliceLayout(0, b_scale_layout))
    offs_bsn = pid_n * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, b_scale_layout))
    offs_bs = offs_bsn[:, None] * stride_bsn + offs_ksb[None, :]
    smem_a = gl.allocate_shared_memory(gl.uint8, [BLOCK_M, BLOCK_K // 2], shared_a)
    smem_b = gl.allocate_shared_memory(gl.uint8, [BLOCK_K // 2, BLOCK_N], shared_b)
    acc = gl.zeros((BLOCK_M, BLOCK_N), dtype=gl.float32, layout=mfma_layout)
    per = gl.cdiv(gl.cdiv(K, BLOCK_K), NUM_KSPLIT)
    for k in range(pid_k * per, (pid_k + 1) * per):
        a = gl.amd.cdna4.buffer_load(a_ptr, offs_a + k * (BLOCK_K // 2))
        b = gl.amd.cdna4.buffer_load(b_ptr, offs_b + k * (BLOCK_K // 2))
        a_scales = gl.amd.cdna4.buffer_load(as_ptr, offs_as + k * (BLOCK_K // SCALE_GROUP_SIZE))
        b_scales = gl.amd.cdna4.buffer_load(bs_ptr, offs_bs + k * (BLOCK_K // SCALE_GROUP_SIZE))
        smem_a.store(a)
        smem_b.store(b)
        acc = gl.amd.cdna4.mfma_scaled(
            a=smem_a.load(dot_a),
            a_scale=a_scales,
            a_format="e2m1",
            b=smem_b.load(dot_b),
            b_scale=b_scales,
            b_format="e2m1",
            acc=acc,
        )
    offs_cm = pid_m * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, mfma_layout))
    offs_cn = pid_n * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, mfma_layout))
    gl.amd.cdna4.buffer_atomic_add(
        c_ptr,
        offs_cm[:, None] * stride_cm + offs_cn[None, :],
        acc,
        mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N),
        sem="relaxed",
        scope="gpu",
    )

ARGS = (
    ptr(gl.uint8),
    ptr(gl.uint8),
    ptr(gl.float32),
    ptr(gl.uint8),
    ptr(gl.uint8),
    128,
    128,
    512,
    256,
    256,
    128,
    16,
    16,
)
KWARGS = dict(BLOCK_M=128, BLOCK_N=64, BLOCK_K=256, NUM_KSPLIT=2, num_warps=4)
"""

# Tiles copied into a ring of buffers by buffer_load_to_shared.
ASYNC_GEMM = """
from GLUON.language.amd import cdna4
from GLUON.language.amd.cdna4 import async_copy as acp

@gluon.jit
def issue(
    i, a_ptr, b_ptr, offs_a, offs_b, sa, sb, STAGES: gl.constexpr, BLOCK_K: gl.constexpr, K
):
    acp.buffer_load_to_shared(sa.index(i % STAGES), a_ptr, offs_a + i * BLOCK_K)
    acp.buffer_load_to_shared(sb.index(i % STAGES), b_ptr, offs_b + i * BLOCK_K)
    acp.commit_group()

@gluon.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    pid_m = gl.program_id(0)
    pid_n = gl.program_id(1)
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])
    la: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    lb: gl.constexpr = gl.BlockedLayout([8, 1], [8, 8], [1, 4], [0, 1])
    sha: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    shb: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    da: gl.constexpr = gl.DotOperandLayout(0, mfma, 8)
    db: gl.constexpr = gl.DotOperandLayout(1, mfma, 8)
    sa = gl.allocate_shared_memory(a_ptr.dtype.element_ty, [STAGES, BLOCK_M, BLOCK_K], sha)
    sb = gl.allocate_shared_memory(b_ptr.dtype.element_ty, [STAGES, BLOCK_K, BLOCK_N], shb)
    offs_a = (pid_m * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, la)))[
        :, None
    ] * K + gl.arange(0, BLOCK_K, gl.SliceLayout(0, la))[None, :]
    offs_b = (pid_n * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, lb)))[
        None, :
    ] * K + gl.arange(0, BLOCK_K, gl.SliceLayout(1, lb))[:, None]
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, mfma)
    n = gl.cdiv(K, BLOCK_K)
    for i in gl.static_range(STAGES - 1):
        issue(i, a_ptr, b_ptr, offs_a, offs_b, sa, sb, STAGES, BLOCK_K, K)
    for i in range(n - (STAGES - 1)):
        acp.wait_group(STAGES - 2)
        a = acp.load_shared_relaxed(sa.index(i % STAGES), da)
        b = acp.load_shared_relaxed(sb.index(i % STAGES), db)
        acc = cdna4.mfma(a, b, acc)
        issue(i + STAGES - 1, a_ptr, b_ptr, offs_a, offs_b, sa, sb, STAGES, BLOCK_K, K)
    for j in gl.static_range(STAGES - 1):
        acp.wait_group(STAGES - 2 - j)
        i = n - (STAGES - 1) + j
        acc = cdna4.mfma(
            acp.load_shared_relaxed(sa.index(i % STAGES), da),
            acp.load_shared_relaxed(sb.index(i % STAGES), db),
            acc,
        )
    out = acc.to(c_ptr.dtype.element_ty)
    rm = pid_m * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, mfma))
    rn = pid_n * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, mfma))
    cdna4.buffer_store(out, c_ptr, rm[:, None] * N + rn[None, :])

ARGS = (ptr(gl.float16), ptr(gl.float16), ptr(gl.float16), 128, 128, 256)
KWARGS = dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, STAGES=3, num_warps=4)
"""

# Warp pipeline stages over padded buffers; the accumulator stored by slices.
PIPELINED_SLICES = """
@gluon.jit
def kernel(a_ptr, b_ptr, c_ptr, K, BLOCK_K: gl.constexpr):
    M: gl.constexpr = 128
    N: gl.constexpr = 128
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])
    la: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    lb: gl.constexpr = gl.BlockedLayout([1, 8], [4, 16], [4, 1], [1, 0])
    da: gl.constexpr = gl.DotOperandLayout(0, mfma, 8)
    db: gl.constexpr = gl.DotOperandLayout(1, mfma, 8)
    sa = gl.allocate_shared_memory(
        gl.float16,
        [2, M, BLOCK_K],
        gl.PaddedSharedLayout.with_identity_for([[512, 16]], [M, BLOCK_K], [1, 0]),
    )
    sb = gl.allocate_shared_memory(
        gl.float16,
        [2, BLOCK_K, N],
        gl.PaddedSharedLayout.with_identity_for([[512, 16]], [BLOCK_K, N], [1, 0]),
    )
    offs_a = (
        gl.arange(0, M, gl.SliceLayout(1, la))[:, None] * K
        + gl.arange(0, BLOCK_K, gl.SliceLayout(0, la))[None, :]
    )
    offs_b = (
        gl.arange(0, BLOCK_K, gl.SliceLayout(1, lb))[:, None] * N
        + gl.arange(0, N, gl.SliceLayout(0, lb))[None, :]
    )
    gl.amd.cdna4.async_copy.buffer_load_to_shared(sa.index(0), a_ptr, offs_a)
    gl.amd.cdna4.async_copy.buffer_load_to_shared(sb.index(0), b_ptr, offs_b)
    gl.amd.cdna4.async_copy.commit_group()
    acc = gl.zeros([M, N], gl.float32, mfma)
    for k in range(1, K // BLOCK_K + 1):
        with gl.amd.warp_pipeline_stage("load", priority=1):
            nxt = gl.minimum(k, K // BLOCK_K - 1)
            gl.amd.cdna4.async_copy.buffer_load_to_shared(
                sa.index(k % 2), a_ptr, offs_a + nxt * BLOCK_K
            )
            gl.amd.cdna4.async_copy.buffer_load_to_shared(
                sb.index(k % 2), b_ptr, offs_b + nxt * BLOCK_K * N
            )
            gl.amd.cdna4.async_copy.commit_group()
        gl.amd.cdna4.async_copy.wait_group(1)
        with gl.amd.warp_pipeline_stage("lds", priority=2):
            a = gl.amd.cdna4.async_copy.load_shared_relaxed(sa.index((k - 1) % 2), da)
            b = gl.amd.cdna4.async_copy.load_shared_relaxed(sb.index((k - 1) % 2), db)
        with gl.amd.warp_pipeline_stage("mfma", priority=0):
            acc = gl.amd.cdna4.mfma(a, b, acc)
        gl.barrier()
    gl.amd.cdna4.async_copy.wait_group(0)
    top = gl.amd.slice(acc, [64, 128], [0, 0])
    low = gl.amd.slice(acc, [64, 128], [64, 0])
    rows = gl.arange(0, 64, gl.SliceLayout(1, mfma))
    cols = gl.arange(0, N, gl.SliceLayout(0, mfma))
    gl.amd.cdna4.buffer_store(top, c_ptr, rows[:, None] * N + cols[None, :])
    gl.amd.cdna4.buffer_store(low, c_ptr, (64 + rows)[:, None] * N + cols[None, :])

ARGS = (ptr(gl.float16), ptr(gl.float16), ptr(gl.float32), 256)
KWARGS = dict(BLOCK_K=64, num_warps=4)
"""

# TDM into a ring of padded buffers, written with aggregates.
TDM_GEMM = """
import GLUON.language.amd.gfx1250 as gfx1250
from GLUON.language.amd.gfx1250 import tdm

@aggregate
class GemmConfig:
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    NUM_BUFFERS: gl.constexpr
    TRANSPOSE_B: gl.constexpr
    acc_layout: gl.constexpr
    a_shared: gl.constexpr
    b_shared: gl.constexpr
    a_dot: gl.constexpr
    b_dot: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, BLOCK_M, BLOCK_N, BLOCK_K, NUM_BUFFERS, TRANSPOSE_B, acc_layout):
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.BLOCK_K = gl.constexpr(BLOCK_K)
        self.NUM_BUFFERS = gl.constexpr(NUM_BUFFERS)
        self.TRANSPOSE_B = gl.constexpr(TRANSPOSE_B)
        self.acc_layout = gl.constexpr(acc_layout)
        self.a_shared = gl.constexpr(
            gl.PaddedSharedLayout.with_identity_for([[BLOCK_K, 8]], [BLOCK_M, BLOCK_K], [1, 0])
        )
        if TRANSPOSE_B:
            self.b_shared = gl.constexpr(
                gl.PaddedSharedLayout.with_identity_for(
                    [[BLOCK_K, 8]], [BLOCK_N, BLOCK_K], [1, 0]
                )
            )
        else:
            self.b_shared = gl.constexpr(
                gl.PaddedSharedLayout.with_identity_for(
                    [[BLOCK_N, 16]], [BLOCK_K, BLOCK_N], [1, 0]
                )
            )
        self.a_dot = gl.constexpr(gl.DotOperandLayout(0, acc_layout, 8))
        self.b_dot = gl.constexpr(gl.DotOperandLayout(1, acc_layout, 8))

@aggregate
class Program:
    cfg: GemmConfig
    a_desc: tdm.tensor_descriptor
    b_desc: tdm.tensor_descriptor
    a_buf: gl.shared_memory_descriptor
    b_buf: gl.shared_memory_descriptor
    off_am: gl.tensor
    off_bn: gl.tensor

    @gluon.constexpr_function
    def __init__(self, cfg, a_desc, b_desc, a_buf, b_buf, off_am, off_bn):
        self.cfg = cfg
        self.a_desc = a_desc
        self.b_desc = b_desc
        self.a_buf = a_buf
        self.b_buf = b_buf
        self.off_am = off_am
        self.off_bn = off_bn

    @gluon.jit
    def create(cfg, a_ptr, b_ptr, M, N, K, pid_m, pid_n):
        a_desc = tdm.make_tensor_descriptor(
            base=a_ptr,
            shape=(M, K),
            strides=(K, 1),
            block_shape=(cfg.BLOCK_M, cfg.BLOCK_K),
            layout=cfg.a_shared,
        )
        if cfg.TRANSPOSE_B:
            b_desc = tdm.make_tensor_descriptor(
                base=b_ptr,
                shape=(N, K),
                strides=(K, 1),
                block_shape=(cfg.BLOCK_N, cfg.BLOCK_K),
                layout=cfg.b_shared,
            )
        else:
            b_desc = tdm.make_tensor_descriptor(
                base=b_ptr,
                shape=(K, N),
                strides=(N, 1),
                block_shape=(cfg.BLOCK_K, cfg.BLOCK_N),
                layout=cfg.b_shared,
            )
        a_buf = gl.allocate_shared_memory(
            a_desc.dtype, shape=[cfg.NUM_BUFFERS] + a_desc.block_shape, layout=a_desc.layout
        )
        b_buf = gl.allocate_shared_memory(
            b_desc.dtype, shape=[cfg.NUM_BUFFERS] + b_desc.block_shape, layout=b_desc.layout
        )
        return Program(
            cfg, a_desc, b_desc, a_buf, b_buf, pid_m * cfg.BLOCK_M, pid_n * cfg.BLOCK_N
        )

    @gluon.jit
    def issue_loads(self, producer, pred=1):
        cfg = self.cfg
        slot = producer % cfg.NUM_BUFFERS
        tdm.async_load(
            self.a_desc, [self.off_am, producer * cfg.BLOCK_K], self.a_buf.index(slot), pred=pred
        )
        if cfg.TRANSPOSE_B:
            tdm.async_load(
                self.b_desc,
                [self.off_bn, producer * cfg.BLOCK_K],
                self.b_buf.index(slot),
                pred=pred,
            )
        else:
            tdm.async_load(
                self.b_desc,
                [producer * cfg.BLOCK_K, self.off_bn],
                self.b_buf.index(slot),
                pred=pred,
            )
        return producer + 1

    @gluon.jit
    def issue_wmma(self, consumer, acc):
        cfg = self.cfg
        slot = consumer % cfg.NUM_BUFFERS
        a = self.a_buf.index(slot).load(layout=cfg.a_dot)
        if cfg.TRANSPOSE_B:
            b = self.b_buf.index(slot).permute([1, 0]).load(layout=cfg.b_dot)
        else:
            b = self.b_buf.index(slot).load(layout=cfg.b_dot)
        return consumer + 1, gl.amd.gfx1250.wmma(a, b, acc)

@gluon.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    NUM_BUFFERS: gl.constexpr,
    TRANSPOSE_B: gl.constexpr,
):
    acc_layout: gl.constexpr = ACC_
    cfg = GemmConfig(BLOCK_M, BLOCK_N, BLOCK_K, NUM_BUFFERS, TRANSPOSE_B, acc_layout)
    pid = gl.program_id(axis=0)
    num_pid_m = gl.cdiv(M, BLOCK_M)
    pid_m = pid % num_pid_m
    pid_n = pid // num_pid_m
    pgm = Program.create(cfg, a_ptr, b_ptr, M, N, K, pid_m, pid_n)
    producer = 0
    consumer = 0
    acc = gl.zeros((BLOCK_M, BLOCK_N), dtype=gl.float32, layout=acc_layout)
    for _ in gl.static_range(NUM_BUFFERS - 1):
        producer = pgm.issue_loads(producer)
    n = gl.cdiv(K, BLOCK_K)
    for _ in range(0, n - (NUM_BUFFERS - 1)):
        producer = pgm.issue_loads(producer)
        tdm.async_wait((NUM_BUFFERS - 1) * 2)
        consumer, acc = pgm.issue_wmma(consumer, acc)
        gl.barrier()
    for i in gl.static_range(NUM_BUFFERS - 1):
        tdm.async_wait((NUM_BUFFERS - 2 - i) * 2)
        consumer, acc = pgm.issue_wmma(consumer, acc)
    offs_cm = pid_m * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, acc_layout))
    offs_cn = pid_n * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, acc_layout))
    offs_c = offs_cm[:, None] * N + offs_cn[None, :]
    gl.amd.gfx1250.buffer_store(
        acc, c_ptr, offs_c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    )

ARGS = (ptr(gl.float16), ptr(gl.float16), ptr(gl.float32), 200, 136, 160)
KWARGS = dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, NUM_BUFFERS=3, TRANSPOSE_B=TB_, num_warps=4)
"""

# Scaled WMMA of mxfp4 by mxfp8, tiles copied asynchronously.
MXGEMM = """
from GLUON.language.amd.gfx1250 import async_copy, get_wmma_scale_layout

@gluon.jit
def kernel(
    a_ptr,
    as_ptr,
    b_ptr,
    bs_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    FA: gl.constexpr,
    FB: gl.constexpr,
):
    DA: gl.constexpr = 2 if FA == "e2m1" else 1
    DB: gl.constexpr = 2 if FB == "e2m1" else 1
    acc_l: gl.constexpr = ACC_
    pack_l: gl.constexpr = PACK_
    la: gl.constexpr = gl.DotOperandLayout(0, pack_l if FA == "e2m1" else acc_l, 16)
    lb: gl.constexpr = gl.DotOperandLayout(1, pack_l if FB == "e2m1" else acc_l, 16)
    sa: gl.constexpr = get_wmma_scale_layout(la, [BM, BK // 32])
    sb: gl.constexpr = get_wmma_scale_layout(lb, [BN, BK // 32])
    pid_m = gl.program_id(0)
    pid_n = gl.program_id(1)
    blk: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    sma = gl.allocate_shared_memory(
        a_ptr.dtype.element_ty,
        [2, BM, BK // DA],
        gl.PaddedSharedLayout.with_identity_for([[BK // DA, 16]], [BM, BK // DA], [1, 0]),
    )
    smb = gl.allocate_shared_memory(
        b_ptr.dtype.element_ty,
        [2, BN, BK // DB],
        gl.PaddedSharedLayout.with_identity_for([[BK // DB, 16]], [BN, BK // DB], [1, 0]),
    )
    am = pid_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, blk))
    bn = pid_n * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, blk))
    ak = gl.arange(0, BK // DA, layout=gl.SliceLayout(0, blk))
    bk = gl.arange(0, BK // DB, layout=gl.SliceLayout(0, blk))
    a_ptrs = a_ptr + am[:, None] * (K // DA) + ak[None, :]
    b_ptrs = b_ptr + bn[:, None] * (K // DB) + bk[None, :]
    async_copy.global_to_shared(sma.index(0), a_ptrs)
    async_copy.global_to_shared(smb.index(0), b_ptrs)
    async_copy.commit_group()
    offs_as = (pid_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, sa)))[:, None] * (
        K // 32
    ) + gl.arange(0, BK // 32, layout=gl.SliceLayout(0, sa))[None, :]
    offs_bs = (pid_n * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, sb)))[:, None] * (
        K // 32
    ) + gl.arange(0, BK // 32, layout=gl.SliceLayout(0, sb))[None, :]
    acc = gl.zeros([BM, BN], gl.float32, acc_l)
    n = K // BK
    for k in range(n):
        if k + 1 < n:
            a_ptrs += BK // DA
            b_ptrs += BK // DB
            async_copy.global_to_shared(sma.index((k + 1) % 2), a_ptrs)
            async_copy.global_to_shared(smb.index((k + 1) % 2), b_ptrs)
            async_copy.commit_group()
            async_copy.wait_group(1)
        else:
            async_copy.wait_group(0)
        s = gl.load(as_ptr + offs_as + k * (BK // 32))
        t = gl.load(bs_ptr + offs_bs + k * (BK // 32))
        a = sma.index(k % 2).load(la)
        b = smb.index(k % 2).permute((1, 0)).load(lb)
        acc = gl.amd.gfx1250.wmma_scaled(a, s, FA, b, t, FB, acc)
        gl.barrier()
    cm = pid_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, acc_l))
    cn = pid_n * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, acc_l))
    gl.store(
        c_ptr + cm[:, None] * N + cn[None, :], acc, mask=(cm[:, None] < M) & (cn[None, :] < N)
    )

ARGS = (
    ptr(gl.uint8),
    ptr(gl.uint8),
    ptr(gl.uint8),
    ptr(gl.uint8),
    ptr(gl.float32),
    128,
    128,
    256,
)
KWARGS = dict(BM=64, BN=64, BK=128, FA="e2m1", FB="e4m3", num_warps=4)
"""

# A gathered matmul of experts: padded token ids, an early return, routed weights.
MOE_GEMM = """
@gluon.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    topk_w_ptr,
    sorted_ids_ptr,
    expert_ids_ptr,
    num_post_padded_ptr,
    N,
    K,
    num_valid,
    stride_be,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    TOP_K: gl.constexpr,
    MUL: gl.constexpr,
):
    pid_m = gl.program_id(0)
    pid_n = gl.program_id(1)
    mfma: gl.constexpr = gl.amd.AMDMFMALayout(
        version=3, instr_shape=[32, 32, 8], transposed=False, warps_per_cta=[2, 2]
    )
    bk: gl.constexpr = gl.BlockedLayout([1, 4], [8, 8], [4, 1], [1, 0])
    num_post = gl.load(num_post_padded_ptr)
    if pid_m * BM >= num_post:
        return
    tok = gl.load(sorted_ids_ptr + pid_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, bk)))
    ok = tok < num_valid
    e = gl.load(expert_ids_ptr + pid_m)
    rk = gl.arange(0, BK, layout=gl.SliceLayout(0, bk))
    rn = pid_n * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, bk))
    acc = gl.zeros([BM, BN], gl.float32, mfma)
    if e == -1:
        pass
    else:
        base = b_ptr + e.to(gl.int64) * stride_be
        for k in range(0, gl.cdiv(K, BK)):
            km = k * BK + rk < K
            a = gl.amd.cdna3.buffer_load(
                a_ptr,
                (tok // TOP_K)[:, None] * K + (k * BK + rk)[None, :],
                mask=ok[:, None] & km[None, :],
                other=0.0,
            )
            b = gl.amd.cdna3.buffer_load(
                base,
                rn[:, None] * K + (k * BK + rk)[None, :],
                mask=(rn < N)[:, None] & km[None, :],
                other=0.0,
            )
            a = gl.convert_layout(a, gl.DotOperandLayout(0, mfma, 4))
            b = gl.convert_layout(gl.permute(b, [1, 0]), gl.DotOperandLayout(1, mfma, 4))
            acc = gl.amd.cdna3.mfma(a, b, acc)
    tok_c = gl.convert_layout(tok, gl.SliceLayout(1, mfma))
    if MUL:
        w = gl.load(topk_w_ptr + tok_c, mask=tok_c < num_valid, other=0)
        acc = acc * w[:, None]
    cn = pid_n * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, mfma))
    gl.store(
        c_ptr + tok_c[:, None] * N + cn[None, :],
        acc.to(c_ptr.type.element_ty),
        mask=(tok_c[:, None] < num_valid) & (cn[None, :] < N),
    )

ARGS = (
    ptr(gl.float16),
    ptr(gl.float16),
    ptr(gl.float16),
    ptr(gl.float32),
    ptr(gl.int32),
    ptr(gl.int32),
    ptr(gl.int32),
    96,
    80,
    50,
    7680,
)
KWARGS = dict(BM=64, BN=64, BK=32, TOP_K=2, MUL=True, num_warps=4)
"""
