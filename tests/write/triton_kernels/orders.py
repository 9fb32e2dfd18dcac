"""Kernels of plain Triton that order, count and add together: sorts, histograms, scans, locks and tickets."""

import torch
import triton
import triton.language as tl
from triton.language.standard import _log2

MASKS = {"causal": 1}
FULL: tl.constexpr = tl.constexpr(-1)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(low, high, *shape, seed=0, dtype=torch.int32):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# a bitonic sort of keys with their places, written by hand with reshapes


@triton.jit
def compare_swap(x, ids, flip, i: tl.constexpr, n_dims: tl.constexpr):
    n_outer: tl.constexpr = x.numel >> n_dims
    shape: tl.constexpr = [n_outer * 2**i, 2, 2 ** (n_dims - i - 1)]
    y = tl.reshape(x, shape)
    half = tl.arange(0, 2)[None, :, None]
    left = tl.broadcast_to(tl.sum(y * (1 - half), 1)[:, None, :], shape).to(y.dtype)
    right = tl.broadcast_to(tl.sum(y * half, 1)[:, None, :], shape).to(y.dtype)
    left, right = tl.reshape(left, x.shape), tl.reshape(right, x.shape)
    y_idx = tl.reshape(ids, shape)
    left_idx = tl.broadcast_to(tl.sum(y_idx * (1 - half), 1)[:, None, :], shape)
    right_idx = tl.broadcast_to(tl.sum(y_idx * half, 1)[:, None, :], shape)
    left_idx, right_idx = (
        tl.reshape(left_idx, x.shape).to(y_idx.dtype),
        tl.reshape(right_idx, x.shape).to(y_idx.dtype),
    )
    idtype = tl.core.get_int_dtype(bitwidth=x.dtype.primitive_bitwidth, signed=True)
    ileft, iright, ix = (
        left.to(idtype, bitcast=True),
        right.to(idtype, bitcast=True),
        x.to(idtype, bitcast=True),
    )
    cond = (left > right) != flip
    ret = ix ^ tl.where(cond, ileft ^ iright, tl.zeros_like(ix))
    new_ids = ids ^ tl.where(cond, left_idx ^ right_idx, tl.zeros_like(ids))
    return ret.to(x.dtype, bitcast=True), new_ids


@triton.jit
def bitonic_stage(x, ids, stage: tl.constexpr, order: tl.constexpr, n_dims: tl.constexpr):
    n_outer: tl.constexpr = x.numel >> n_dims
    tl.static_assert(stage <= n_dims)
    if order == 2:
        shape: tl.constexpr = [n_outer * 2 ** (n_dims - 1 - stage), 2, 2**stage]
        flip = tl.reshape(tl.broadcast_to(tl.arange(0, 2)[None, :, None], shape), x.shape)
    else:
        flip = order
    for i in tl.static_range(stage):
        x, ids = compare_swap(x, ids, flip, i + (n_dims - stage), n_dims)
    return x, ids


@triton.jit
def sort_pairs(x, ids, dim: tl.constexpr = None, descending: tl.constexpr = tl.core.CONSTEXPR_0):
    last: tl.constexpr = len(x.shape) - 1 if dim is None else dim
    tl.static_assert(last == len(x.shape) - 1, "only the last dimension is sorted")
    n_dims: tl.constexpr = _log2(x.shape[last])
    for i in tl.static_range(1, n_dims + 1):
        x, ids = bitonic_stage(x, ids, i, 2 if i < n_dims else descending, n_dims)
    return x, ids


@triton.jit
def sort_kernel(
    x_ptr, values_ptr, ids_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr, DESCENDING: tl.constexpr
):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    fill = -1e38 if DESCENDING else 1e38
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=fill)
    x, ids = sort_pairs(x[None, :], i[None, :], 1, descending=DESCENDING)
    x, ids = tl.ravel(x), ids.reshape(BLOCK)
    tl.store(values_ptr + row * K + i, x, mask=i < K)
    tl.store(ids_ptr + row * K + i, ids, mask=i < K)


def sorted_pairs():
    R, n, K = 3, 13, 5
    x, values, ids = normal(R, n), torch.empty(R, K), torch.empty(R, K, dtype=torch.int64)
    sort_kernel[(R,)](x, values, ids, n, K, 16, DESCENDING=True)
    want = x.sort(1, descending=True)
    return torch.stack([values, ids.float()]), torch.stack(
        [want.values[:, :K], want.indices[:, :K].float()]
    )


# the largest K one after the other, with ties to the left, and their softmax; experts in groups


@triton.jit
def gating_kernel(
    logits_ptr, bias_ptr, weight_ptr, id_ptr, n_rows, stride_r: "tl.int64", E: tl.constexpr, G: tl.constexpr, TOP_G: tl.constexpr,
    TOP_K: tl.constexpr, RENORM: tl.constexpr, SCALE: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    e = tl.arange(0, E)
    keep = rows < n_rows
    x = tl.load(
        logits_ptr + rows[:, None] * stride_r + e[None, :], mask=keep[:, None], other=-float("inf")
    ).to(tl.float32)
    p = tl.sigmoid(x)
    scored = p + tl.load(bias_ptr + e)[None, :]
    grouped = tl.reshape(scored, (BR, G, E // G))
    first = tl.max(grouped, 2, keep_dims=True)
    spot = tl.argmax(grouped, axis=2, keep_dims=True)
    rest = tl.where(tl.arange(0, E // G)[None, None, :] == spot, float("-inf"), grouped)
    score = tl.reshape(first + tl.max(rest, axis=2, keep_dims=True), (BR, G))
    chosen = tl.zeros((BR, G), dtype=tl.int1)
    for _ in tl.static_range(TOP_G):
        best = tl.argmax(tl.where(chosen, float("-inf"), score), 1)
        chosen = chosen | (tl.arange(0, G)[None, :] == best[:, None])
    open_e = tl.reshape(tl.broadcast_to(chosen[:, :, None], (BR, G, E // G)), (BR, E))
    scored = tl.where(open_e, scored, float("-inf"))
    total = tl.zeros((BR,), dtype=tl.float32)
    for k in range(TOP_K):
        best = tl.argmax(scored, axis=1)
        hit = e[None, :] == best[:, None]
        w = tl.sum(tl.where(hit, p, 0.0), axis=1)
        total += w
        tl.store(id_ptr + rows * TOP_K + k, best, mask=keep)
        tl.store(weight_ptr + rows * TOP_K + k, w, mask=keep)
        scored = tl.where(hit, float("-inf"), scored)
    if RENORM:
        tl.debug_barrier()
        for k in range(TOP_K):
            w = tl.load(weight_ptr + rows * TOP_K + k, mask=keep)
            tl.store(weight_ptr + rows * TOP_K + k, w / total * SCALE, mask=keep)


def grouped_gating():
    R, E, G, TG, K = 10, 16, 4, 2, 3
    x, bias = normal(R, E), normal(E, seed=1) * 0.1
    w, ids = torch.empty(R, K), torch.empty(R, K, dtype=torch.int32)
    gating_kernel[(triton.cdiv(R, 8),)](
        x, bias, w, ids, R, x.stride(0), E=E, G=G, TOP_G=TG, TOP_K=K, RENORM=True, SCALE=2.5, BR=8
    )
    p = x.sigmoid()
    s = (p + bias).view(R, G, -1)
    top = s.topk(2, -1).values.sum(-1).topk(TG, -1).indices
    keep = torch.zeros(R, G).scatter_(1, top, 1).bool()
    s = s.masked_fill(~keep[..., None], -float("inf")).view(R, E)
    want = s.topk(K, -1).indices
    ww = p.gather(1, want)
    return torch.cat([w, ids.float()]), torch.cat(
        [ww / ww.sum(1, keepdim=True) * 2.5, want.float()]
    )


# a prefix sum over blocks in one pass: states and values in one word of 64 bits, which blocks look back at


@triton.jit
def pack(value, flag):
    return (flag.to(tl.uint64) << 32) | value.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit
def exclusive_kernel(x_ptr, out_ptr, states_ptr, n, BLOCK: tl.constexpr, ADD: tl.constexpr = 0):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    own = tl.sum(x, 0)
    tl.atomic_xchg(states_ptr + pid, pack(own, tl.cast(1, tl.int32)), sem="release")
    before = tl.cast(0, tl.int32)
    look = pid - 1
    while look >= 0:
        word = tl.atomic_add(states_ptr + look, 0, sem="acquire")
        flag = (word >> 32).to(tl.int32)
        if flag > 0:
            before += (word & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
            if flag == 2:
                look = 0
            look -= 1
    tl.atomic_xchg(states_ptr + pid, pack(before + own, tl.cast(2, tl.int32)), sem="release")
    tl.store(out_ptr + i, before + tl.cumsum(x, 0) - x + ADD, mask=i < n)


def exclusive_sums():
    n = 150
    x, out, states = (
        whole(-9, 30, n),
        torch.empty(n, dtype=torch.int32),
        torch.zeros(5, dtype=torch.uint64),
    )
    exclusive_kernel[(5,)](x, out, states, n, BLOCK=32)
    return out.float(), (x.cumsum(0) - x).float()


# products whose tiles several programs share, in order under a lock each


@triton.jit
def share_tile(
    a,
    b,
    c,
    locks,
    M,
    N,
    K,
    tile,
    first,
    last,
    per_tile,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    pid_m, pid_n = tile // tl.cdiv(N, BN), tile % tl.cdiv(N, BN)
    m, n, k = pid_m * BM + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(first, last):
        kk = step * BK + k
        x = tl.load(
            a + m[:, None] * K + kk[None, :], mask=(m[:, None] < M) & (kk[None, :] < K), other=0.0
        )
        y = tl.load(
            b + kk[:, None] * N + n[None, :], mask=(kk[:, None] < K) & (n[None, :] < N), other=0.0
        )
        acc = tl.dot(x, y, acc)
    mask = (m[:, None] < M) & (n[None, :] < N)
    out = c + m[:, None] * N + n[None, :]
    if last == per_tile:
        if first == 0:
            tl.store(out, acc, mask=mask)
        else:
            tl.atomic_add(out, acc, mask=mask, sem="relaxed")
    else:
        tl.atomic_add(out, acc, mask=mask)
    tl.atomic_add(locks + tile, 1)


@triton.jit()
def stream_kernel(
    a,
    b,
    c,
    locks,
    M,
    N,
    K,
    total,
    per_program,
    rest,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    pid = tl.program_id(0)
    per_tile = tl.cdiv(K, BK)
    start = pid * per_program + tl.minimum(pid, rest)
    end = (pid + 1) * per_program + tl.minimum(pid + 1, rest)
    while start < end:
        tile = start // per_tile
        first = start - tile * per_tile
        stop = tl.minimum(end, (tile + 1) * per_tile)
        share_tile(
            a, b, c, locks, M, N, K, tile, first, stop - tile * per_tile, per_tile, BM, BN, BK
        )
        start = stop


def shared_tiles():
    M, N, K = 40, 30, 70
    a, b, c = (
        normal(M, K, dtype=torch.float16),
        normal(K, N, seed=1, dtype=torch.float16),
        torch.zeros(M, N),
    )
    tiles, steps, programs = 3, triton.cdiv(K, 16), 4
    locks = torch.zeros(tiles, dtype=torch.int32)
    total = tiles * steps
    stream_kernel[programs,](
        a, b, c, locks, M, N, K, total, total // programs, total % programs, BM=16, BN=32, BK=16
    )
    return torch.cat([c.flatten(), locks.clamp(max=1)]).half(), torch.cat(
        [(a.float() @ b.float()).flatten(), torch.ones(3)]
    )


# boxes that hide others: rows of bits, and a loop that takes the best one left


@triton.jit
def overlap_kernel(boxes, out, n, threshold, B: tl.constexpr):
    i, j = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    keep_i, keep_j = i < n, j < n
    x1 = tl.load(boxes + i * 4 + 0, keep_i, 0.0)[:, None]
    y1 = tl.load(boxes + i * 4 + 1, keep_i, 0.0)[:, None]
    x2 = tl.load(boxes + i * 4 + 2, keep_i, 0.0)[:, None]
    y2 = tl.load(boxes + i * 4 + 3, keep_i, 0.0)[:, None]
    u1 = tl.load(boxes + j * 4 + 0, keep_j, 0.0)[None, :]
    v1 = tl.load(boxes + j * 4 + 1, keep_j, 0.0)[None, :]
    u2 = tl.load(boxes + j * 4 + 2, keep_j, 0.0)[None, :]
    v2 = tl.load(boxes + j * 4 + 3, keep_j, 0.0)[None, :]
    wide = tl.maximum(tl.minimum(x2, u2) - tl.maximum(x1, u1), 0.0)
    high = tl.maximum(tl.minimum(y2, v2) - tl.maximum(y1, v1), 0.0)
    shared = wide * high
    union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - shared
    hides = (shared > threshold * union) & (i[:, None] < j[None, :]) & keep_j[None, :]
    bits = tl.sum(hides.to(tl.int32) << (tl.arange(0, B) % 32)[None, :], axis=1)
    tl.store(out + i * tl.num_programs(1) + tl.program_id(1), bits.to(tl.int32), mask=keep_i)


@triton.jit
def suppress_kernel(bits, kept, n, WORDS: tl.constexpr):
    w = tl.arange(0, WORDS)
    gone = tl.zeros((WORDS,), dtype=tl.int32)
    i = 0
    while i < n:
        word = tl.sum(tl.where(w == i // 32, gone, 0), 0)
        if (word >> (i % 32)) & 1 == 0:
            gone |= tl.load(bits + i * WORDS + w)
            tl.store(kept + i, True)
        else:
            tl.store(kept + i, False)
        i += 1


def suppressed():
    n = 45
    corner, size = (
        torch.rand(n, 2, generator=torch.Generator().manual_seed(0)) * 4,
        torch.rand(n, 2, generator=torch.Generator().manual_seed(1)) + 0.5,
    )
    boxes = torch.cat([corner, corner + size], 1)
    bits, kept = torch.zeros(64, 2, dtype=torch.int32), torch.zeros(n, dtype=torch.bool)
    overlap_kernel[(2, 2)](boxes, bits, n, 0.3, B=32)
    suppress_kernel[(1,)](bits, kept, n, WORDS=2)
    area, gone = size.prod(1), torch.zeros(n, dtype=torch.bool)
    low, high = (
        torch.maximum(boxes[:, None, :2], boxes[None, :, :2]),
        torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]),
    )
    both = (high - low).clamp(min=0).prod(-1)
    iou = both / (area[:, None] + area - both)
    for i in range(n):
        if not gone[i]:
            gone |= (iou[i] > 0.3) & (torch.arange(n) > i)
    return kept.float(), (~gone).float()


# sums, largest values and counts of segments by one scan of tuples, and quantiles by counts


@triton.jit
def join_segments(f1, s1, m1, f2, s2, m2):
    return f1 | f2, tl.where(f2 != 0, s2, s1 + s2), tl.where(f2 != 0, m2, tl.maximum(m1, m2))


@triton.jit
def segments_kernel(
    x_ptr, ids_ptr, sums_ptr, most_ptr, counts_ptr, n, BLOCK: tl.constexpr, SEGMENTS: tl.constexpr
):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    own = tl.load(ids_ptr + i, mask=i < n, other=SEGMENTS - 1)
    before = tl.load(ids_ptr + i - 1, mask=(i > 0) & (i < n), other=-1)
    after = tl.load(ids_ptr + i + 1, mask=i + 1 < n, other=-1)
    first = (own != before).to(tl.int32)
    _, total, most = tl.associative_scan((first, x, x), axis=0, combine_fn=join_segments)
    ends = (own != after) & (i < n)
    tl.store(sums_ptr + own, total, mask=ends)
    tl.store(most_ptr + own, most, mask=ends)
    tl.store(counts_ptr + tl.arange(0, SEGMENTS), tl.histogram(own, SEGMENTS, mask=i < n))


def segments():
    n, S = 50, 8
    x, ids = normal(n), whole(0, S, n).sort().values
    sums, most, counts = torch.zeros(S), torch.full((S,), -9.0), torch.empty(S, dtype=torch.int32)
    segments_kernel[(1,)](x, ids, sums, most, counts, n, BLOCK=64, SEGMENTS=S)
    want = torch.zeros(S).index_add(0, ids.long(), x)
    top = torch.full((S,), -9.0).scatter_reduce(0, ids.long(), x, "amax")
    return torch.stack([sums, most, counts.float()]), torch.stack(
        [want, top, ids.bincount(minlength=S).float()]
    )


CASES = [sorted_pairs, grouped_gating, exclusive_sums, shared_tiles, suppressed, segments]
