"""Kernels of plain Triton that sample, route and pack, in the styles of public libraries of models."""

import torch
import triton
import triton.language as tl


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- sampling by top-p with a bisection, and Gumbel noise of seeds in memory


@triton.jit
def sample_kernel(logits, seeds, top_p, out, kept_out, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(logits + row * n + i, mask=i < n, other=float("-inf")).to(tl.float32)
    p = tl.softmax(x)
    wanted = tl.load(top_p + row)
    low, high = 0.0, tl.max(p, 0)
    step = 0
    while step < STEPS and high - low > 1e-7:
        middle = (low + high) * 0.5
        total = tl.sum(tl.where(p >= middle, p, 0.0), 0)
        low, high = (
            tl.where(total >= wanted, middle, low),
            tl.where(total >= wanted, high, middle),
        )
        step += 1
    kept = p >= low
    tl.store(kept_out + row, tl.sum(kept.to(tl.int32), 0))
    seed = tl.load(seeds + row)
    noise = tl.rand(seed, i)
    gumbel = -tl.log(-tl.log(tl.maximum(noise, 1e-10)))
    score = tl.where(kept, tl.log(p) + 0.0 * gumbel, float("-inf"))
    value, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.device_assert(index < n, "past the end")
    tl.store(out + row, index.to(tl.int64))


def top_p_bisected():
    R, N = 4, 50
    logits, seeds = normal(R, N) * 2, torch.arange(R)
    p = torch.tensor([0.1, 0.5, 0.9, 0.99])
    out, kept = torch.empty(R, dtype=torch.int64), torch.empty(R, dtype=torch.int32)
    sample_kernel[(R,)](logits, seeds, p, out, kept, N, BLOCK=64, STEPS=40)
    ordered = logits.softmax(1).sort(1, descending=True).values.cumsum(1)
    want = (ordered < p[:, None]).sum(1) + 1
    return torch.stack([out, kept.long()]).float(), torch.stack([logits.argmax(1), want]).float()


# --- alignment of experts' blocks, and the weighted sum of their rows


@triton.jit
def align_kernel(
    experts,
    sorted_ids,
    block_experts,
    total,
    n,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    N: tl.constexpr,
):
    i = tl.arange(0, N)
    e = tl.arange(0, E)
    expert = tl.load(experts + i, mask=i < n, other=0)
    counts = tl.histogram(expert, E, mask=i < n)
    padded = tl.cdiv(counts, BLOCK) * BLOCK
    ends = tl.cumsum(padded, 0)
    starts = ends - padded
    tl.store(total, tl.sum(padded, 0))
    same = (expert[:, None] == e[None, :]) & (i < n)[:, None]
    rank = tl.cumsum(same.to(tl.int32), 0) - 1
    place = tl.sum(tl.where(same, rank + starts[None, :], 0), 1)
    tl.store(sorted_ids + place, i, mask=i < n)
    blocks = tl.arange(0, N)
    owner = tl.sum((blocks[:, None] * BLOCK >= ends[None, :]).to(tl.int32), axis=1)
    tl.store(block_experts + blocks, owner, mask=owner < E)


def align_experts():
    n, E, BLOCK, N = 27, 4, 4, 32
    experts = torch.randint(0, E, (n,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    ids = torch.full((n + E * BLOCK,), n, dtype=torch.int32)
    owners, total = (
        torch.full((N,), -1, dtype=torch.int32),
        torch.empty(1, dtype=torch.int32),
    )
    align_kernel[(1,)](experts, ids, owners, total, n, E=E, BLOCK=BLOCK, N=N)
    want, blocks = [], []
    for one in range(E):
        mine = (experts == one).nonzero().flatten().tolist()
        size = -(-len(mine) // BLOCK) * BLOCK
        want += mine + [n] * (size - len(mine))
        blocks += [one] * (size // BLOCK)
    length = len(want)
    want += [n] * (len(ids) - length)
    blocks += [-1] * (N - len(blocks))
    return torch.cat([ids, owners, total]).float(), torch.tensor(want + blocks + [length]).float()


@triton.jit
def combine_kernel(x, weights, out, D, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    d = block * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for k in tl.static_range(TOP):
        w = tl.load(weights + row * TOP + k)
        if w != 0:
            acc += w * tl.load(x + (row * TOP + k) * D + d, mask=d < D, other=0.0)
    tl.store(out + row * D + d, acc, mask=d < D)


def combine_experts():
    R, TOP, D = 3, 4, 50
    x, w = (
        normal(R * TOP, D),
        torch.rand(R, TOP, generator=torch.Generator().manual_seed(5)),
    )
    w[1, 2] = 0
    out = torch.empty(R, D)
    combine_kernel[(R, triton.cdiv(D, 32))](x, w, out, D, TOP, 32)
    return out, (x.view(R, TOP, D) * w[..., None]).sum(1)


# --- dropout whose mask is packed to bits, and unpacked


@triton.jit
def pack_kernel(x, out, bits, seed_ptr, p, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    words = pid * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    i = words[:, None] * 8 + tl.arange(0, 8)[None, :]
    seed = tl.load(seed_ptr)
    keep = tl.rand(seed, i.to(tl.uint32), n_rounds=7) > p
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, tl.where(keep, v / (1 - p), 0.0), mask=i < n)
    byte = tl.sum(keep.to(tl.uint32) << tl.arange(0, 8)[None, :].to(tl.uint32), 1)
    tl.store(bits + words, byte.to(tl.uint8), mask=words < tl.cdiv(n, 8))


@triton.jit
def unpack_kernel(bits, grad, out, p, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(bits + (i >> 3), mask=i < n, other=0)
    keep = ((byte >> (i & 7).to(tl.uint8)) & 1).to(tl.int1)
    g = tl.load(grad + i, mask=i < n, other=0.0, volatile=True)
    tl.store(out + i, tl.where(keep, g * (1 / (1 - p)), 0.0), mask=i < n)


def packed_dropout():
    n, p = 200, 0.25
    x, seed = normal(n), torch.tensor([1234])
    out, back, bits = (
        torch.empty(n),
        torch.empty(n),
        torch.zeros(n // 8, dtype=torch.uint8),
    )
    pack_kernel[(4,)](x, out, bits, seed, p, n, BLOCK=64)
    unpack_kernel[(2,)](bits, x, back, p, n, BLOCK=128)
    keep = (bits[:, None].int() >> torch.arange(8)) & 1
    share = keep.float().mean()
    assert 0.6 < share < 0.9
    want = torch.where(keep.flatten() == 1, x / (1 - p), torch.zeros(n))
    return torch.cat([out, back]), torch.cat([want, want])


# --- blocks quantized to a table of codes, found by halving, and sorted rows


@triton.jit
def code_kernel(x, code, q, absmax, n, BLOCK: tl.constexpr, CODES: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    largest = tl.max(tl.abs(v), 0)
    tl.store(absmax + tl.program_id(0), largest)
    v = v / largest
    table = tl.load(code + tl.arange(0, CODES))
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.full([BLOCK], CODES - 1, tl.int32)
    for _ in tl.static_range(8):
        pivot = (low + high) // 2
        above = v > tl.gather(table, pivot, 0)
        low = tl.where(above, pivot, low)
        high = tl.where(above, high, pivot)
    at_low, at_high = tl.gather(table, low, 0), tl.gather(table, high, 0)
    nearest = tl.where(tl.abs(v - at_low) <= tl.abs(v - at_high), low, high)
    tl.store(q + i, nearest.to(tl.uint8), mask=i < n)


def code_blocks():
    n, BLOCK, CODES = 150, 64, 16
    code, x = torch.linspace(-1, 1, CODES), normal(n)
    q, absmax = torch.empty(n, dtype=torch.uint8), torch.empty(3)
    code_kernel[(3,)](x, code, q, absmax, n, BLOCK, CODES)
    scale = torch.stack([part.abs().max() for part in x.split(BLOCK)])
    scaled = torch.cat([p / s for p, s in zip(x.split(BLOCK), scale)])
    return torch.cat([q.float(), absmax]), torch.cat(
        [(scaled[:, None] - code).abs().argmin(1).float(), scale]
    )


@triton.jit
def beams_kernel(x, values, order, n, B: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=float("-inf"))
    bits = v.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, -(bits & 0x7FFFFFFF).to(tl.int64), (bits & 0x7FFFFFFF).to(tl.int64))
    both = (key << 16) | (B - 1 - i).to(tl.int64)
    ranked = tl.sort(both, descending=True)
    place = B - 1 - (ranked & 0xFFFF).to(tl.int32)
    picked = tl.gather(v, place, 0)
    tl.store(values + row * K + i, picked, mask=i < K)
    tl.store(order + row * K + i, place, mask=i < K)


def beams():
    R, n, K = 3, 29, 5
    x = normal(R, n)
    values, order = torch.empty(R, K), torch.empty(R, K, dtype=torch.int32)
    beams_kernel[(R,)](x, values, order, n, B=32, K=K)
    want = x.topk(K, 1)
    return torch.cat([values, order.float()]), torch.cat([want.values, want.indices.float()])


CASES = [top_p_bisected, align_experts, combine_experts, packed_dropout, code_blocks, beams]  # fmt: skip
