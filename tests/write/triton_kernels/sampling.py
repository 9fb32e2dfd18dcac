"""Sampling, tiles of several groups, named tuples, and ops of all kinds."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

# -- sampling ---------------------------------------------------------------------------------------------


@triton.jit
def top_p_sample_kernel(logits, out, seeds, temperature, top_p, V, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + offs, mask=offs < V, other=-float("inf")) / temperature
    p = tl.softmax(x)
    # Sort keys of 64 bits: the probability in the high half, the column in the low one.
    key = (p.to(tl.int32, bitcast=True).to(tl.int64) << 32) | offs.to(tl.int64)
    key = tl.sort(key, descending=True)
    sorted_p = (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    index = (key & 0xFFFFFFFF).to(tl.int32)
    before = tl.cumsum(sorted_p, 0) - sorted_p
    kept = before < top_p
    u = tl.rand(tl.load(seeds + row), offs)
    gumbel = -tl.log(-tl.log(tl.maximum(u, 1e-20)))
    score = tl.where(kept, tl.log(sorted_p) + gumbel, -float("inf"))
    best = tl.argmax(score, axis=0)
    tl.store(out + row, tl.sum(tl.where(offs == best, index, 0)))
    tl.store(out + tl.num_programs(0) + row, tl.sum(kept.to(tl.int32)))


# -- tiles of several groups, whose epilogue is split -----------------------------------------------------


@triton.jit
def group_tiles_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    group_offsets,
    G: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    NUM_SMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EPILOGUE_SUBTILE: tl.constexpr,
):
    start_pid = tl.program_id(axis=0)
    b_desc = tl.make_tensor_descriptor(
        b_ptr, shape=[G * N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K]
    )
    n_tiles: tl.constexpr = N // BLOCK_N
    first_tile = 0
    for g in range(G):
        m_start = tl.load(group_offsets + g)
        m_size = tl.load(group_offsets + g + 1) - m_start
        tiles = tl.cdiv(m_size, BLOCK_M) * n_tiles
        a_desc = tl.make_tensor_descriptor(
            a_ptr + m_start * K, shape=[m_size, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K]
        )
        c_desc = tl.make_tensor_descriptor(
            c_ptr + m_start * N,
            shape=[m_size, N],
            strides=[N, 1],
            block_shape=[BLOCK_M, BLOCK_N if not EPILOGUE_SUBTILE else BLOCK_N // 2],
        )
        skip = (start_pid + NUM_SMS - first_tile % NUM_SMS) % NUM_SMS
        for tile in tl.range(skip, tiles, NUM_SMS, flatten=False):
            offs_m = (tile // n_tiles) * BLOCK_M
            offs_n = (tile % n_tiles) * BLOCK_N
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for k in range(0, K, BLOCK_K):
                a = a_desc.load([offs_m, k])
                b = b_desc.load([g * N + offs_n, k])
                acc = tl.dot(a, b.T, acc)
            if EPILOGUE_SUBTILE:
                acc = tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2))
                acc = tl.permute(acc, (0, 2, 1))
                acc0, acc1 = tl.split(acc)
                c_desc.store([offs_m, offs_n], acc0.to(tl.float16))
                c_desc.store([offs_m, offs_n + BLOCK_N // 2], acc1.to(tl.float16))
            else:
                c_desc.store([offs_m, offs_n], acc.to(tl.float16))
        first_tile += tiles


# -- named tuples, functions of tuples, and ops of all kinds ---------------------------------------------


class Strided(NamedTuple):
    ptr: torch.Tensor
    stride: int
    cols: int


@triton.constexpr_function
def log2_of(n):
    return n.bit_length() - 1


@triton.jit
def _rows(x, row, offs):
    return tl.load(x.ptr + row * x.stride + offs, mask=offs < x.cols, other=0.0)


@triton.jit
def _min_max(a, b):
    return tl.minimum(a, b), tl.maximum(a, b)


@triton.jit
def _prod(a, b):
    return a * b


@triton.jit
def named_kernel(x: Strided, y, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    a = _rows(x, row, offs)
    b = _rows(Strided(y.ptr, y.stride, y.cols), row, offs)
    lo, hi = _min_max(a, b)
    levels: tl.constexpr = log2_of(BLOCK)
    total = tl.sum(hi - lo) + levels
    product = tl.reduce(tl.where(offs < x.cols, 1.0 + 0.01 * a, 1.0), 0, _prod)
    spread = tl.max(hi, return_indices=False) - tl.min(lo)
    odd = tl.xor_sum((a > 0).to(tl.int32), 0)
    tl.store(
        out + row * 4 + tl.arange(0, 4),
        tl.where(
            tl.arange(0, 4) == 0,
            total,
            tl.where(
                tl.arange(0, 4) == 1,
                product,
                tl.where(tl.arange(0, 4) == 2, spread, odd.to(tl.float32)),
            ),
        ),
    )


@triton.jit
def misc_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    k = tl.load(y_ptr + i, i < n, 0)
    acc = x
    for width in tl.static_range(1, 4):
        acc += tl.gather(x, (i + width) % BLOCK, 0)
    acc = acc + tl.cumprod(tl.where(i < 8, 1.1, 1.0), 0)
    acc = tl.where(k % 3 == 0, acc, -acc) if BLOCK > 4 else acc
    hi = tl.umulhi(k.to(tl.uint32), 0x80000000)
    acc += hi.to(tl.float32) + (k << 2 >> 1).to(tl.float32) + (k ^ 5 | 2 & 3).to(tl.float32)
    acc += (
        tl.erf(x)
        + tl.floor(x)
        - tl.ceil(x)
        + tl.abs(k).to(tl.float32)
        + x.to(tl.bfloat16).to(tl.float32) * 0
    )
    acc = tl.clamp(acc, -50.0, 50.0)
    packed = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $2;", "=f,f,f", [acc, x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.device_assert(n <= BLOCK, "too many")
    tl.store(
        out_ptr + i,
        tl.flip(packed, 0) + tl.ravel(tl.trans(tl.reshape(x, (BLOCK // 8, 8)))),
        mask=i < BLOCK,
    )


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def top_p():
    rows, V = 6, 100
    x, seeds = normal(rows, V) * 3, torch.arange(rows, dtype=torch.int32)
    out = torch.zeros(2, rows, dtype=torch.int32)
    top_p_sample_kernel[(rows,)](x, out, seeds, 0.8, 0.7, V, x.stride(0), BLOCK=128)
    p, order = (x / 0.8).softmax(-1).sort(-1, descending=True)
    kept = (p.cumsum(-1) - p < 0.7).sum(-1)
    for r in range(rows):
        assert out[0, r] in order[r, : kept[r]]
    return out[1], kept


def group_tiles(subtile=True):
    sizes, N, K = [40, 8, 8, 72], 64, 96
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    a, b = normal(128, K).half(), normal(4, N, K, seed=1).half() / 8
    c = torch.zeros(128, N, dtype=torch.float16)
    group_tiles_kernel[(3,)](
        a,
        b,
        c,
        offsets,
        G=4,
        N=N,
        K=K,
        NUM_SMS=3,
        BLOCK_M=32,
        BLOCK_N=32,
        BLOCK_K=32,
        EPILOGUE_SUBTILE=subtile,
    )
    parts = [
        a[o : o + s].float() @ b[g].float().T
        for g, (o, s) in enumerate(zip(offsets.tolist(), sizes))
    ]
    return c, torch.cat(parts)


def group_tiles_whole():
    return group_tiles(False)


def named():
    x, y = normal(3, 50), normal(3, 50, seed=1)
    out = torch.empty(3, 4)
    named_kernel[(3,)](Strided(x, x.stride(0), 50), Strided(y, y.stride(0), 50), out, BLOCK=64)
    lo, hi = torch.minimum(x, y), torch.maximum(x, y)
    spread = hi.amax(1).clamp(min=0) - lo.amin(1).clamp(max=0)
    return out, torch.stack(
        [(hi - lo).sum(1) + 6, (1 + 0.01 * x).prod(1), spread, ((x > 0).sum(1) % 2).float()], 1
    )


def assembly_and_more():
    n, B = 64, 64
    x = normal(n)
    k = torch.randint(0, 1000, (n,), dtype=torch.int32, generator=torch.Generator().manual_seed(5))
    out = torch.empty(n)
    misc_kernel[(1,)](x, k, out, n, BLOCK=B)
    acc = x.clone()
    for w in range(1, 4):
        acc = acc + x.roll(-w)
    acc = acc + torch.where(torch.arange(B) < 8, 1.1, 1.0).cumprod(0)
    acc = torch.where(k % 3 == 0, acc, -acc)
    acc = acc + (k // 2).float() + (k << 2 >> 1).float() + (k ^ 5 | 2 & 3).float()
    acc = acc + torch.erf(x) + x.floor() - x.ceil() + k.abs().float()
    acc = acc.clamp(-50, 50) + x
    return out, acc.flip(0) + x.view(B // 8, 8).T.reshape(-1)


CASES = [top_p, group_tiles, group_tiles_whole, named, assembly_and_more]
