"""Kernels of plain Triton in the style of serving libraries: experts, caches, sparse and quantized products."""

import math

import torch
import triton
import triton.language as tl


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- experts: tokens are counted, sorted and multiplied ------------------------------------------------


@triton.jit
def count_experts_kernel(topk_ids, counts, ranks, n, E: tl.constexpr, BLOCK: tl.constexpr):
    """Count the tokens of each expert, and give each of them a rank."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    ids = tl.load(topk_ids + offs, mask=mask, other=E)
    one_hot = (ids[:, None] == tl.arange(0, E)[None, :]).to(tl.int32)
    before = tl.cumsum(one_hot, axis=0) - one_hot
    total = tl.sum(one_hot, axis=0)
    begin = tl.atomic_add(counts + tl.arange(0, E), total, sem="relaxed")
    rank = tl.sum(tl.where(one_hot > 0, before + begin[None, :], 0), axis=1)
    tl.store(ranks + offs, rank, mask=mask)


@triton.jit
def place_experts_kernel(topk_ids, counts, ranks, sorted_ids, expert_of, total, n, E: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    e = tl.arange(0, E)
    padded = tl.cdiv(tl.load(counts + e), TILE) * TILE
    ends = tl.cumsum(padded, 0)
    begins = ends - padded
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    ids = tl.load(topk_ids + offs, mask=mask, other=0)
    start = tl.sum(tl.where(ids[:, None] == e[None, :], begins[None, :], 0), 1)
    tl.store(sorted_ids + start + tl.load(ranks + offs, mask=mask, other=0), offs, mask=mask)
    if tl.program_id(0) == 0:
        tl.store(total, tl.sum(padded))
        for tile in range(0, tl.sum(padded) // TILE):
            expert = tl.sum((ends <= tile * TILE).to(tl.int32))
            tl.store(expert_of + tile, expert)


@triton.jit
def expert_matmul_kernel(
    x, w, out, weights, sorted_ids, expert_of, total, n, K, N, TOPK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    if pid_m * BM >= tl.load(total):
        return
    rows = tl.load(sorted_ids + pid_m * BM + tl.arange(0, BM))
    inside = rows < n
    expert = tl.load(expert_of + pid_m).to(tl.int64)
    columns = pid_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = x + (rows // TOPK)[:, None] * K + k[None, :]
    b = w + expert * K * N + k[:, None] * N + columns[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, K, BK):
        left = tl.load(a, mask=inside[:, None] & (k[None, :] < K - i), other=0.0)
        right = tl.load(b, mask=(k[:, None] < K - i) & (columns[None, :] < N), other=0.0)
        acc = tl.dot(left, right, acc)
        a += BK
        b += BK * N
    acc *= tl.load(weights + rows, mask=inside, other=0.0)[:, None]
    tl.store(
        out + rows[:, None] * N + columns[None, :],
        acc.to(tl.float16),
        mask=inside[:, None] & (columns[None, :] < N),
    )


def sorted_experts():
    tokens, K, N, E, topk, tile = 20, 48, 40, 4, 2, 16
    x, w = normal(tokens, K).half(), normal(E, K, N, seed=1).half() / 8
    ids = torch.topk(normal(tokens, E, seed=2), topk).indices.to(torch.int32)
    weights = normal(tokens, topk, seed=3).sigmoid()
    n = tokens * topk
    counts, ranks = torch.zeros(E, dtype=torch.int32), torch.empty(n, dtype=torch.int32)
    sorted_ids = torch.full((n + E * tile,), n, dtype=torch.int32)
    expert_of, total = torch.zeros(16, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    out = torch.zeros(n, N, dtype=torch.float16)
    count_experts_kernel[(2,)](ids, counts, ranks, n, E=E, BLOCK=32)
    place_experts_kernel[(2,)](
        ids, counts, ranks, sorted_ids, expert_of, total, n, E=E, TILE=tile, BLOCK=32
    )
    expert_matmul_kernel[(7, 2)](
        x, w, out, weights, sorted_ids, expert_of, total, n, K, N, TOPK=topk, BM=tile, BN=32, BK=32
    )
    wanted = torch.einsum("tk,tjkn->tjn", x.float(), w.float()[ids.long()]) * weights[..., None]
    return out.view(tokens, topk, N), wanted


# -- products: grouped, persistent, sparse --------------------------------------------------------------


@triton.jit
def grouped_tiles_kernel(
    a_base, b_base, c_base, sizes, offsets, G: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PROGRAMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Multiply groups of rows, whose descriptors each group makes."""
    tile = tl.program_id(0)
    last = 0
    for g in range(G):
        m = tl.load(sizes + g)
        first = tl.load(offsets + g)
        across = tl.cdiv(N, BN)
        count = tl.cdiv(m, BM) * across
        if tile >= last and tile < last + count:
            a_desc = tl.make_tensor_descriptor(
                a_base + first * K, shape=[m, K], strides=[K, 1], block_shape=[BM, BK]
            )
            b_desc = tl.make_tensor_descriptor(
                b_base + g * N * K, shape=[N, K], strides=[K, 1], block_shape=[BN, BK]
            )
            c_desc = tl.make_tensor_descriptor(
                c_base + first * N, shape=[m, N], strides=[N, 1], block_shape=[BM, BN]
            )
            while tile >= last and tile < last + count:
                index = tile - last
                row, column = index // across * BM, index % across * BN
                acc = tl.zeros((BM, BN), dtype=tl.float32)
                for k in range(0, K, BK):
                    x = a_desc.load([row, k])
                    y = b_desc.load([column, k])
                    acc += tl.dot(x, y.T)
                c_desc.store([row, column], acc.to(tl.float16))
                tile += PROGRAMS
        last = last + count


def grouped_tiles():
    sizes, N, K = [40, 16, 64], 64, 96
    offsets = [0, 40, 56]
    a, b = normal(120, K).half(), normal(3, N, K, seed=1).half() / 8
    c = torch.zeros(120, N, dtype=torch.float16)
    kernel_sizes, firsts = (torch.tensor(v, dtype=torch.int32) for v in (sizes, offsets))
    grouped_tiles_kernel[(3,)](
        a, b, c, kernel_sizes, firsts, G=3, N=N, K=K, PROGRAMS=3, BM=32, BN=32, BK=32
    )
    parts = [a[o : o + s].float() @ b[g].float().T for g, (o, s) in enumerate(zip(offsets, sizes))]
    return c, torch.cat(parts)


@triton.jit
def _tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + (tile_id % group_size_m)
    pid_n = (tile_id % num_pid_in_group) // group_size_m
    return pid_m, pid_n


@triton.jit
def persistent_tiles_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr, NUM_SMS: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, and store the halves of each result apart."""
    dtype = c_ptr.dtype.element_ty
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    num_tiles = num_pid_m * num_pid_n
    a_desc = tl.make_tensor_descriptor(
        a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_K]
    )
    b_desc = tl.make_tensor_descriptor(
        b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_SIZE_N, BLOCK_SIZE_K]
    )
    c_desc = tl.make_tensor_descriptor(
        c_ptr, shape=[M, N], strides=[N, 1],
        block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N if not EPILOGUE_SUBTILE else BLOCK_SIZE_N // 2],
    )  # fmt: skip
    tile_id_c = start_pid - NUM_SMS
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    for tile_id in tl.range(
        start_pid, num_tiles, NUM_SMS, flatten=True, warp_specialize=WARP_SPECIALIZE
    ):
        pid_m, pid_n = _tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M)
        offs_am = pid_m * BLOCK_SIZE_M
        offs_bn = pid_n * BLOCK_SIZE_N
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for ki in range(k_tiles):
            offs_k = ki * BLOCK_SIZE_K
            a = a_desc.load([offs_am, offs_k])
            b = b_desc.load([offs_bn, offs_k])
            accumulator = tl.dot(a, b.T, accumulator)
        tile_id_c += NUM_SMS
        pid_m, pid_n = _tile_of(tile_id_c, num_pid_in_group, num_pid_m, GROUP_SIZE_M)
        offs_cm = pid_m * BLOCK_SIZE_M
        offs_cn = pid_n * BLOCK_SIZE_N
        if EPILOGUE_SUBTILE:
            acc = tl.reshape(accumulator, (BLOCK_SIZE_M, 2, BLOCK_SIZE_N // 2))
            acc = tl.permute(acc, (0, 2, 1))
            acc0, acc1 = tl.split(acc)
            c_desc.store([offs_cm, offs_cn], acc0.to(dtype))
            c_desc.store([offs_cm, offs_cn + BLOCK_SIZE_N // 2], acc1.to(dtype))
        else:
            c_desc.store([offs_cm, offs_cn], accumulator.to(dtype))


def persistent_tiles():
    M, N, K = 160, 128, 96
    a, b = normal(M, K).half(), normal(N, K, seed=1).half() / 8
    c = torch.zeros(M, N, dtype=torch.float16)
    persistent_tiles_kernel[(2,)](
        a, b, c, M, N, K, BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32, GROUP_SIZE_M=2, EPILOGUE_SUBTILE=True,
        NUM_SMS=2, WARP_SPECIALIZE=False, num_stages=3,
    )  # fmt: skip
    return c, a.float() @ b.float().T


@triton.jit
def sparse_rows_kernel(
    crow, col, values, b, c, N, stride_b, stride_c, BS: tl.constexpr, BN: tl.constexpr,
    out_dtype: tl.constexpr,
):  # fmt: skip
    """Multiply blocks in compressed rows by a dense matrix."""
    row, column = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(crow + row), tl.load(crow + row + 1)
    inner = tl.arange(0, BS)
    columns = column * BN + tl.arange(0, BN)
    acc = tl.zeros((BS, BN), tl.float32)
    for index in range(first, last):
        block = tl.load(col + index)
        x = tl.load(values + index * BS * BS + inner[:, None] * BS + inner[None, :])
        y = tl.load(
            b + (block * BS + inner)[:, None] * stride_b + columns[None, :],
            mask=columns[None, :] < N,
            other=0.0,
        )
        acc += tl.dot(x, y, out_dtype=tl.float32)
    tl.store(
        c + (row * BS + inner)[:, None] * stride_c + columns[None, :],
        acc.to(out_dtype),
        mask=columns[None, :] < N,
    )


def sparse_rows():
    bs, rows, columns, N = 16, 3, 4, 50
    kept = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]])
    blocks = normal(rows, columns, bs, bs).half() * kept[..., None, None]
    crow = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    col = kept.nonzero()[:, 1].to(torch.int32).contiguous()
    values = blocks[kept.bool()].contiguous()
    b = normal(columns * bs, N, seed=1).half()
    c = torch.empty(rows * bs, N, dtype=torch.float16)
    sparse_rows_kernel[(rows, 2)](
        crow, col, values, b, c, N, N, N, BS=bs, BN=32, out_dtype=tl.float16
    )
    return c, blocks.transpose(1, 2).reshape(rows * bs, columns * bs).float() @ b.float()


@triton.jit
def sampled_product_kernel(
    row_of, col_of, a, b, out, K, stride_a, stride_b, BS: tl.constexpr, BK: tl.constexpr
):
    """Compute only those blocks of a product that a list names."""
    index = tl.program_id(0)
    i, j = tl.load(row_of + index), tl.load(col_of + index)
    r, k = tl.arange(0, BS), tl.arange(0, BK)
    acc = tl.zeros((BS, BS), tl.float32)
    x = a + (i * BS + r)[:, None] * stride_a + k[None, :]
    y = b + k[:, None] * stride_b + (j * BS + r)[None, :]
    for left in range(K, 0, -BK):
        acc += tl.dot(
            tl.load(x, mask=k[None, :] < left, other=0.0),
            tl.load(y, mask=k[:, None] < left, other=0.0),
        )
        x += BK
        y += BK * stride_b
    tl.store(out + index * BS * BS + r[:, None] * BS + r[None, :], acc)


def sampled_product():
    bs, K = 16, 72
    a, b = normal(48, K).half(), normal(K, 64, seed=1).half()
    rows, columns = (torch.tensor(v, dtype=torch.int32) for v in ([0, 0, 2, 1], [1, 3, 0, 2]))
    out = torch.empty(4, bs, bs)
    sampled_product_kernel[(4,)](rows, columns, a, b, out, K, K, 64, BS=bs, BK=32)
    whole = (a.float() @ b.float()).view(3, bs, 4, bs).transpose(1, 2)
    return out, whole[rows.long(), columns.long()]


# -- attention: merged states, ragged queries, sinks ----------------------------------------------------


@triton.jit
def merge_states_kernel(out, out_lse, prefix, prefix_lse, suffix, suffix_lse, HEAD: tl.constexpr, PADDED: tl.constexpr, WRITE_LSE: tl.constexpr):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    heads, tokens = tl.num_programs(1), tl.num_programs(0)
    p_lse = tl.load(prefix_lse + head * tokens + token)
    s_lse = tl.load(suffix_lse + head * tokens + token)
    p_lse = float("-inf") if p_lse == float("inf") else p_lse
    s_lse = float("-inf") if s_lse == float("inf") else s_lse
    largest = tl.maximum(p_lse, s_lse)
    p_lse = p_lse - largest
    s_lse = s_lse - largest
    p_se = tl.exp(p_lse)
    s_se = tl.exp(s_lse)
    out_se = p_se + s_se
    if WRITE_LSE:
        tl.store(out_lse + head * tokens + token, tl.log(out_se) + largest)
    d = tl.arange(0, PADDED)
    mask = d < HEAD
    place = token * heads * HEAD + head * HEAD + d
    p = tl.load(prefix + place, mask=mask)
    s = tl.load(suffix + place, mask=mask)
    tl.store(out + place, p * (p_se / out_se) + s * (s_se / out_se), mask=mask)


def merged_states():
    tokens, heads, head = 5, 3, 24
    p, s = normal(tokens, heads, head), normal(tokens, heads, head, seed=1)
    pl, sl = normal(heads, tokens, seed=2), normal(heads, tokens, seed=3)
    pl[0, 1] = math.inf
    out, lse = torch.empty_like(p), torch.empty(heads, tokens)
    merge_states_kernel[(tokens, heads)](
        out, lse, p, pl, s, sl, HEAD=head, PADDED=32, WRITE_LSE=True
    )
    pl = torch.where(pl == math.inf, -math.inf, pl)
    total = torch.logaddexp(pl, sl)
    wanted = p * (pl - total).exp().T[..., None] + s * (sl - total).exp().T[..., None]
    return torch.cat([out.flatten(), lse.flatten()]), torch.cat([wanted.flatten(), total.flatten()])


@triton.jit
def ragged_attention_kernel(
    Q, K, V, Out, sinks, starts, scale, stride_t, stride_h, GROUP: tl.constexpr, HEAD: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attend within sequences of several lengths to a window and a sink."""
    start_m, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    if start_m * BLOCK_M >= length:
        return
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD)
    kv_head = head // GROUP
    q = tl.load(
        Q + (begin + offs_m)[:, None] * stride_t + head * stride_h + offs_d[None, :],
        mask=(offs_m < length)[:, None], other=0.0,
    )  # fmt: skip
    m_i = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks + head)
    l_i = tl.full([BLOCK_M], 1.0, tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD], tl.float32)
    low = tl.maximum(start_m * BLOCK_M - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    high = tl.minimum((start_m + 1) * BLOCK_M, length)
    kv_stride = stride_t // GROUP
    for start_n in range(low, high, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        offs_n = start_n + tl.arange(0, BLOCK_N)
        place = (begin + offs_n)[:, None] * kv_stride + kv_head * stride_h + offs_d[None, :]
        k = tl.load(K + place, mask=(offs_n < length)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        distance = offs_m[:, None] - offs_n[None, :]
        s = tl.where((distance >= 0) & (distance < WINDOW), s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(V + place, mask=(offs_n < length)[:, None], other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
    acc /= l_i[:, None]
    tl.store(
        Out + (begin + offs_m)[:, None] * stride_t + head * stride_h + offs_d[None, :], acc.to(Out.dtype.element_ty),
        mask=(offs_m < length)[:, None],
    )  # fmt: skip


def ragged_attention():
    starts, heads, group, head, window = [0, 37, 50, 114], 4, 2, 32, 20
    q = normal(114, heads, head).half()
    k, v = (normal(114, heads // group, head, seed=i).half() for i in (1, 2))
    sinks, out = normal(heads, seed=3), torch.empty_like(q)
    ragged_attention_kernel[(2, heads, 3)](
        q, k, v, out, sinks, torch.tensor(starts, dtype=torch.int32), head**-0.5, heads * head, head,
        GROUP=group, HEAD=head, WINDOW=window, BLOCK_M=32, BLOCK_N=32,
    )  # fmt: skip
    wanted = torch.empty(114, heads, head)
    for a, b in zip(starts, starts[1:]):
        x = q[a:b].float().transpose(0, 1)
        y, z = (t[a:b].float().transpose(0, 1).repeat_interleave(group, 0) for t in (k, v))
        distance = torch.arange(b - a)[:, None] - torch.arange(b - a)[None]
        s = (x @ y.mT * head**-0.5).masked_fill((distance < 0) | (distance >= window), -math.inf)
        s = torch.cat([s, sinks[:, None, None].expand(heads, b - a, 1)], -1).softmax(-1)[..., :-1]
        wanted[a:b] = (s @ z).transpose(0, 1)
    return out, wanted


CASES = [
    sorted_experts, grouped_tiles, persistent_tiles, sparse_rows, sampled_product, merged_states, ragged_attention,
]  # fmt: skip
