"""Kernels of plain Triton that do more with tiles of host-side descriptors than multiply them."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

ROWS, COLUMNS = 16, 32


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@triton.jit
def decayed(a0, b0, a1, b1):
    return a1 * a0, a1 * b0 + b1


@triton.jit
def tile_kernel(x, y, out, KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    v = x.load([0, 0])
    w = y.load([0, 0])
    if KIND == "gathered":
        r = tl.gather(v, (tl.abs(w) * 4).to(tl.int32) % M, 0)
    elif KIND == "scanned":
        _, r = tl.associative_scan((tl.sigmoid(v), w), 0, decayed, reverse=True)
    elif KIND == "rotated":
        a, b = tl.split(tl.permute(tl.reshape(v, (M, 2, N // 2)), (0, 2, 1)))
        r = tl.reshape(tl.permute(tl.join(-b, a), (0, 2, 1)), (M, N)) + w
    elif KIND == "picked":
        r = tl.where(tl.arange(0, N)[None, :] == tl.argmax(v, 1)[:, None], w, 0.0)
    elif KIND == "counted":
        h = tl.histogram(tl.reshape(tl.abs(v).to(tl.int32), (M * N,)), N)
        r = w + h[None, :].to(tl.float32)
    else:
        running = tl.cumsum(tl.sum(v, 1), 0)
        r = v * running[:, None] + tl.cumsum(tl.max(w, 0), 0)[None, :]
    out.store([0, 0], r)


def of_kind(kind, wanted):
    def case():
        x, y = normal(ROWS, COLUMNS), normal(ROWS, COLUMNS, seed=1)
        out = torch.zeros_like(x)
        tiles = [TensorDescriptor.from_tensor(t, [ROWS, COLUMNS]) for t in (x, y, out)]
        tile_kernel[(1,)](*tiles, kind, ROWS, COLUMNS)
        return out, wanted(x, y)

    return case


def decayed_rows(x, y):
    rows, sum_of = [], torch.zeros_like(y[0])
    for share, row in zip(x.sigmoid().flip(0), y.flip(0)):
        sum_of = share * sum_of + row
        rows.insert(0, sum_of)
    return torch.stack(rows)


def counts(x):
    return torch.bincount(x.abs().int().flatten().long(), minlength=COLUMNS)


tile_gathered = of_kind("gathered", lambda x, y: x.gather(0, ((y.abs() * 4).int() % ROWS).long()))
tile_scanned = of_kind("scanned", decayed_rows)
tile_rotated = of_kind("rotated", lambda x, y: torch.cat([-x[:, 16:], x[:, :16]], 1) + y)
tile_picked = of_kind("picked", lambda x, y: y * (torch.arange(COLUMNS) == x.argmax(1)[:, None]))
tile_counted = of_kind("counted", lambda x, y: y + counts(x))
tile_running = of_kind(
    "running", lambda x, y: x * x.sum(1).cumsum(0)[:, None] + y.max(0).values.cumsum(0)
)


# -- tiles of two orders and two dtypes
@triton.jit
def tile_of(tiles, row, column, TRANSPOSED: tl.constexpr):
    if TRANSPOSED:
        return tiles.load([column, row]).T
    return tiles.load([row, column])


@triton.jit
def residual_norm_kernel(x, residual, weight, out, eps, BM: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0) * BM
    v = tile_of(x, row, 0, False).to(tl.float32) + tile_of(residual, row, 0, True)
    centered = v - (tl.sum(v, 1) / C)[:, None]
    scale = tl.rsqrt(tl.sum(centered * centered, 1) / C + eps)
    weights = tl.load(weight + tl.arange(0, C))
    out.store([row, 0], (centered * scale[:, None] * weights[None, :]).to(tl.float16))


def tile_residual_norm():
    x, residual, weight = normal(20, 64, dtype=torch.float16), normal(64, 20, seed=1), normal(64)
    out = torch.zeros(20, 64, dtype=torch.float16)
    tiles = [TensorDescriptor.from_tensor(t, [8, 64]) for t in (x, out)]
    across = TensorDescriptor.from_tensor(residual, [64, 8])
    residual_norm_kernel[(3,)](tiles[0], across, weight, tiles[1], 1e-5, 8, 64)
    sums = x.float() + residual.T
    return out, torch.nn.functional.layer_norm(sums, (64,), weight, eps=1e-5)


# -- gradients of attention whose keys are operands on both sides
@triton.jit
def gradient_kernel(
    q, k, v, do, lse, delta, dk, dv, dq, L, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    kept = j[:, None] * D + d[None, :]
    keys = tl.load(k + kept, mask=j[:, None] < L, other=0.0)
    values = tl.load(v + kept, mask=j[:, None] < L, other=0.0)
    dkeys = tl.zeros((BN, D), tl.float32)
    dvalues = tl.zeros((BN, D), tl.float32)
    for start in range(0, L, BM):
        i = start + tl.arange(0, BM)
        place = i[:, None] * D + d[None, :]
        queries = tl.load(q + place, mask=i[:, None] < L, other=0.0)
        grads = tl.load(do + place, mask=i[:, None] < L, other=0.0)
        p = tl.exp(
            tl.dot(keys, tl.trans(queries)) * scale
            - tl.load(lse + i, mask=i < L, other=0.0)[None, :]
        )
        p = tl.where(i[None, :] < L, p, 0.0)
        dvalues += tl.dot(p.to(grads.dtype), grads)
        dp = tl.dot(values, tl.trans(grads)) - tl.load(delta + i, mask=i < L, other=0.0)[None, :]
        ds = (p * dp * scale).to(queries.dtype)
        dkeys += tl.dot(ds, queries)
        tl.atomic_add(dq + place, tl.dot(tl.trans(ds), keys), mask=i[:, None] < L, sem="relaxed")
    tl.store(dk + kept, dkeys, mask=j[:, None] < L)
    tl.store(dv + kept, dvalues, mask=j[:, None] < L)


def gradients():
    L, D, scale = 100, 32, 0.2
    q, k, v, do = (normal(L, D, seed=seed, dtype=torch.float16) * 0.5 for seed in range(4))
    known = [t.float().requires_grad_() for t in (q, k, v)]
    scores = known[0] @ known[1].T * scale
    result = scores.softmax(1) @ known[2]
    result.backward(do.float())
    lse, delta = scores.logsumexp(1).detach(), (result * do.float()).sum(1).detach()
    dq, dk, dv = (torch.zeros(L, D) for _ in range(3))
    gradient_kernel[(2,)](q, k, v, do, lse, delta, dk, dv, dq, L, scale, D, 64, 64)
    return torch.cat([dq, dk, dv]).half(), torch.cat([t.grad for t in known])


CASES = [
    tile_gathered,
    tile_scanned,
    tile_rotated,
    tile_picked,
    tile_counted,
    tile_running,
    tile_residual_norm,
    gradients,
]
