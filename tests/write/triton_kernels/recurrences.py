"""Kernels of plain Triton for sequences with states, in the styles of public libraries of linear attention."""

import os

import torch
import triton
import triton.language as tl
import triton.language.extra.libdevice as tldevice

if os.environ.get("FAST_OPS", "0") == "1":
    exp, log = tldevice.fast_expf, tldevice.fast_logf
else:
    exp, log = tl.exp, tl.log


@triton.jit
def safe_exp(x):
    return exp(tl.where(x <= 0, x, float("-inf")))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def chunk_table(cu_seqlens, size):
    """Return sequence and number of each chunk."""
    return torch.tensor(
        [
            (i, t)
            for i, (a, b) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:]))
            for t in range(-(-int(b - a) // size))
        ],
        dtype=torch.int32,
    )


# sums within chunks, of packed sequences or of equal ones


@triton.heuristics({"IS_VARLEN": lambda args: args["cu_seqlens"] is not None})
@triton.jit(do_not_specialize=["T"])
def chunk_cumsum_kernel(
    s, o, cu_seqlens, chunk_indices, T, B: tl.constexpr, H: tl.constexpr, BT: tl.constexpr, REVERSE: tl.constexpr,
    IS_VARLEN: tl.constexpr, HEAD_FIRST: tl.constexpr,
):  # fmt: skip
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    if IS_VARLEN:
        i_n, i_t = (
            tl.load(chunk_indices + i_t * 2).to(tl.int32),
            tl.load(chunk_indices + i_t * 2 + 1).to(tl.int32),
        )
        bos, eos = (
            tl.load(cu_seqlens + i_n).to(tl.int32),
            tl.load(cu_seqlens + i_n + 1).to(tl.int32),
        )
        T = eos - bos
    else:
        bos, eos = i_b * T, i_b * T + T
    if HEAD_FIRST:
        p_s = tl.make_block_ptr(s + bos * H + i_h * T, (T,), (1,), (i_t * BT,), (BT,), (0,))
        p_o = tl.make_block_ptr(o + bos * H + i_h * T, (T,), (1,), (i_t * BT,), (BT,), (0,))
    else:
        p_s = tl.make_block_ptr(s + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
        p_o = tl.make_block_ptr(o + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_s = tl.load(p_s, boundary_check=(0,)).to(tl.float32)
    b_o = tl.cumsum(b_s, axis=0)
    if REVERSE:
        b_z = tl.sum(b_s, axis=0)
        b_o = -b_o + b_z[None] + b_s
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0,))


def chunk_sums():
    B, T, H, BT = 2, 40, 3, 16
    s, outs, wants = normal(B, T, H), [], []
    for reverse in (False, True):
        o = torch.empty_like(s)
        chunk_cumsum_kernel[(triton.cdiv(T, BT), B * H)](
            s, o, None, None, T, B, H, BT, reverse, HEAD_FIRST=False
        )
        padded = torch.nn.functional.pad(s, (0, 0, 0, 8)).view(B, 3, BT, H)
        want = padded.flip(2).cumsum(2).flip(2) if reverse else padded.cumsum(2)
        outs.append(o), wants.append(want.view(B, 48, H)[:, :T])
    cu = torch.tensor([0, 5, 42, 80])
    table, o, packed = chunk_table(cu, BT), torch.empty(1, 80, H), s.view(1, 80, H)
    chunk_cumsum_kernel[(len(table), H)](
        packed, o, cu, table, T=80, B=1, H=H, BT=BT, REVERSE=False, HEAD_FIRST=False
    )
    want = torch.cat([c.cumsum(0) for a, b in zip(cu, cu[1:]) for c in packed[0, a:b].split(BT)])
    return torch.cat([*outs, o.view(B, T, H)]), torch.cat([*wants, want.view(B, T, H)])


# states of chunks, kept in up to four pieces of 16 keys, with gates, initial and final states


@triton.heuristics(
    {
        "USE_G": lambda args: args["g"] is not None,
        "USE_INITIAL": lambda args: args["h0"] is not None,
        "STORE_FINAL": lambda args: args["ht"] is not None,
    }
)
@triton.jit
def chunk_states_kernel(
    k, v, w, v_new, g, h, h0, ht, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
    USE_G: tl.constexpr, USE_INITIAL: tl.constexpr, STORE_FINAL: tl.constexpr,
):  # fmt: skip
    i_v, i_nh = tl.program_id(0), tl.program_id(1)
    i_n, i_h = i_nh // H, i_nh % H
    bos = i_n * T
    NT = tl.cdiv(T, BT)
    b_h1 = tl.zeros([16, BV], dtype=tl.float32)
    if K > 16:
        b_h2 = tl.zeros([16, BV], dtype=tl.float32)
    h += (i_n * NT * H + i_h).to(tl.int64) * K * V
    v += (bos * H + i_h) * V
    k += (bos * H + i_h) * K
    w += (bos * H + i_h) * K
    v_new += (bos * H + i_h) * V
    stride_v, stride_h, stride_k = H * V, H * K * V, H * K
    if USE_INITIAL:
        p_h0_1 = tl.make_block_ptr(
            h0 + i_nh * K * V, (K, V), (V, 1), (0, i_v * BV), (16, BV), (1, 0)
        )
        b_h1 += tl.load(p_h0_1, boundary_check=(0, 1)).to(tl.float32)
        if K > 16:
            p_h0_2 = tl.make_block_ptr(
                h0 + i_nh * K * V, (K, V), (V, 1), (16, i_v * BV), (16, BV), (1, 0)
            )
            b_h2 += tl.load(p_h0_2, boundary_check=(0, 1)).to(tl.float32)
    for i_t in range(NT):
        p_h1 = tl.make_block_ptr(
            h + i_t * stride_h, (K, V), (V, 1), (0, i_v * BV), (16, BV), (1, 0)
        )
        tl.store(p_h1, b_h1.to(p_h1.dtype.element_ty), boundary_check=(0, 1))
        if K > 16:
            p_h2 = tl.make_block_ptr(
                h + i_t * stride_h, (K, V), (V, 1), (16, i_v * BV), (16, BV), (1, 0)
            )
            tl.store(p_h2, b_h2.to(p_h2.dtype.element_ty), boundary_check=(0, 1))
        p_w = tl.make_block_ptr(w, (T, K), (stride_k, 1), (i_t * BT, 0), (BT, 16), (1, 0))
        b_w = tl.load(p_w, boundary_check=(0, 1))
        b_v = tl.dot(b_w, b_h1.to(b_w.dtype))
        if K > 16:
            p_w = tl.make_block_ptr(w, (T, K), (stride_k, 1), (i_t * BT, 16), (BT, 16), (1, 0))
            b_w = tl.load(p_w, boundary_check=(0, 1))
            b_v += tl.dot(b_w, b_h2.to(b_w.dtype))
        p_v = tl.make_block_ptr(v, (T, V), (stride_v, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
        b_v = tl.load(p_v, boundary_check=(0, 1)) - b_v
        p_v = tl.make_block_ptr(
            v_new, (T, V), (stride_v, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
        )
        tl.store(p_v, b_v.to(p_v.dtype.element_ty), boundary_check=(0, 1))
        last_idx = min((i_t + 1) * BT, T) - 1
        if USE_G:
            m_t = (i_t * BT + tl.arange(0, BT)) < T
            b_g_last = tl.load(g + bos * H + last_idx * H + i_h)
            p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
            b_g = tl.load(p_g, boundary_check=(0,))
            b_v *= tl.where(m_t, safe_exp(b_g_last - b_g), 0)[:, None]
            b_g_last = exp(b_g_last)
            b_h1 *= b_g_last
            if K > 16:
                b_h2 *= b_g_last
        b_v = b_v.to(k.dtype.element_ty)
        p_k = tl.make_block_ptr(k, (K, T), (1, stride_k), (0, i_t * BT), (16, BT), (0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_h1 += tl.dot(b_k, b_v)
        if K > 16:
            p_k = tl.make_block_ptr(k, (K, T), (1, stride_k), (16, i_t * BT), (16, BT), (0, 1))
            b_k = tl.load(p_k, boundary_check=(0, 1))
            b_h2 += tl.dot(b_k, b_v)
    if STORE_FINAL:
        p_ht = tl.make_block_ptr(ht + i_nh * K * V, (K, V), (V, 1), (0, i_v * BV), (16, BV), (1, 0))
        tl.store(p_ht, b_h1.to(p_ht.dtype.element_ty), boundary_check=(0, 1))
        if K > 16:
            p_ht = tl.make_block_ptr(
                ht + i_nh * K * V, (K, V), (V, 1), (16, i_v * BV), (16, BV), (1, 0)
            )
            tl.store(p_ht, b_h2.to(p_ht.dtype.element_ty), boundary_check=(0, 1))


def chunk_states():
    N, T, H, K, V, BT = 2, 44, 2, 32, 32, 16
    k, v, w = (normal(N, T, H, d, seed=i) * 0.3 for i, d in enumerate((K, V, K)))
    g = torch.nn.functional.logsigmoid(normal(N, T, H, seed=3))
    NT = triton.cdiv(T, BT)
    for n in range(NT):
        g[:, n * BT : (n + 1) * BT] = g[:, n * BT : (n + 1) * BT].cumsum(1)
    h0, ht, h = normal(N, H, K, V, seed=4), torch.empty(N, H, K, V), torch.empty(N, NT, H, K, V)
    kh, vh, wh, vn = k.half(), v.half(), w.half(), torch.empty(N, T, H, V)
    chunk_states_kernel[(V // 16, N * H)](
        kh, vh, wh, vn, g, h, h0, ht, T=T, H=H, K=K, V=V, BT=BT, BV=16
    )
    state, news, states = h0.clone(), [], []
    for n in range(NT):
        part = slice(n * BT, min(T, (n + 1) * BT))
        states.append(state.clone())
        new = vh[:, part].float() - torch.einsum(
            "nthk,nhkv->nthv", wh[:, part].float(), state.half().float()
        )
        news.append(new)
        last = g[:, part][:, -1:]
        new = (new * torch.exp(last - g[:, part])[..., None]).half().float()
        state = state * torch.exp(last[:, 0])[..., None, None] + torch.einsum(
            "nthk,nthv->nhkv", kh[:, part].float(), new
        )
    got = torch.cat([ht.flatten(), vn.flatten(), h.flatten()])
    return got.half(), torch.cat(
        [state.flatten(), torch.cat(news, 1).flatten(), torch.stack(states, 1).flatten()]
    )


# outputs of chunks: two products, one masked and decayed; scale and gates by flags


@triton.jit
def chunk_out_kernel(
    q, k, v, h, g, o, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, USE_G: tl.constexpr,
):  # fmt: skip
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    NT = tl.cdiv(T, BT)
    i_tg, bos = i_b * NT + i_t, i_b * T
    q, k = q + (bos * H + i_h) * K, k + (bos * H + i_h) * K
    v, o = v + (bos * H + i_h) * V, o + (bos * H + i_h) * V
    h += (i_tg * H + i_h).to(tl.int64) * K * V
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    b_A = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        p_q = tl.make_block_ptr(q, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0))
        p_k = tl.make_block_ptr(k, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1))
        p_h = tl.make_block_ptr(h, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0))
        b_q = tl.load(p_q, boundary_check=(0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_h = tl.load(p_h, boundary_check=(0, 1))
        b_o += tl.dot(b_q, b_h)
        b_A += tl.dot(b_q, b_k)
    if USE_G:
        g += bos * H + i_h
        p_g = tl.make_block_ptr(g, (T,), (H,), (i_t * BT,), (BT,), (0,))
        b_g = tl.load(p_g, boundary_check=(0,))
        b_o = b_o * exp(b_g)[:, None]
        b_A = b_A * safe_exp(b_g[:, None] - b_g[None, :])
    o_i = tl.arange(0, BT)
    m_A = o_i[:, None] >= o_i[None, :]
    b_A = tl.where(m_A, b_A, 0)
    p_v = tl.make_block_ptr(v, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    p_o = tl.make_block_ptr(o, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    b_v = tl.load(p_v, boundary_check=(0, 1))
    b_o = b_o * scale + tl.dot(b_A.to(b_v.dtype), b_v) * scale
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))


def chunk_outputs():
    B, T, H, K, V, BT = 1, 40, 2, 32, 32, 16
    NT = triton.cdiv(T, BT)
    q, k, v = (normal(B, T, H, d, seed=i, dtype=torch.bfloat16) for i, d in enumerate((K, K, V)))
    h, g = (
        normal(B, NT, H, K, V, seed=3).bfloat16(),
        -torch.rand(B, T, H, generator=torch.Generator().manual_seed(4)).cumsum(1) * 0.1,
    )
    o = torch.empty(B, T, H, V, dtype=torch.bfloat16)
    chunk_out_kernel[(V // 16, NT, B * H)](
        q, k, v, h, g, o, K**-0.5, T, H, K, V, BT, 16, 16, True, num_warps=2, num_stages=2
    )
    want = torch.empty(B, T, H, V)
    for n in range(NT):
        part = slice(n * BT, min(T, (n + 1) * BT))
        a, b, c, d = (t[:, part].float() for t in (q, k, v, g))
        scores = torch.einsum("bihk,bjhk->bhij", a, b) * torch.exp(
            d.transpose(1, 2)[..., None] - d.transpose(1, 2)[:, :, None]
        )
        want[:, part] = (
            torch.einsum("bihk,bhkv->bihv", a, h[:, n].float()) * torch.exp(d)[..., None]
        )
        want[:, part] += torch.einsum("bhij,bjhv->bihv", scores.tril().bfloat16().float(), c)
    return o.half() * 0.1, want * K**-0.5 * 0.1


# one step at a time with pointers that move, and the rows' norms in the kernel; backwards in time with a flag


@triton.jit(do_not_specialize=["T"])
def recurrent_kernel(
    q, k, v, g, beta, o, h0, ht, cu_seqlens, scale, T, B, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, USE_INITIAL: tl.constexpr, HEADWISE: tl.constexpr, NORM: tl.constexpr, IS_VARLEN: tl.constexpr,
):  # fmt: skip
    i_k, i_v, i_nh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_n, i_hv = i_nh // HV, i_nh % HV
    i_h = i_hv // (HV // H)
    if IS_VARLEN:
        bos, eos = (
            tl.load(cu_seqlens + i_n).to(tl.int64),
            tl.load(cu_seqlens + i_n + 1).to(tl.int64),
        )
        all = T
        T = eos - bos
    else:
        bos, eos = i_n * T, i_n * T + T
        all = B * T
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    p_q, p_k = q + (bos * H + i_h) * K + o_k, k + (bos * H + i_h) * K + o_k
    p_v = v + (bos * HV + i_hv) * V + o_v
    if HEADWISE:
        p_beta = beta + bos * HV + i_hv
    else:
        p_beta = beta + (bos * HV + i_hv) * V + o_v
    p_g = g + bos * HV + i_hv
    p_o = o + ((i_k * all + bos) * HV + i_hv) * V + o_v
    mask_k, mask_v = o_k < K, o_v < V
    mask_h = mask_k[:, None] & mask_v[None, :]
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if USE_INITIAL:
        p_h0 = h0 + i_nh * K * V + o_k[:, None] * V + o_v[None, :]
        b_h += tl.load(p_h0, mask=mask_h, other=0).to(tl.float32)
    for _ in range(0, T):
        b_q = tl.load(p_q, mask=mask_k, other=0).to(tl.float32) * scale
        b_k = tl.load(p_k, mask=mask_k, other=0).to(tl.float32)
        b_v = tl.load(p_v, mask=mask_v, other=0).to(tl.float32)
        b_g = tl.load(p_g).to(tl.float32)
        if NORM:
            b_q = b_q / (tl.sqrt(tl.sum(b_q * b_q)) + 1e-6)
            b_k = b_k / (tl.sqrt(tl.sum(b_k * b_k)) + 1e-6)
        b_h *= exp(b_g)
        b_v -= tl.sum(b_h * b_k[:, None], 0)
        if HEADWISE:
            b_beta = tl.load(p_beta).to(tl.float32)
        else:
            b_beta = tl.load(p_beta, mask=mask_v, other=0).to(tl.float32)
        b_v *= b_beta
        b_h += b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_h * b_q[:, None], 0)
        tl.store(p_o, b_o.to(p_o.dtype.element_ty), mask=mask_v)
        p_q += H * K
        p_k += H * K
        p_o += HV * V
        p_v += HV * V
        p_g += HV
        p_beta += HV * (1 if HEADWISE else V)
    if ht is not None:
        tl.store(
            ht + i_nh * K * V + o_k[:, None] * V + o_v[None, :],
            b_h.to(ht.dtype.element_ty),
            mask=mask_h,
        )


def recurrent_steps():
    H, HV, K, V, T = 1, 2, 12, 10, 14
    cu = torch.tensor([0, 6, 14])
    q, k, v = normal(1, T, H, K), normal(1, T, H, K, seed=1), normal(1, T, HV, V, seed=2)
    g, beta = (
        -normal(1, T, HV, seed=3).abs(),
        torch.rand(1, T, HV, generator=torch.Generator().manual_seed(4)),
    )
    o, h0, ht = torch.empty(1, T, HV, V), normal(2, HV, K, V, seed=5), torch.empty(2, HV, K, V)
    recurrent_kernel[(1, 2, 2 * HV)](
        q=q, k=k, v=v, g=g, beta=beta, o=o, h0=h0, ht=ht, cu_seqlens=cu, scale=K**-0.5, T=T, B=1, H=H, HV=HV, K=K, V=V,
        BK=16, BV=8, USE_INITIAL=True, HEADWISE=True, NORM=True, IS_VARLEN=True, num_warps=1, num_stages=3)  # fmt: skip
    want, state = torch.empty_like(o), h0.clone()
    for n, (a, b) in enumerate(zip(cu, cu[1:])):
        for t in range(a, b):
            for h in range(HV):
                one, two = q[0, t, 0] / q[0, t, 0].norm(), k[0, t, 0] / k[0, t, 0].norm()
                s = state[n, h] * g[0, t, h].exp()
                s = s + two[:, None] * ((v[0, t, h] - two @ s) * beta[0, t, h])
                want[0, t, h], state[n, h] = one @ s, s
    return torch.cat([o.flatten(), ht.flatten()]), torch.cat([want.flatten(), state.flatten()])


# causal convolution of packed sequences with a halo, an activation named by a string, and its gradient of weights


@triton.jit
def short_conv_kernel(
    x, y, weight, bias, residual, cu_seqlens, chunk_indices, T, D: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr,
    BD: tl.constexpr, ACTIVATION: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    i_d, i_t = tl.program_id(0), tl.program_id(1)
    i_n, i_t = tl.load(chunk_indices + i_t * 2), tl.load(chunk_indices + i_t * 2 + 1)
    bos, eos = tl.load(cu_seqlens + i_n).to(tl.int32), tl.load(cu_seqlens + i_n + 1).to(tl.int32)
    T = eos - bos
    o_d = i_d * BD + tl.arange(0, BD)
    o_w = tl.arange(0, BW) + W - BW
    m_d, m_w = o_d < D, o_w >= 0
    b_w = tl.load(weight + o_d[:, None] * W + o_w, mask=m_d[:, None] & m_w, other=0).to(tl.float32)
    b_y = tl.zeros((BT, BD), dtype=tl.float32)
    for i_w in tl.static_range(-W + 1, 1):
        p_yi = tl.make_block_ptr(
            x + bos * D, (T, D), (D, 1), (i_t * BT + i_w, i_d * BD), (BT, BD), (1, 0)
        )
        b_yi = tl.load(p_yi, boundary_check=(0, 1)).to(tl.float32)
        b_yi *= tl.sum(b_w * (o_w == (i_w + W - 1)), 1)
        b_y += b_yi
    if bias is not None:
        b_y += tl.load(bias + o_d, mask=m_d)[None, :]
    if ACTIVATION == "swish" or ACTIVATION == "silu":
        b_y = b_y * tl.sigmoid(b_y)
    if HAS_RESIDUAL:
        p_r = tl.make_block_ptr(
            residual + bos * D, (T, D), (D, 1), (i_t * BT, i_d * BD), (BT, BD), (1, 0)
        )
        b_y += tl.load(p_r, boundary_check=(0, 1))
    p_y = tl.make_block_ptr(y + bos * D, (T, D), (D, 1), (i_t * BT, i_d * BD), (BT, BD), (1, 0))
    tl.store(
        p_y,
        tl.cast(b_y, dtype=p_y.dtype.element_ty, fp_downcast_rounding="rtne"),
        boundary_check=(0, 1),
    )


def short_conv():
    T, D, W, BT = 30, 20, 3, 8
    x, w, bias, cu = (
        normal(1, T, D, dtype=torch.bfloat16),
        normal(D, W, seed=1),
        normal(D, seed=2),
        torch.tensor([0, 13, 30]),
    )
    table, y = chunk_table(cu, BT), torch.empty(1, T, D, dtype=torch.bfloat16)
    short_conv_kernel[(2, len(table))](
        x, y, w, bias, x, cu, table, T=T, D=D, W=W, BT=BT, BW=4, BD=16, ACTIVATION="silu", HAS_RESIDUAL=True)  # fmt: skip
    want = [
        torch.nn.functional.conv1d(
            x[:, a:b].float().transpose(1, 2), w[:, None], bias, padding=W - 1, groups=D
        )[..., : b - a]
        for a, b in zip(cu, cu[1:])
    ]
    want = torch.nn.functional.silu(torch.cat(want, 2).transpose(1, 2)) + x.float()
    return y.half(), want


CASES = [chunk_sums, chunk_states, chunk_outputs, recurrent_steps, short_conv]
