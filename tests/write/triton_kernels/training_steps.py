"""Kernels in the style of training libraries: optimizers, gradients in two stages, in-place rotations, recurrences."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["step", "n"])
def lamb_stage1(
    p_ptr,
    g_ptr,
    m_ptr,
    v_ptr,
    u_ptr,
    norms_ptr,
    n,
    step,
    beta1,
    beta2,
    eps,
    weight_decay,
    BLOCK: tl.constexpr,
):
    """Update the moments, and add up the squares of the parameters and of the update."""
    pid = tl.program_id(0)
    block_start = pid * BLOCK
    offs = block_start + tl.arange(0, BLOCK)
    mask = offs < n
    g = tl.load(g_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    p = tl.load(p_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    m = tl.load(m_ptr + offs, mask=mask, other=0.0)
    v = tl.load(v_ptr + offs, mask=mask, other=0.0)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    t = step.to(tl.float32)
    m_hat = m / (1 - tl.exp2(t * tl.log2(beta1)))
    v_hat = v / (1 - tl.exp2(t * tl.log2(beta2)))
    u = m_hat / (tl.sqrt(v_hat) + eps) + weight_decay * p
    tl.store(m_ptr + offs, m, mask=mask)
    tl.store(v_ptr + offs, v, mask=mask)
    tl.store(u_ptr + offs, u, mask=mask)
    tl.atomic_add(norms_ptr, tl.sum(tl.where(mask, p * p, 0.0)))
    tl.atomic_add(norms_ptr + 1, tl.sum(tl.where(mask, u * u, 0.0)))


@triton.jit
def lamb_stage2(p_ptr, u_ptr, norms_ptr, n, lr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    w_norm = tl.sqrt(tl.load(norms_ptr))
    u_norm = tl.sqrt(tl.load(norms_ptr + 1))
    ratio = tl.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, 1.0)
    p = tl.load(p_ptr + offs, mask=mask)
    u = tl.load(u_ptr + offs, mask=mask)
    p = (p.to(tl.float32) - lr * ratio * u).to(p.dtype)
    tl.store(p_ptr + offs, p, mask=mask)


@triton.jit
def multi_tensor_adam(
    ptrs,
    sizes,
    chunk_to_tensor,
    chunk_to_start,
    lr,
    beta1,
    beta2,
    eps,
    wd,
    bc1,
    bc2,
    NT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One launch for a list of tensors: their addresses are in memory."""
    chunk = tl.program_id(0)
    t = tl.load(chunk_to_tensor + chunk)
    start = tl.load(chunk_to_start + chunk)
    n = tl.load(sizes + t)
    p_ptr = tl.load(ptrs + t).to(tl.pointer_type(tl.float32))
    g_ptr = tl.load(ptrs + NT + t).to(tl.pointer_type(tl.float32))
    m_ptr = tl.load(ptrs + 2 * NT + t).to(tl.pointer_type(tl.float32))
    v_ptr = tl.load(ptrs + 3 * NT + t).to(tl.pointer_type(tl.float32))
    p_ptr = tl.multiple_of(p_ptr, 16)
    offs = start + tl.arange(0, BLOCK)
    mask = offs < n
    p, g = tl.load(p_ptr + offs, mask), tl.load(g_ptr + offs, mask)
    m, v = tl.load(m_ptr + offs, mask), tl.load(v_ptr + offs, mask)
    m = tl.fma(beta1, m, (1 - beta1) * g)
    v = tl.fma(beta2, v, (1 - beta2) * (g * g))
    denom = tl.math.sqrt_rn(v / bc2) + eps
    p = p * (1 - lr * wd) - tl.div_rn(lr * (m / bc1), denom)
    tl.store(p_ptr + offs, p, mask)
    tl.store(m_ptr + offs, m, mask)
    tl.store(v_ptr + offs, v, mask)


@triton.jit
def layer_norm_bwd_rows(
    DX,
    DY,
    DWP,
    DBP,
    X,
    W,
    Mean,
    Rstd,
    stride,
    M,
    N,
    rows_per_program,
    BLOCK_N: tl.constexpr,
):
    """Each program walks over rows and keeps its part of the weights' gradients."""
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK_N,), dtype=tl.float32)
    db = tl.zeros((BLOCK_N,), dtype=tl.float32)
    row_start = pid * rows_per_program
    row_end = min((pid + 1) * rows_per_program, M)
    X += row_start * stride
    DY += row_start * stride
    DX += row_start * stride
    for row in range(row_start, row_end):
        x = tl.load(X + cols, mask=mask, other=0).to(tl.float32)
        dy = tl.load(DY + cols, mask=mask, other=0).to(tl.float32)
        mean = tl.load(Mean + row)
        rstd = tl.load(Rstd + row)
        xhat = (x - mean) * rstd
        xhat = tl.where(mask, xhat, 0.0)
        wdy = w * dy
        wdy = tl.where(mask, wdy, 0.0)
        c1 = tl.sum(xhat * wdy, axis=0) / N
        c2 = tl.sum(wdy, axis=0) / N
        tl.store(DX + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
        dw += dy * xhat
        db += dy
        X += stride
        DY += stride
        DX += stride
    tl.store(DWP + pid * N + cols, dw, mask=mask)
    tl.store(DBP + pid * N + cols, db, mask=mask)


@triton.jit
def column_sums(A, OUT, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in tl.range(0, M, BLOCK_M, num_stages=3):
        rows = i + tl.arange(0, BLOCK_M)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        acc += tl.load(A + rows[:, None] * N + cols[None, :], mask=mask, other=0.0)
    tl.store(OUT + cols, tl.sum(acc, axis=0), mask=cols < N)


@triton.jit
def rope_qk_inplace(
    q_ptr,
    q_row_stride,
    k_ptr,
    k_row_stride,
    cos,
    cos_row_stride,
    sin,
    sin_row_stride,
    sl,
    n_qh: tl.constexpr,
    n_kh: tl.constexpr,
    hd: tl.constexpr,
    pad_n_qh: tl.constexpr,
    pad_n_kh: tl.constexpr,
    pad_hd: tl.constexpr,
    BACKWARD_PASS: tl.constexpr = False,
):
    """Rotate the queries and keys of a token in place."""
    pid = tl.program_id(0).to(tl.int64)
    q_ptr = q_ptr + pid * q_row_stride
    k_ptr = k_ptr + pid * k_row_stride
    cos_row_idx = pid % sl
    cos = cos + cos_row_idx * cos_row_stride
    sin = sin + cos_row_idx * sin_row_stride
    cos_offsets = tl.arange(0, pad_hd // 2)
    cos_mask = cos_offsets < hd // 2
    cos_row = tl.load(cos + cos_offsets, mask=cos_mask, other=0)
    sin_row = tl.load(sin + cos_offsets, mask=cos_mask, other=0)
    first_half_q_offsets = tl.arange(0, pad_n_qh)[:, None] * hd + tl.arange(0, pad_hd // 2)[None, :]
    first_half_k_offsets = tl.arange(0, pad_n_kh)[:, None] * hd + tl.arange(0, pad_hd // 2)[None, :]
    first_q_mask = (tl.arange(0, pad_n_qh)[:, None] < n_qh) & (
        tl.arange(0, pad_hd // 2)[None, :] < hd // 2
    )
    first_k_mask = (tl.arange(0, pad_n_kh)[:, None] < n_kh) & (
        tl.arange(0, pad_hd // 2)[None, :] < hd // 2
    )
    q_tile_1 = tl.load(q_ptr + first_half_q_offsets, mask=first_q_mask, other=0).to(sin_row.dtype)
    k_tile_1 = tl.load(k_ptr + first_half_k_offsets, mask=first_k_mask, other=0).to(sin_row.dtype)
    second_half_q_offsets = first_half_q_offsets + (hd // 2)
    second_half_k_offsets = first_half_k_offsets + (hd // 2)
    second_q_mask = first_q_mask
    second_k_mask = first_k_mask
    q_tile_2 = tl.load(q_ptr + second_half_q_offsets, mask=second_q_mask, other=0).to(sin_row.dtype)
    k_tile_2 = tl.load(k_ptr + second_half_k_offsets, mask=second_k_mask, other=0).to(sin_row.dtype)
    if not BACKWARD_PASS:
        new_q_tile_1 = q_tile_1 * cos_row - q_tile_2 * sin_row
        tl.store(q_ptr + first_half_q_offsets, new_q_tile_1, mask=first_q_mask)
        new_q_tile_2 = q_tile_2 * cos_row + q_tile_1 * sin_row
        tl.store(q_ptr + second_half_q_offsets, new_q_tile_2, mask=second_q_mask)
        new_k_tile_1 = k_tile_1 * cos_row - k_tile_2 * sin_row
        tl.store(k_ptr + first_half_k_offsets, new_k_tile_1, mask=first_k_mask)
        new_k_tile_2 = k_tile_2 * cos_row + k_tile_1 * sin_row
        tl.store(k_ptr + second_half_k_offsets, new_k_tile_2, mask=second_k_mask)
    else:
        new_q_tile_1 = q_tile_1 * cos_row + q_tile_2 * sin_row
        tl.store(q_ptr + first_half_q_offsets, new_q_tile_1, mask=first_q_mask)
        new_q_tile_2 = q_tile_2 * cos_row - q_tile_1 * sin_row
        tl.store(q_ptr + second_half_q_offsets, new_q_tile_2, mask=second_q_mask)


@triton.jit
def _welford_combine(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    new_weight = weight_1 + weight_2
    w2_over_w = tl.where(new_weight == 0.0, 0.0, weight_2 / new_weight)
    return (
        mean_1 + delta * w2_over_w,
        m2_1 + m2_2 + delta * delta * weight_1 * w2_over_w,
        new_weight,
    )


@triton.jit
def group_norm_silu_nhwc(
    input_ptr,
    gamma_ptr,
    beta_ptr,
    output_ptr,
    cluster_size: tl.constexpr,
    c: tl.constexpr,
    hw,
    num_clusters: tl.constexpr,
    eps,
    BLOCK_CLUSTER: tl.constexpr,
    HW_BLOCK: tl.constexpr,
):
    pid = tl.program_id(0)
    image, group = pid // num_clusters, pid % num_clusters
    input_ptr += image * hw * c + group * cluster_size
    output_ptr += image * hw * c + group * cluster_size
    gamma_ptr += group * cluster_size
    beta_ptr += group * cluster_size
    ch = tl.arange(0, BLOCK_CLUSTER)
    _mean = tl.zeros([HW_BLOCK, BLOCK_CLUSTER], dtype=tl.float32)
    _m2 = tl.zeros([HW_BLOCK, BLOCK_CLUSTER], dtype=tl.float32)
    _weight = tl.zeros([HW_BLOCK, BLOCK_CLUSTER], dtype=tl.float32)
    for off in range(0, hw, HW_BLOCK):
        r = off + tl.arange(0, HW_BLOCK)
        mask = (r < hw)[:, None] & (ch < cluster_size)[None, :]
        x = tl.load(input_ptr + r[:, None] * c + ch[None, :], mask=mask).to(tl.float32)
        new_weight = _weight + 1.0
        delta = x - _mean
        new_mean = _mean + delta / new_weight
        new_m2 = _m2 + delta * (x - new_mean)
        _mean = tl.where(mask, new_mean, _mean)
        _m2 = tl.where(mask, new_m2, _m2)
        _weight = tl.where(mask, new_weight, _weight)
    flat: tl.constexpr = (BLOCK_CLUSTER * HW_BLOCK,)
    mean, m2, weight = tl.reduce(
        (tl.view(_mean, flat), tl.view(_m2, flat), tl.view(_weight, flat)), 0, _welford_combine
    )
    var = m2 / weight
    rstd = tl.rsqrt(var + eps)
    gamma = tl.load(gamma_ptr + ch, mask=ch < cluster_size)[None, :]
    beta = tl.load(beta_ptr + ch, mask=ch < cluster_size)[None, :]
    for off in range(0, hw, HW_BLOCK):
        r = off + tl.arange(0, HW_BLOCK)
        mask = (r < hw)[:, None] & (ch < cluster_size)[None, :]
        x = tl.load(input_ptr + r[:, None] * c + ch[None, :], mask=mask).to(tl.float32)
        y = (x - mean) * rstd * gamma + beta
        y = y * tl.sigmoid(y)
        tl.store(output_ptr + r[:, None] * c + ch[None, :], y.to(tl.float16), mask=mask)


@triton.jit
def bias_dropout_residual(
    x_ptr, bias_ptr, res_ptr, y_ptr, mask_ptr, seed_ptr, n, N, p, BLOCK: tl.constexpr
):
    """Four random numbers a call of the generator, whose seed is in memory; keep the mask in bits."""
    pid = tl.program_id(0)
    seed = tl.load(seed_ptr)
    base = pid * BLOCK * 4
    i = tl.arange(0, BLOCK)
    r0, r1, r2, r3 = tl.rand4x(seed, pid * BLOCK + i)
    r01 = tl.join(r0, r1)
    r23 = tl.join(r2, r3)
    r = tl.reshape(tl.join(r01, r23), (BLOCK * 4,))
    offs = base + tl.arange(0, BLOCK * 4)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0) + tl.load(
        bias_ptr + offs % N, mask=mask, other=0.0
    )
    keep = (r > p) & mask
    y = tl.where(keep, x / (1 - p), 0.0) + tl.load(res_ptr + offs, mask=mask, other=0.0)
    tl.store(y_ptr + offs, y, mask=mask)
    bits = tl.reshape(keep, (BLOCK // 2, 8)).to(tl.uint8) << tl.arange(0, 8)[None, :].to(tl.uint8)
    tl.store(mask_ptr + pid * (BLOCK // 2) + tl.arange(0, BLOCK // 2), tl.sum(bits, 1).to(tl.uint8))


@triton.jit
def wkv6_kernel(
    r_ptr,
    k_ptr,
    v_ptr,
    w_ptr,
    u_ptr,
    s0_ptr,
    o_ptr,
    s_ptr,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    REVERSE: tl.constexpr = False,
):
    """A recurrence with a matrix as its state."""
    i_b, i_h = tl.program_id(0), tl.program_id(1)
    i_bh = i_b * H + i_h
    step: tl.constexpr = -1 if REVERSE else 1
    first = (T - 1) if REVERSE else 0
    p_r = r_ptr + i_bh * T * K + first * K + tl.arange(0, K)
    p_k = k_ptr + i_bh * T * K + first * K + tl.arange(0, K)
    p_w = w_ptr + i_bh * T * K + first * K + tl.arange(0, K)
    p_v = v_ptr + i_bh * T * V + first * V + tl.arange(0, V)
    p_o = o_ptr + i_bh * T * V + first * V + tl.arange(0, V)
    u = tl.load(u_ptr + i_h * K + tl.arange(0, K)).to(tl.float32)
    state = tl.load(s0_ptr + i_bh * K * V + tl.arange(0, V)[:, None] * K + tl.arange(0, K)[None, :])
    for _ in range(0, T):
        r = tl.load(p_r).to(tl.float32)
        k = tl.load(p_k).to(tl.float32)
        v = tl.load(p_v).to(tl.float32)
        w = tl.exp(tl.load(p_w).to(tl.float32))
        kv = k[None, :] * v[:, None]
        o = tl.sum((state + kv * u[None, :]) * r[None, :], axis=1)
        state = state * w[None, :] + kv
        tl.store(p_o, o.to(p_o.dtype.element_ty))
        p_r += step * K
        p_k += step * K
        p_w += step * K
        p_v += step * V
        p_o += step * V
    tl.store(s_ptr + i_bh * K * V + tl.arange(0, V)[:, None] * K + tl.arange(0, K)[None, :], state)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def lamb():
    n, block = 700, 256
    p, g = normal(n), normal(n, seed=1)
    m, v, u, norms = torch.zeros(n), torch.zeros(n), torch.empty(n), torch.zeros(2)
    b1, b2, eps, wd, lr, step = 0.9, 0.999, 1e-6, 0.01, 0.1, 3
    want_m, want_v = (1 - b1) * g, (1 - b2) * g * g
    update = want_m / (1 - b1**step) / ((want_v / (1 - b2**step)).sqrt() + eps) + wd * p
    wanted = p - lr * p.norm() / update.norm() * update
    grid = (triton.cdiv(n, block),)
    lamb_stage1[grid](p, g, m, v, u, norms, n, step, b1, b2, eps, wd, BLOCK=block)
    lamb_stage2[grid](p, u, norms, n, lr, BLOCK=block)
    return torch.stack([p, m, v]), torch.stack([wanted, want_m, want_v])


def adam_list():
    sizes, block = [100, 33, 260], 64
    ps, gs = ([normal(n, seed=n + s) for n in sizes] for s in range(2))
    ms, vs = ([torch.zeros(n) for n in sizes] for _ in range(2))
    b1, b2, eps, wd, lr = 0.9, 0.99, 1e-8, 0.1, 0.01
    wanted = []
    for p, g in zip(ps, gs):
        step = ((1 - b1) * g / (1 - b1)) / (((1 - b2) * g * g / (1 - b2)).sqrt() + eps)
        wanted.append(p * (1 - lr * wd) - lr * step)
    storage = torch.cat(
        [torch.nn.functional.pad(t, (0, -len(t) % 4)) for part in (ps, gs, ms, vs) for t in part]
    )
    places, place = [], 0
    for part in (ps, gs, ms, vs):
        for t in part:
            places.append(storage.data_ptr() + 4 * place)
            place += len(t) + -len(t) % 4
    chunks = [(i, s) for i, n in enumerate(sizes) for s in range(0, n, block)]
    ints = lambda values: torch.tensor(values, dtype=torch.int32)
    multi_tensor_adam[(len(chunks),)](
        torch.tensor(places),
        ints(sizes),
        ints([c[0] for c in chunks]),
        ints([c[1] for c in chunks]),
        lr,
        b1,
        b2,
        eps,
        wd,
        1 - b1,
        1 - b2,
        NT=3,
        BLOCK=block,
    )
    starts = [(a - storage.data_ptr()) // 4 for a in places[:3]]
    return torch.cat([storage[s : s + n] for s, n in zip(starts, sizes)]), torch.cat(wanted)


def layer_norm_two_stages():
    M, N, programs = 22, 100, 4
    x, dy, w = normal(M, N), normal(M, N, seed=1), normal(N, seed=2)
    mean, rstd = x.mean(-1), (x.var(-1, unbiased=False) + 1e-5).rsqrt()
    dx, dwp, dbp = torch.empty_like(x), torch.empty(programs, N), torch.empty(programs, N)
    layer_norm_bwd_rows[(programs,)](
        dx, dy, dwp, dbp, x, w, mean, rstd, N, M, N, triton.cdiv(M, programs), BLOCK_N=128
    )
    dw, db = torch.empty(N), torch.empty(N)
    for part, out in ((dwp, dw), (dbp, db)):
        column_sums[lambda meta: (triton.cdiv(N, meta["BLOCK_N"]),)](
            part, out, programs, N, BLOCK_M=4, BLOCK_N=32
        )
    leaf, weight, bias = (
        x.clone().requires_grad_(),
        w.clone().requires_grad_(),
        torch.zeros(N, requires_grad=True),
    )
    torch.nn.functional.layer_norm(leaf, (N,), weight, bias).backward(dy)
    return torch.cat([dx, dw[None], db[None]]), torch.cat(
        [leaf.grad, weight.grad[None], bias.grad[None]]
    )


def rope_in_place():
    B, T, HQ, HK, D = 2, 5, 6, 2, 24
    q, k = normal(B, T, HQ, D), normal(B, T, HK, D, seed=1)
    angle = normal(T, D // 2, seed=2)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

    def rotated(x):
        a, b = x.chunk(2, -1)
        c, s = angle.cos()[None, :, None], angle.sin()[None, :, None]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    wanted = torch.cat([rotated(q).flatten(), rotated(k).flatten()])
    rope_qk_inplace[(B * T,)](
        q,
        q.stride(1),
        k,
        k.stride(1),
        cos,
        cos.stride(0),
        sin,
        sin.stride(0),
        T,
        HQ,
        HK,
        D,
        triton.next_power_of_2(HQ),
        triton.next_power_of_2(HK),
        triton.next_power_of_2(D),
        BACKWARD_PASS=False,
        num_warps=4,
    )
    return torch.cat([q.flatten(), k.flatten()]), wanted


def group_norm_channels_last():
    N, H, W, C, G = 2, 5, 6, 24, 4
    x = normal(N, H, W, C).half()
    gamma, beta = normal(C, seed=1), normal(C, seed=2)
    y = torch.empty_like(x)
    group_norm_silu_nhwc[(N * G,)](
        x, gamma, beta, y, C // G, C, H * W, G, 1e-5, BLOCK_CLUSTER=8, HW_BLOCK=16
    )
    plain = torch.nn.functional.group_norm(x.float().permute(0, 3, 1, 2), G, gamma, beta, 1e-5)
    return y, torch.nn.functional.silu(plain).permute(0, 2, 3, 1)


def dropout_with_bits():
    N, rows, p, block = 48, 20, 0.3, 64
    n = N * rows
    x, bias, res = normal(n), normal(N, seed=1), normal(n, seed=2)
    y, programs = torch.empty(n), triton.cdiv(n, block * 4)
    bits = torch.zeros(programs * block // 2, dtype=torch.uint8)
    bias_dropout_residual[(programs,)](
        x, bias, res, y, bits, torch.tensor([1234]), n, N, p, BLOCK=block
    )
    keep = ((bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten()[:n].bool()
    assert abs(keep.float().mean() - (1 - p)) < 0.06
    return y, torch.where(keep, (x + bias.repeat(rows)) / (1 - p), 0.0) + res


def wkv():
    B, H, T, K, V = 1, 2, 12, 16, 32
    r, k, v = normal(B, H, T, K), normal(B, H, T, K, seed=1), normal(B, H, T, V, seed=2)
    w, u, s0 = -normal(B, H, T, K, seed=3).abs(), normal(H, K, seed=4), normal(B, H, V, K, seed=5)
    o, s = torch.empty(B, H, T, V), torch.empty_like(s0)
    wkv6_kernel[(B, H)](r, k, v, w, u, s0, o, s, T, H, K, V)
    state, rows = s0.clone(), []
    for t in range(T):
        kv = k[:, :, t, None, :] * v[:, :, t, :, None]
        rows.append(((state + kv * u[None, :, None, :]) * r[:, :, t, None, :]).sum(-1))
        state = state * w[:, :, t, None, :].exp() + kv
    return torch.cat([o.flatten(), s.flatten()]), torch.cat(
        [torch.stack(rows, 2).flatten(), state.flatten()]
    )


CASES = [
    lamb,
    adam_list,
    layer_norm_two_stages,
    rope_in_place,
    group_norm_channels_last,
    dropout_with_bits,
    wkv,
]
