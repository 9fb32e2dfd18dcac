"""Kernels of plain Triton in the style of training libraries: gradients, losses, optimizers, embeddings."""

import math

import torch
import triton
import triton.language as tl


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- the gradients of attention, as FlashAttention-2 has them ------------------------------------------


@triton.jit
def _bwd_preprocess(Out, DO, Delta, N_CTX, D_HEAD: tl.constexpr, BLOCK_M: tl.constexpr):
    off_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    off_hz = tl.program_id(1)
    off_n = tl.arange(0, D_HEAD)
    offs = off_hz * N_CTX * D_HEAD + off_m[:, None] * D_HEAD + off_n[None, :]
    o = tl.load(Out + offs, mask=off_m[:, None] < N_CTX, other=0.0).to(tl.float32)
    do = tl.load(DO + offs, mask=off_m[:, None] < N_CTX, other=0.0).to(tl.float32)
    delta = tl.sum(o * do, axis=1)
    tl.store(Delta + off_hz * N_CTX + off_m, delta, mask=off_m < N_CTX)


@triton.jit
def _bwd_dkdv(
    dk, dv, Q, k, v, sm_scale, DO, M, D, N_CTX, start_n, start_m, num_steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, HEAD)
    qT_ptrs = Q + offs_m[None, :] * HEAD + offs_k[:, None]
    do_ptrs = DO + offs_m[:, None] * HEAD + offs_k[None, :]
    curr_m = start_m
    for blk_idx in range(num_steps):
        qT = tl.load(qT_ptrs)
        offs_m = curr_m + tl.arange(0, BLOCK_M)
        m = tl.load(M + offs_m)
        qkT = tl.dot(k, qT)
        pT = tl.math.exp2(qkT - m[None, :])
        if MASK:
            mask = offs_m[None, :] >= offs_n[:, None]
            pT = tl.where(mask, pT, 0.0)
        do = tl.load(do_ptrs)
        ppT = pT.to(tl.float16)
        dv += tl.dot(ppT, do)
        Di = tl.load(D + offs_m)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = pT * (dpT - Di[None, :])
        dsT = dsT.to(tl.float16)
        dk += tl.dot(dsT, tl.trans(qT))
        curr_m += BLOCK_M
        qT_ptrs += BLOCK_M * HEAD
        do_ptrs += BLOCK_M * HEAD
    return dk, dv


@triton.jit
def _bwd_dq(
    dq, q, K, V, do, m, D, N_CTX, start_m, start_n, num_steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, HEAD)
    kT_ptrs = K + offs_n[None, :] * HEAD + offs_k[:, None]
    vT_ptrs = V + offs_n[None, :] * HEAD + offs_k[:, None]
    Di = tl.load(D + offs_m)
    curr_n = start_n
    for blk_idx in range(num_steps):
        kT = tl.load(kT_ptrs)
        vT = tl.load(vT_ptrs)
        qk = tl.dot(q, kT)
        p = tl.math.exp2(qk - m)
        if MASK:
            offs_n = curr_n + tl.arange(0, BLOCK_N)
            p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
        dp = tl.dot(do, vT).to(tl.float32)
        ds = p * (dp - Di[:, None])
        dq += tl.dot(ds.to(tl.float16), tl.trans(kT))
        curr_n += BLOCK_N
        kT_ptrs += BLOCK_N * HEAD
        vT_ptrs += BLOCK_N * HEAD
    return dq


@triton.jit
def _attn_bwd(
    Q, K, V, sm_scale, DO, DQ, DK, DV, M, D, N_CTX,
    BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr, BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr,
    BLK_SLICE: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    LN2: tl.constexpr = 0.6931471824645996
    bhid = tl.program_id(1)
    adj = (bhid * N_CTX * HEAD).to(tl.int64)
    off_chz = (bhid * N_CTX).to(tl.int64)
    pid = tl.program_id(0)
    Q += adj
    K += adj
    V += adj
    DO += adj
    DQ += adj
    DK += adj
    DV += adj
    M += off_chz
    D += off_chz
    offs_k = tl.arange(0, HEAD)
    start_n = pid * BLOCK_N1
    start_m = start_n
    MASK_BLOCK_M1: tl.constexpr = BLOCK_M1 // BLK_SLICE
    offs_n = start_n + tl.arange(0, BLOCK_N1)
    dv = tl.zeros([BLOCK_N1, HEAD], dtype=tl.float32)
    dk = tl.zeros([BLOCK_N1, HEAD], dtype=tl.float32)
    k = tl.load(K + offs_n[:, None] * HEAD + offs_k[None, :])
    v = tl.load(V + offs_n[:, None] * HEAD + offs_k[None, :])
    num_steps = BLOCK_N1 // MASK_BLOCK_M1
    dk, dv = _bwd_dkdv(
        dk, dv, Q, k, v, sm_scale, DO, M, D, N_CTX, start_n, start_m, num_steps,
        MASK_BLOCK_M1, BLOCK_N1, HEAD, MASK=True,
    )  # fmt: skip
    start_m += num_steps * MASK_BLOCK_M1
    num_steps = (N_CTX - start_m) // BLOCK_M1
    dk, dv = _bwd_dkdv(
        dk, dv, Q, k, v, sm_scale, DO, M, D, N_CTX, start_n, start_m, num_steps,
        BLOCK_M1, BLOCK_N1, HEAD, MASK=False,
    )  # fmt: skip
    tl.store(DV + offs_n[:, None] * HEAD + offs_k[None, :], dv)
    dk *= sm_scale
    tl.store(DK + offs_n[:, None] * HEAD + offs_k[None, :], dk)

    start_m = pid * BLOCK_M2
    end_n = start_m + BLOCK_M2
    MASK_BLOCK_N2: tl.constexpr = BLOCK_N2 // BLK_SLICE
    offs_m = start_m + tl.arange(0, BLOCK_M2)
    q = tl.load(Q + offs_m[:, None] * HEAD + offs_k[None, :])
    dq = tl.zeros([BLOCK_M2, HEAD], dtype=tl.float32)
    do = tl.load(DO + offs_m[:, None] * HEAD + offs_k[None, :])
    m = tl.load(M + offs_m)[:, None]
    num_steps = BLOCK_M2 // MASK_BLOCK_N2
    dq = _bwd_dq(
        dq, q, K, V, do, m, D, N_CTX, start_m, end_n - num_steps * MASK_BLOCK_N2, num_steps,
        BLOCK_M2, MASK_BLOCK_N2, HEAD, MASK=True,
    )  # fmt: skip
    end_n -= num_steps * MASK_BLOCK_N2
    num_steps = end_n // BLOCK_N2
    dq = _bwd_dq(
        dq, q, K, V, do, m, D, N_CTX, start_m, end_n - num_steps * BLOCK_N2, num_steps,
        BLOCK_M2, BLOCK_N2, HEAD, MASK=False,
    )  # fmt: skip
    dq *= LN2
    tl.store(DQ + offs_m[:, None] * HEAD + offs_k[None, :], dq)


def flash_backward():
    Z, N, HEAD = 2, 128, 32
    q, k, v, do = (normal(Z, N, HEAD, seed=i) for i in range(4))
    scale = 1 / math.sqrt(HEAD)
    tensors = [t.half().float().requires_grad_() for t in (q, k, v)]
    scores = tensors[0] @ tensors[1].mT * scale
    scores = scores.masked_fill(torch.ones(N, N).tril() == 0, -math.inf)
    out = scores.softmax(-1) @ tensors[2]
    out.backward(do.half().float())
    RCP_LN2 = 1.4426950408889634
    m = (torch.logsumexp(scores, -1) * RCP_LN2).detach().contiguous()
    arg_k = (k.half().float() * (scale * RCP_LN2)).half()
    delta = torch.empty(Z, N)
    do_half = do.half()
    _bwd_preprocess[(4, Z)](out.detach().half(), do_half, delta, N, HEAD, BLOCK_M=32)
    dq, dk, dv = (torch.empty(Z, N, HEAD) for _ in range(3))
    _attn_bwd[(2, Z)](
        q.half(), arg_k, v.half(), scale, do_half, dq, dk, dv, m, delta, N,
        BLOCK_M1=32, BLOCK_N1=64, BLOCK_M2=64, BLOCK_N2=32, BLK_SLICE=2, HEAD=HEAD,
    )  # fmt: skip
    result = torch.stack([dq, dk, dv])
    return result, torch.stack([t.grad for t in tensors])


# -- losses -----------------------------------------------------------------------------------------


@triton.jit
def _jsd_kernel(X, X_stride, Y, Y_stride, loss_ptr, loss_stride, dX, dX_stride, beta: tl.constexpr,
                n_non_ignore, ignore_index: tl.constexpr, labels, n_cols, BLOCK: tl.constexpr, HAS_LABEL: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    X += pid * X_stride
    dX += pid * dX_stride
    Y += pid * Y_stride
    loss_ptr += pid * loss_stride
    if HAS_LABEL:
        label = tl.load(labels + pid)
        if label == ignore_index:
            for i in range(0, n_cols, BLOCK):
                offs = i + tl.arange(0, BLOCK)
                tl.store(dX + offs, 0.0, mask=offs < n_cols)
            return
    for i in range(0, n_cols, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        mask = offs < n_cols
        x = tl.load(X + offs, mask=mask, other=float("-inf")).to(tl.float32)
        y = tl.load(Y + offs, mask=mask, other=float("-inf")).to(tl.float32)
        if beta == 0.0:
            y_max = tl.max(y, axis=0)
            y_prob = tl.exp(y - y_max) * tl.exp(y_max)
            loss = y_prob * (y - x)
            dx = -y_prob
        else:
            max_val = tl.maximum(tl.max(x, axis=0), tl.max(y, axis=0))
            exp_max = tl.exp(max_val)
            Q = tl.exp(x - max_val) * exp_max
            P = tl.exp(y - max_val) * exp_max
            beta_P = beta * P
            one_minus_beta_Q = (1 - beta) * Q
            mix = beta_P + one_minus_beta_Q
            log_M = tl.log(mix)
            loss = beta_P * y + one_minus_beta_Q * x - mix * log_M
            dx = one_minus_beta_Q * (x - log_M)
        scale = 1.0 / n_non_ignore
        tl.store(loss_ptr + offs, loss * scale, mask=mask)
        tl.store(dX + offs, dx * scale, mask=mask)


def jensen_shannon():
    rows, columns = 4, 200
    x, y = (torch.log_softmax(normal(rows, columns, seed=i), -1) for i in range(2))
    labels = torch.tensor([1, -100, 3, 5])
    loss, dx = torch.zeros(rows, columns), torch.empty(rows, columns)
    _jsd_kernel[(rows,)](x, columns, y, columns, loss, columns, dx, columns, 0.25, 3, -100, labels, columns,
                         BLOCK=128, HAS_LABEL=True)  # fmt: skip
    keep = (labels != -100)[:, None]
    p, q = y.exp(), x.exp()
    m = 0.25 * p + 0.75 * q
    wanted = (0.25 * p * y + 0.75 * q * x - m * m.log()) / 3 * keep
    gradient = 0.75 * q * (x - m.log()) / 3 * keep
    return torch.cat([loss, dx]), torch.cat([wanted, gradient])


@triton.jit
def _softcap(x, cap):
    return cap * (2 * tl.sigmoid(2 * x / cap) - 1)


@triton.jit
def cross_entropy_kernel(
    X_ptr, X_stride, Y_ptr, loss_ptr, z_loss_ptr, n_cols, n_non_ignore, ignore_index, lse_square_scale: tl.constexpr,
    label_smoothing: tl.constexpr, softcap, BLOCK_SIZE: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Replace logits by their gradients: smoothed labels, a penalty of the normalizer, capped logits."""
    program_id = tl.program_id(0).to(tl.int64)
    y = tl.load(Y_ptr + program_id)
    X_ptr += program_id * X_stride
    if y == ignore_index:
        for i in range(0, n_cols, BLOCK_SIZE):
            X_offsets = i + tl.arange(0, BLOCK_SIZE)
            tl.store(X_ptr + X_offsets, 0.0, mask=X_offsets < n_cols)
        return
    m = float("-inf")
    d = 0.0
    ori_X_y = tl.load(X_ptr + y).cast(tl.float32)
    if HAS_SOFTCAP:
        ori_X_y = _softcap(ori_X_y, softcap)
    scaled_x_sum = 0.0
    eps = label_smoothing / n_cols
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(
            tl.float32
        )
        if HAS_SOFTCAP:
            X_block = _softcap(X_block, softcap)
        block_max = tl.max(X_block)
        if label_smoothing > 0:
            scaled_x_sum += tl.sum(tl.where(X_offsets < n_cols, -eps * X_block, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(X_block - m_new))
        m = m_new
    lse = m + tl.log(d)
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(
            tl.float32
        )
        if HAS_SOFTCAP:
            intermediate = 2 * tl.sigmoid(2 * X_block / softcap) - 1
            X_block = softcap * intermediate
        X_block = tl.exp(X_block - m) / d
        X_block += 2 * lse_square_scale * lse * X_block
        X_block += -eps
        X_block = tl.where(X_offsets != y, X_block, X_block - (1 - label_smoothing))
        X_block = X_block / n_non_ignore
        if HAS_SOFTCAP:
            X_block = X_block * (1 - intermediate * intermediate)
        tl.store(X_ptr + X_offsets, X_block, mask=X_offsets < n_cols)
    tl.debug_barrier()
    loss = lse - ori_X_y
    if label_smoothing > 0:
        smooth_loss = scaled_x_sum + label_smoothing * lse
        loss = loss * (1 - label_smoothing) + smooth_loss
    z_loss = lse_square_scale * lse * lse
    tl.store(loss_ptr + program_id, (loss + z_loss) / n_non_ignore)
    tl.store(z_loss_ptr + program_id, z_loss / n_non_ignore)


def capped_cross_entropy():
    rows, columns = 5, 150
    x = normal(rows, columns) * 3
    labels = torch.tensor([3, 149, -100, 0, 77])
    own = x.clone().requires_grad_()
    capped = 5 * torch.tanh(own / 5)
    lse = torch.logsumexp(capped, -1)
    keep = labels != -100
    loss = torch.nn.functional.cross_entropy(capped, labels, reduction="none", label_smoothing=0.1)
    z = 1e-2 * lse * lse * keep
    ((loss + z).sum() / 4).backward()
    losses, zs = torch.zeros(rows), torch.zeros(rows)
    cross_entropy_kernel[(rows,)](
        x,
        columns,
        labels,
        losses,
        zs,
        columns,
        4,
        -100,
        1e-2,
        0.1,
        5.0,
        BLOCK_SIZE=64,
        HAS_SOFTCAP=True,
    )
    wanted = torch.cat([own.grad.flatten(), ((loss + z) / 4).detach(), (z / 4).detach()])
    return torch.cat([x.flatten(), losses, zs]), wanted


# -- optimizers, embeddings, scans --------------------------------------------------------------------


@triton.jit
def adamw_8bit_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, qmap_ptr, amax_m_ptr, amax_v_ptr, lr, beta1, beta2, eps, decay, step, n,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Update parameters whose moments are codes of 8 bits with a scale for each block."""
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    p = tl.load(p_ptr + offs, mask=mask)
    g = tl.load(g_ptr + offs, mask=mask).to(tl.float32)
    m = tl.load(qmap_ptr + tl.load(m_ptr + offs, mask=mask).to(tl.int32)) * tl.load(
        amax_m_ptr + pid
    )
    v = tl.load(v_ptr + offs, mask=mask).to(tl.float32) / 255 * tl.load(amax_v_ptr + pid)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    bias1 = 1 - tl.exp(step * tl.log(beta1))
    bias2 = 1 - tl.exp(step * tl.log(beta2))
    update = (m / bias1) / (tl.sqrt(v / bias2) + eps)
    p = p - lr * (update + decay * p)
    amax_m = tl.max(tl.where(mask, tl.abs(m), 0.0))
    amax_v = tl.max(tl.where(mask, v, 0.0))
    scaled = m / tl.maximum(amax_m, 1e-12)
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.full([BLOCK], LEVELS - 1, tl.int32)
    for _ in tl.static_range(8):
        middle = (low + high) >> 1
        below = tl.load(qmap_ptr + middle) < scaled
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    code = tl.minimum(low, LEVELS - 1)
    left = tl.maximum(code - 1, 0)
    closer = tl.abs(tl.load(qmap_ptr + left) - scaled) < tl.abs(tl.load(qmap_ptr + code) - scaled)
    code = tl.where(closer, left, code)
    tl.store(p_ptr + offs, p, mask=mask)
    tl.store(m_ptr + offs, code.to(tl.uint8), mask=mask)
    tl.store(v_ptr + offs, (v / tl.maximum(amax_v, 1e-12) * 255 + 0.5).to(tl.uint8), mask=mask)
    tl.store(amax_m_ptr + pid, amax_m)
    tl.store(amax_v_ptr + pid, amax_v)


def adamw_8bit():
    n, block = 500, 256
    p, g = normal(n), normal(n, seed=1).half()
    m, v = (
        torch.randint(0, 256, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
        for i in (2, 3)
    )
    qmap = torch.linspace(-1, 1, 256)
    am, av = torch.tensor([0.5, 0.7]), torch.tensor([0.1, 0.2])
    blocks = torch.arange(n) // block
    mm = 0.9 * qmap[m.long()] * am[blocks] + 0.1 * g.float()
    vv = 0.99 * v.float() / 255 * av[blocks] + 0.01 * g.float() ** 2
    update = mm / (1 - 0.9**3) / ((vv / (1 - 0.99**3)).sqrt() + 1e-6)
    wanted = p - 1e-2 * (update + 0.1 * p)
    largest = torch.stack([mm[blocks == i].abs().max() for i in range(2)])
    adamw_8bit_kernel[(2,)](
        p, g, m, v, qmap, am, av, 1e-2, 0.9, 0.99, 1e-6, 0.1, 3, n, BLOCK=block, LEVELS=256
    )
    error = (qmap[m.long()] * am[blocks] - mm).abs() / largest[blocks] < 0.0045
    return torch.cat([p, am, error.float()]), torch.cat([wanted, largest, torch.ones(n)])


@triton.jit
def embedding_backward_kernel(grad, indices, out, n_elements, dim: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    index = tl.load(indices + offs_m, mask=offs_m < n_elements, other=0)
    mask = (offs_m < n_elements)[:, None] & (offs_n < dim)[None, :]
    g = tl.load(grad + offs_m[:, None] * dim + offs_n[None, :], mask=mask, other=0.0)
    tl.atomic_add(out + index[:, None] * dim + offs_n[None, :], g, mask=mask, sem="relaxed")


def embedding_backward():
    grad, indices = normal(50, 40), torch.arange(50) % 7
    out = torch.zeros(7, 40)
    embedding_backward_kernel[(4, 2)](grad, indices, out, 50, dim=40, BLOCK_M=16, BLOCK_N=32)
    return out, torch.zeros(7, 40).index_add(0, indices, grad)


@triton.jit
def first_order(a0, b0, a1, b1):
    return a1 * a0, a1 * b0 + b1


@triton.jit
def selective_scan_kernel(
    u_ptr, delta_ptr, A_ptr, B_ptr, C_ptr, D_ptr, z_ptr, out_ptr, state_ptr, L,
    DIM: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr, HAS_Z: tl.constexpr,
):  # fmt: skip
    """Scan chunks of a sequence with a state of N for one channel, as Mamba does."""
    batch, channel = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, N)
    A = tl.load(A_ptr + channel * N + n)
    D = tl.load(D_ptr + channel)
    state = tl.zeros([N], tl.float32)
    for start in range(0, L, CHUNK):
        t = start + tl.arange(0, CHUNK)
        inside = t < L
        base = (batch * DIM + channel) * L + t
        u = tl.load(u_ptr + base, mask=inside, other=0.0)
        raw = tl.load(delta_ptr + base, mask=inside, other=0.0)
        delta = tl.where(inside, tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(raw))), 0.0)
        B = tl.load(
            B_ptr + (batch * N + n[None, :]) * L + t[:, None], mask=inside[:, None], other=0.0
        )
        C = tl.load(
            C_ptr + (batch * N + n[None, :]) * L + t[:, None], mask=inside[:, None], other=0.0
        )
        decay = tl.exp(delta[:, None] * A[None, :])
        added = (delta * u)[:, None] * B
        first = (tl.arange(0, CHUNK) == 0)[:, None]
        added = tl.where(first, added + decay * state[None, :], added)
        decays, states = tl.associative_scan((decay, added), 0, first_order)
        last = (tl.arange(0, CHUNK) == CHUNK - 1)[:, None]
        state = tl.sum(tl.where(last, states, 0.0), 0)
        y = tl.sum(states * C, 1) + D * u
        if HAS_Z:
            z = tl.load(z_ptr + base, mask=inside, other=0.0)
            y *= z * tl.sigmoid(z)
        tl.store(out_ptr + base, y, mask=inside)
    tl.store(state_ptr + (batch * DIM + channel) * N + n, state)


def selective_scan():
    batch, dim, n, length = 2, 3, 16, 50
    u, delta, z = (normal(batch, dim, length, seed=i) for i in range(3))
    A, D = -normal(dim, n, seed=3).exp(), normal(dim, seed=4)
    B, C = (normal(batch, n, length, seed=i) for i in (5, 6))
    out, last = torch.empty(batch, dim, length), torch.empty(batch, dim, n)
    selective_scan_kernel[(batch, dim)](
        u, delta, A, B, C, D, z, out, last, length, DIM=dim, N=n, CHUNK=16, HAS_Z=True
    )
    soft, state, ys = torch.nn.functional.softplus(delta), torch.zeros(batch, dim, n), []
    for t in range(length):
        state = (soft[:, :, t, None] * A).exp() * state + (soft * u)[:, :, t, None] * B[
            :, None, :, t
        ]
        ys.append((state * C[:, None, :, t]).sum(-1) + D * u[:, :, t])
    wanted = torch.stack(ys, -1) * z * z.sigmoid()
    return torch.cat([out.flatten(), last.flatten()]), torch.cat(
        [wanted.flatten(), state.flatten()]
    )


@triton.jit
def group_norm_backward_kernel(
    X, X_row, X_col, Mean, Rstd, DX, DW, DB, DY, W, hidden, groups: tl.constexpr, PER_GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, group = tl.program_id(0), tl.program_id(1)
    mean = tl.load(Mean + batch * groups + group)
    rstd = tl.load(Rstd + batch * groups + group)
    c1 = 0.0
    c2 = 0.0
    N = hidden * PER_GROUP
    for channel in tl.static_range(PER_GROUP):
        index = group * PER_GROUP + channel
        w = tl.load(W + index)
        dw = 0.0
        db = 0.0
        for i in range(0, hidden, BLOCK):
            offs = i + tl.arange(0, BLOCK)
            mask = offs < hidden
            x = tl.load(X + batch * X_row + index * X_col + offs, mask=mask, other=0.0)
            dy = tl.load(DY + batch * X_row + index * X_col + offs, mask=mask, other=0.0)
            x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
            dw += tl.sum(dy * x_hat)
            db += tl.sum(dy)
            c1 += tl.sum(x_hat * w * dy)
            c2 += tl.sum(w * dy)
        tl.atomic_add(DW + index, dw, sem="relaxed")
        tl.atomic_add(DB + index, db, sem="relaxed")
    c1 = c1 / N
    c2 = c2 / N
    for channel in tl.static_range(PER_GROUP):
        index = group * PER_GROUP + channel
        w = tl.load(W + index)
        for i in range(0, hidden, BLOCK):
            offs = i + tl.arange(0, BLOCK)
            mask = offs < hidden
            x = tl.load(X + batch * X_row + index * X_col + offs, mask=mask, other=0.0)
            dy = tl.load(DY + batch * X_row + index * X_col + offs, mask=mask, other=0.0)
            x_hat = (x - mean) * rstd
            tl.store(
                DX + batch * X_row + index * X_col + offs,
                (w * dy - x_hat * c1 - c2) * rstd,
                mask=mask,
            )


def group_norm_backward():
    batch, channels, hidden, groups = 2, 6, 70, 3
    x, dy, w = (
        normal(batch, channels, hidden),
        normal(batch, channels, hidden, seed=1),
        normal(channels, seed=2),
    )
    own, weight, bias = (
        x.clone().requires_grad_(),
        w.clone().requires_grad_(),
        torch.zeros(channels, requires_grad=True),
    )
    torch.nn.functional.group_norm(own, groups, weight, bias).backward(dy)
    parts = x.view(batch, groups, -1)
    mean = parts.mean(-1).contiguous()
    rstd = (parts.var(-1, unbiased=False) + 1e-5).rsqrt().contiguous()
    dx, dw, db = torch.empty_like(x), torch.zeros(channels), torch.zeros(channels)
    group_norm_backward_kernel[(batch, groups)](
        x,
        channels * hidden,
        hidden,
        mean,
        rstd,
        dx,
        dw,
        db,
        dy,
        w,
        hidden,
        groups=groups,
        PER_GROUP=2,
        BLOCK=64,
    )
    return torch.cat([dx.flatten(), dw, db]), torch.cat(
        [own.grad.flatten(), weight.grad, bias.grad]
    )


CASES = [
    flash_backward, jensen_shannon, capped_cross_entropy, adamw_8bit, embedding_backward, selective_scan,
    group_norm_backward,
]  # fmt: skip
