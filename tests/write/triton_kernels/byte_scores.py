"""Attention in plain Triton whose queries and keys are bytes."""

import torch
import triton
import triton.language as tl


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ints(low, high, *shape, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


# -- scores of bytes with a scale for each block
@triton.jit
def byte_scores_kernel(
    Q, K, QS, KS, V, Out, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    h, block = tl.program_id(1), tl.program_id(0)
    i = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    rows = (i < N)[:, None]
    q = tl.load(Q + (h * N + i)[:, None] * D + d[None, :], mask=rows, other=0)
    q_scale = tl.load(QS + h * tl.cdiv(N, BM) + block)
    most = tl.full([BM], -float("inf"), tl.float32)
    total = tl.full([BM], 1.0, tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    k_ptrs = K + (h * N + tl.arange(0, BN))[None, :] * D + d[:, None]
    v_ptrs = V + (h * N + tl.arange(0, BN))[:, None] * D + d[None, :]
    s_ptr = KS + h * tl.cdiv(N, BN)
    for start in range(0, N, BN):
        kept = tl.arange(0, BN) < N - start
        k = tl.load(k_ptrs, mask=kept[None, :], other=0)
        s = tl.dot(q, k).to(tl.float32) * (q_scale * tl.load(s_ptr))
        s = tl.where(kept[None, :], s, -1.0e6)
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        shrink = tl.math.exp2(most - new)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        v = tl.load(v_ptrs, mask=kept[:, None], other=0.0)
        acc += tl.dot(p.to(tl.float16), v, out_dtype=tl.float32)
        most = new
        k_ptrs += BN * D
        v_ptrs += BN * D
        s_ptr += 1
    tl.store(
        Out + (h * N + i)[:, None] * D + d[None, :],
        (acc / total[:, None]).to(Out.dtype.element_ty),
        mask=rows,
    )


def byte_scores(H=1, N=150, D=32, BM=64, BN=64):
    q, k = (ints(-127, 128, H, N, D, seed=s).to(torch.int8) for s in range(2))
    v, out = normal(H, N, D, seed=2).half(), torch.zeros(H, N, D, dtype=torch.float16)
    qs, ks = (
        normal(H, triton.cdiv(N, b), seed=s).abs() * 0.01 + 0.005 for s, b in ((3, BM), (4, BN))
    )
    byte_scores_kernel[(triton.cdiv(N, BM), H)](q, k, qs, ks, v, out, N, D=D, BM=BM, BN=BN)
    s = q.float() @ k.float().transpose(1, 2)
    s = s * qs.repeat_interleave(BM, 1)[:, :N, None] * ks.repeat_interleave(BN, 1)[:, None, :N]
    p = torch.exp2(s - s.amax(-1, keepdim=True))
    return out, p @ v.float() / p.sum(-1, keepdim=True)


CASES = [byte_scores]
