"""Kernels of attention as serving and training libraries have them, for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def decode_bytes(q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, o_ptr, lse_ptr, longest, scale, ROWS: tl.constexpr,
                 PARTS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend with the rows of a group of heads to keys and values of 8 bits that have a scale for each key."""
    part, head = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, BM)
    lane = tl.arange(0, D)
    inside = (row < ROWS)[:, None]
    q = tl.load(q_ptr + (head * ROWS + row)[:, None] * D + lane[None, :], mask=inside, other=0.0)
    base = head.to(tl.int64) * longest
    share = tl.cdiv(tl.cdiv(longest, PARTS), BN) * BN
    begin = part * share
    end = tl.minimum(longest, begin + share)
    largest = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(begin, end, BN):
        column = start + tl.arange(0, BN)
        present = column < end
        k = tl.load(
            k_ptr + (base + column)[None, :] * D + lane[:, None], mask=present[None, :], other=0.0
        )
        ks = tl.load(ks_ptr + base + column, mask=present, other=0.0)
        score = tl.dot(q, k.to(q.dtype)) * (ks * scale)[None, :]
        score = tl.where(present[None, :], score, -1e30)
        higher = tl.maximum(largest, tl.max(score, 1))
        kept = tl.exp2(largest - higher)
        weight = tl.exp2(score - higher[:, None])
        total = total * kept + tl.sum(weight, 1)
        v = tl.load(
            v_ptr + (base + column)[:, None] * D + lane[None, :], mask=present[:, None], other=0.0
        )
        vs = tl.load(vs_ptr + base + column, mask=present, other=0.0)
        acc = acc * kept[:, None]
        acc += tl.dot((weight * vs[None, :]).to(q.dtype), v.to(q.dtype))
        largest = higher
    place = (head * PARTS + part) * ROWS + row
    tl.store(o_ptr + place[:, None] * D + lane[None, :], acc / total[:, None], mask=inside)
    tl.store(lse_ptr + place, largest + tl.log2(total), mask=row < ROWS)


@triton.jit
def capped(q_ptr, k_ptr, v_ptr, o_ptr, length, scale, cap, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
           CAUSAL: tl.constexpr, LIBRARY: tl.constexpr):  # fmt: skip
    """Attend with scores that a hyperbolic tangent caps."""
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    row = block * BM + tl.arange(0, BM)
    lane = tl.arange(0, D)
    q = tl.load(
        q_ptr + base + row[:, None] * D + lane[None, :], mask=row[:, None] < length, other=0.0
    )
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = tl.minimum(length, (block + 1) * BM) if CAUSAL else length
    for start in range(0, end, BN):
        column = start + tl.arange(0, BN)
        k = tl.load(
            k_ptr + base + column[None, :] * D + lane[:, None],
            mask=column[None, :] < length,
            other=0.0,
        )
        score = tl.dot(q, k) * (scale / cap)
        if LIBRARY:
            score = cap * libdevice.tanh(score)
        else:
            score = cap * tanh(score)
        seen = column[None, :] < length
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, 1))
        kept = tl.exp(largest - higher)
        weight = tl.exp(score - higher[:, None])
        total = total * kept + tl.sum(weight, 1)
        v = tl.load(
            v_ptr + base + column[:, None] * D + lane[None, :],
            mask=column[:, None] < length,
            other=0.0,
        )
        acc = acc * kept[:, None]
        acc += tl.dot(weight.to(v.dtype), v)
        largest = higher
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + base + row[:, None] * D + lane[None, :], out, mask=row[:, None] < length)


@triton.jit
def paged_decode(q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, o_ptr, lse_ptr, pages, scale, HEADS: tl.constexpr,
                 GROUP: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr,
                 BN: tl.constexpr):  # fmt: skip
    """Attend with a group of heads to the keys of one sequence, which lie in pages."""
    sequence, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(length_ptr + sequence)
    row = tl.arange(0, BM)
    lane = tl.arange(0, D)
    inside = row < GROUP
    place = (sequence * HEADS + head) * GROUP + row
    q = tl.load(q_ptr + place[:, None] * D + lane[None, :], mask=inside[:, None], other=0.0)
    share = tl.cdiv(tl.cdiv(length, PARTS), BN) * BN
    begin = part * share
    end = tl.minimum(length, begin + share)
    largest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    if end > begin:
        for start in range(begin, end, BN):
            column = start + tl.arange(0, BN)
            present = column < end
            page = tl.load(table_ptr + sequence * pages + column // PAGE, mask=present, other=0)
            token = (page.to(tl.int64) * PAGE + column % PAGE) * HEADS + head
            k = tl.load(
                k_ptr + token[None, :] * D + lane[:, None], mask=present[None, :], other=0.0
            )
            score = tl.dot(q, k.to(q.dtype)) * scale
            score = tl.where(inside[:, None] & present[None, :], score, float("-inf"))
            v = tl.load(
                v_ptr + token[:, None] * D + lane[None, :], mask=present[:, None], other=0.0
            )
            higher = tl.maximum(tl.max(score, 1), largest)
            kept = tl.exp(largest - higher)
            weight = tl.exp(score - higher[:, None])
            acc *= kept[:, None]
            acc += tl.dot(weight.to(q.dtype), v.to(q.dtype))
            total = total * kept + tl.sum(weight, 1)
            largest = higher
        out = ((sequence * HEADS + head) * GROUP + row) * PARTS + part
        tl.store(
            o_ptr + out[:, None] * D + lane[None, :], acc / total[:, None], mask=inside[:, None]
        )
        tl.store(lse_ptr + out, largest + tl.log(total), mask=inside)


@triton.jit
def merged_parts(o_ptr, lse_ptr, length_ptr, out_ptr, PARTS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
                 BN: tl.constexpr):  # fmt: skip
    """Sum the parts of a row of attention, weighted by their exponentials."""
    row = tl.program_id(0)
    length = tl.load(length_ptr + row // HEADS)
    share = tl.cdiv(tl.cdiv(length, PARTS), BN) * BN
    lane = tl.arange(0, D)
    largest = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for part in range(PARTS):
        if part * share < length:
            one = tl.load(o_ptr + (row * PARTS + part) * D + lane)
            lse = tl.load(lse_ptr + row * PARTS + part)
            higher = tl.maximum(lse, largest)
            kept = tl.exp(largest - higher)
            weight = tl.exp(lse - higher)
            acc = acc * kept + weight * one
            total = total * kept + weight
            largest = higher
    tl.store(out_ptr + row * D + lane, (acc / total).to(out_ptr.dtype.element_ty))


@triton.jit
def ring_merge(o_ptr, lse_ptr, block_ptr, block_lse_ptr, rows, D: tl.constexpr, BM: tl.constexpr):
    """Add a block of keys to attention: the log of exponentials of both weighs them."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    lane = tl.arange(0, D)
    inside = row < rows
    tile = row[:, None] * D + lane[None, :]
    out = tl.load(o_ptr + tile, mask=inside[:, None], other=0.0)
    block = tl.load(block_ptr + tile, mask=inside[:, None], other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + row, mask=inside, other=0.0)
    block_lse = tl.load(block_lse_ptr + row, mask=inside, other=0.0)
    out = out - tl.sigmoid(block_lse - lse)[:, None] * (out - block)
    tl.store(o_ptr + tile, out, mask=inside[:, None])
    tl.store(lse_ptr + row, lse - tl.log(tl.sigmoid(lse - block_lse)), mask=inside)


@triton.jit
def score_mod(score, b, h, i, j, slope_ptr, document_ptr, length, MOD: tl.constexpr):
    if MOD == "alibi":
        score = score + tl.load(slope_ptr + h) * (j - i)
    elif MOD == "capped":
        score = 20.0 * tanh(score / 20.0)
    elif MOD == "document":
        mine = tl.load(document_ptr + i, mask=i < length, other=-1)
        its = tl.load(document_ptr + j, mask=j < length, other=-2)
        score = tl.where((mine == its) & (i >= j), score, float("-inf"))
    elif MOD == "relative":
        score = score + tl.load(slope_ptr + h * 129 + tl.minimum(tl.maximum(j - i, -64), 64) + 64)
    return score


@triton.jit
def flex(q_ptr, k_ptr, v_ptr, count_ptr, index_ptr, slope_ptr, document_ptr, o_ptr, length, scale, HEADS: tl.constexpr,
         BLOCKS: tl.constexpr, MOD: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend to the listed blocks of keys with scores that a function changes."""
    block, z = tl.program_id(0), tl.program_id(1)
    b, h = z // HEADS, z % HEADS
    base = z.to(tl.int64) * length * D
    i = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + i[:, None] * D + d[None, :], mask=(i < length)[:, None], other=0.0)
    count = tl.load(count_ptr + block)
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for n in range(0, count):
        first = tl.load(index_ptr + block * BLOCKS + n) * BN
        j = first + tl.arange(0, BN)
        k = tl.load(
            k_ptr + base + j[None, :] * D + d[:, None], mask=(j < length)[None, :], other=0.0
        )
        score = tl.dot(q, k, input_precision="tf32") * scale
        score = score_mod(score, b, h, i[:, None], j[None, :], slope_ptr, document_ptr, length, MOD)
        score = tl.where((j < length)[None, :], score, float("-inf")) * 1.44269504
        higher = tl.maximum(largest, tl.max(score, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        kept = tl.math.exp2(largest - safe)
        weight = tl.math.exp2(score - safe[:, None])
        total = total * kept + tl.sum(weight, 1)
        v = tl.load(
            v_ptr + base + j[:, None] * D + d[None, :], mask=(j < length)[:, None], other=0.0
        )
        acc = acc * kept[:, None]
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="tf32")
        largest = higher
    total = tl.where(total == 0.0, 1.0, total)
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + base + i[:, None] * D + d[None, :], out, mask=(i < length)[:, None])


@triton.jit
def extend(q_ptr, k_ptr, v_ptr, pool_k_ptr, pool_v_ptr, o_ptr, start_ptr, prefix_start_ptr, slot_ptr, scale,
           HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend with new tokens to those of the cache, whose slots a list has, and to each other."""
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // GROUP
    KV: tl.constexpr = HEADS // GROUP
    first = tl.load(start_ptr + sequence)
    count = tl.load(start_ptr + sequence + 1) - first
    listed = tl.load(prefix_start_ptr + sequence)
    prefix = tl.load(prefix_start_ptr + sequence + 1) - listed
    d = tl.arange(0, D)
    i = block * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    rows = i < count
    tile = ((first + i)[:, None] * HEADS + head) * D + d[None, :]
    q = tl.load(q_ptr + tile, mask=rows[:, None], other=0.0)
    acc = tl.zeros([BM, D], tl.float32)
    total = tl.zeros([BM], tl.float32)
    largest = tl.zeros([BM], tl.float32) - float("inf")
    for start in range(0, prefix, BN):
        start = tl.multiple_of(start, BN)
        there = start + n < prefix
        slot = tl.load(slot_ptr + listed + start + n, mask=there, other=0)
        k = tl.load(
            pool_k_ptr + (slot[None, :] * KV + kv_head) * D + d[:, None],
            mask=there[None, :],
            other=0.0,
        )
        qk = tl.dot(q.to(k.dtype), k)
        qk *= scale
        qk = tl.where(rows[:, None] & there[None, :], qk, float("-inf"))
        row_max = tl.max(qk, 1)
        row_max = tl.where(row_max == float("-inf"), -1e20, row_max)
        higher = tl.maximum(row_max, largest)
        kept = tl.exp(largest - higher)
        p = tl.exp(qk - higher[:, None])
        total = total * kept + tl.sum(p, 1)
        v = tl.load(
            pool_v_ptr + (slot[:, None] * KV + kv_head) * D + d[None, :],
            mask=there[:, None],
            other=0.0,
        )
        acc = acc * kept[:, None] + tl.dot(p.to(v.dtype), v)
        largest = higher
    for start in range(0, tl.minimum(count, (block + 1) * BM), BN):
        start = tl.multiple_of(start, BN)
        there = start + n < count
        keys = (first + start + n) * KV + kv_head
        k = tl.load(k_ptr + keys[None, :] * D + d[:, None], mask=there[None, :], other=0.0)
        qk = tl.dot(q, k, out_dtype=tl.float32)
        qk *= scale
        qk = tl.where(
            (i[:, None] >= (start + n)[None, :]) & rows[:, None] & there[None, :], qk, float("-inf")
        )
        row_max = tl.max(qk, 1)
        row_max = tl.where(row_max == float("-inf"), -1e20, row_max)
        higher = tl.maximum(row_max, largest)
        kept = tl.exp(largest - higher)
        p = tl.exp(qk - higher[:, None])
        total = total * kept + tl.sum(p, 1)
        v = tl.load(v_ptr + keys[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
        acc = acc * kept[:, None] + tl.dot(p.to(v.dtype), v)
        largest = higher
    tl.store(o_ptr + tile, acc / total[:, None], mask=rows[:, None])


@triton.jit
def latent_decode(q_ptr, kv_ptr, slot_ptr, start_ptr, o_ptr, lse_ptr, scale, HEADS: tl.constexpr, PARTS: tl.constexpr,
                  D: tl.constexpr, R: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend with heads that share latent keys, which are the values, and have rotated columns of their own."""
    sequence, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    h = block * BH + tl.arange(0, BH)
    d, r = tl.arange(0, D), D + tl.arange(0, R)
    W: tl.constexpr = D + R
    heads = h < HEADS
    listed = tl.load(start_ptr + sequence)
    length = tl.load(start_ptr + sequence + 1) - listed
    row = sequence * HEADS + h
    q = tl.load(q_ptr + row[:, None] * W + d[None, :], mask=heads[:, None], other=0.0)
    qr = tl.load(q_ptr + row[:, None] * W + r[None, :], mask=heads[:, None], other=0.0)
    share = tl.cdiv(length, PARTS)
    begin = share * part
    end = tl.minimum(begin + share, length)
    largest = tl.zeros([BH], tl.float32) - float("inf")
    total = tl.zeros([BH], tl.float32)
    acc = tl.zeros([BH, D], tl.float32)
    if end > begin:
        for start in range(begin, end, BN):
            n = start + tl.arange(0, BN)
            slot = tl.load(slot_ptr + listed + n, mask=n < end, other=0)
            k = tl.load(kv_ptr + slot[None, :] * W + d[:, None], mask=(n < end)[None, :], other=0.0)
            qk = tl.dot(q, k.to(q.dtype))
            kr = tl.load(
                kv_ptr + slot[None, :] * W + r[:, None], mask=(n < end)[None, :], other=0.0
            )
            qk += tl.dot(qr, kr.to(qr.dtype))
            qk *= scale
            qk = tl.where(heads[:, None] & (n < end)[None, :], qk, float("-inf"))
            v = tl.load(kv_ptr + slot[:, None] * W + d[None, :], mask=(n < end)[:, None], other=0.0)
            higher = tl.maximum(tl.max(qk, 1), largest)
            kept = tl.exp(largest - higher)
            p = tl.exp(qk - higher[:, None])
            acc *= kept[:, None]
            acc += tl.dot(p.to(v.dtype), v)
            total = total * kept + tl.sum(p, 1)
            largest = higher
        out = (sequence * HEADS + h) * PARTS + part
        tl.store(o_ptr + out[:, None] * D + d[None, :], acc / total[:, None], mask=heads[:, None])
        tl.store(lse_ptr + out, largest + tl.log(total), mask=heads)


@triton.jit
def selected(q_ptr, k_ptr, v_ptr, index_ptr, o_ptr, lse_ptr, length, scale, KV: tl.constexpr, GROUP: tl.constexpr,
             COUNT: tl.constexpr, D: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend with the heads of one token to the blocks of keys that it selects."""
    token, z = tl.program_id(0), tl.program_id(1)
    b, h = z // KV, z % KV
    g = tl.arange(0, BH)
    d = tl.arange(0, D)
    row = ((b * length + token) * KV + h) * GROUP + g
    q = tl.load(q_ptr + row[:, None] * D + d[None, :], mask=(g < GROUP)[:, None], other=0.0)
    q = (q * scale).to(q.dtype)
    largest = tl.full([BH], float("-inf"), tl.float32)
    total = tl.zeros([BH], tl.float32)
    acc = tl.zeros([BH, D], tl.float32)
    for n in range(COUNT):
        first = tl.load(index_ptr + ((b * length + token) * KV + h) * COUNT + n).to(tl.int32) * BN
        if (first <= token) & (first >= 0):
            j = first + tl.arange(0, BN)
            key = ((b * length + j) * KV + h) * D
            k = tl.load(k_ptr + key[None, :] + d[:, None], mask=(j < length)[None, :], other=0.0)
            v = tl.load(v_ptr + key[:, None] + d[None, :], mask=(j < length)[:, None], other=0.0)
            s = tl.dot(q, k)
            s = tl.where((j <= token)[None, :], s, float("-inf"))
            higher = tl.maximum(largest, tl.max(s, 1))
            kept = tl.exp(largest - higher)
            p = tl.exp(s - higher[:, None])
            total = total * kept + tl.sum(p, 1)
            acc = acc * kept[:, None] + tl.dot(p.to(q.dtype), v)
            largest = higher
    tl.store(o_ptr + row[:, None] * D + d[None, :], acc / total[:, None], mask=(g < GROUP)[:, None])
    tl.store(lse_ptr + row, largest + tl.log(total), mask=g < GROUP)


@triton.jit
def differential(q_ptr, k_ptr, v_ptr, o_ptr, length, scale, weight, D: tl.constexpr, BM: tl.constexpr,
                 BN: tl.constexpr):  # fmt: skip
    """Subtract one causal attention from another one of the same values."""
    block, head = tl.program_id(0), tl.program_id(1)
    i = block * BM + tl.arange(0, BM)
    d, e = tl.arange(0, D), tl.arange(0, 2 * D)
    base = head.to(tl.int64) * length * 2 * D
    rows = (i < length)[:, None]
    q1 = tl.load(q_ptr + base + i[:, None] * 2 * D + d[None, :], mask=rows, other=0.0)
    q2 = tl.load(q_ptr + base + i[:, None] * 2 * D + D + d[None, :], mask=rows, other=0.0)
    m1 = tl.full([BM], float("-inf"), tl.float32)
    m2 = tl.full([BM], float("-inf"), tl.float32)
    t1 = tl.zeros([BM], tl.float32)
    t2 = tl.zeros([BM], tl.float32)
    a1 = tl.zeros([BM, 2 * D], tl.float32)
    a2 = tl.zeros([BM, 2 * D], tl.float32)
    for start in range(0, (block + 1) * BM, BN):
        j = start + tl.arange(0, BN)
        there = j < length
        k1 = tl.load(k_ptr + base + j[None, :] * 2 * D + d[:, None], mask=there[None, :], other=0.0)
        k2 = tl.load(
            k_ptr + base + j[None, :] * 2 * D + D + d[:, None], mask=there[None, :], other=0.0
        )
        v = tl.load(v_ptr + base + j[:, None] * 2 * D + e[None, :], mask=there[:, None], other=0.0)
        seen = j[None, :] <= i[:, None]
        s1 = tl.where(seen, tl.dot(q1, k1) * scale, float("-inf"))
        s2 = tl.where(seen, tl.dot(q2, k2) * scale, float("-inf"))
        n1 = tl.maximum(m1, tl.max(s1, 1))
        n2 = tl.maximum(m2, tl.max(s2, 1))
        p1 = tl.exp2(s1 - n1[:, None])
        p2 = tl.exp2(s2 - n2[:, None])
        c1 = tl.exp2(m1 - n1)
        c2 = tl.exp2(m2 - n2)
        t1 = t1 * c1 + tl.sum(p1, 1)
        t2 = t2 * c2 + tl.sum(p2, 1)
        a1 = tl.dot(p1.to(v.dtype), v, a1 * c1[:, None])
        a2 = tl.dot(p2.to(v.dtype), v, a2 * c2[:, None])
        m1 = n1
        m2 = n2
    out = a1 / t1[:, None] - weight * (a2 / t2[:, None])
    tl.store(
        o_ptr + base + i[:, None] * 2 * D + e[None, :], out.to(o_ptr.dtype.element_ty), mask=rows
    )


@triton.jit
def dropped(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    length,
    scale,
    seed,
    rate,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Attend with dropout of weights."""
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    i = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + i[:, None] * D + d[None, :], mask=(i < length)[:, None], other=0.0)
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, length, BN):
        j = start + tl.arange(0, BN)
        k = tl.load(
            k_ptr + base + j[:, None] * D + d[None, :], mask=(j < length)[:, None], other=0.0
        )
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where((j < length)[None, :], s, float("-inf"))
        higher = tl.maximum(largest, tl.max(s, 1))
        kept = tl.exp2(largest - higher)
        p = tl.exp2(s - higher[:, None])
        total = total * kept + tl.sum(p, 1)
        number = (head * length + i[:, None]) * length + j[None, :]
        p = tl.where(tl.rand(seed, number) > rate, p / (1 - rate), 0.0)
        v = tl.load(
            v_ptr + base + j[:, None] * D + d[None, :], mask=(j < length)[:, None], other=0.0
        )
        acc = tl.dot(p.to(v.dtype), v, acc * kept[:, None])
        largest = higher
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + base + i[:, None] * D + d[None, :], out, mask=(i < length)[:, None])


@triton.jit
def sigmoid_attention(q_ptr, k_ptr, v_ptr, o_ptr, length, scale, bias, D: tl.constexpr, BM: tl.constexpr,
                      BN: tl.constexpr):  # fmt: skip
    """Weigh values by a sigmoid of causal scores."""
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * length * D
    i = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + i[:, None] * D + d[None, :], mask=(i < length)[:, None], other=0.0)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(length, (block + 1) * BM), BN):
        j = start + tl.arange(0, BN)
        k = tl.load(
            k_ptr + base + j[None, :] * D + d[:, None], mask=(j < length)[None, :], other=0.0
        )
        v = tl.load(
            v_ptr + base + j[:, None] * D + d[None, :], mask=(j < length)[:, None], other=0.0
        )
        s = tl.dot(q, k) * scale + bias
        p = tl.where(j[None, :] <= i[:, None], tl.sigmoid(s), 0.0)
        acc += tl.dot(p.to(v.dtype), v)
    tl.store(
        o_ptr + base + i[:, None] * D + d[None, :],
        acc.to(o_ptr.dtype.element_ty),
        mask=(i < length)[:, None],
    )


@triton.jit
def packed_rows(q_ptr, k_ptr, v_ptr, start_ptr, o_ptr, scale, HEADS: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr,
                D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend within sequences that are packed behind each other."""
    block, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    KV: tl.constexpr = HEADS // GROUP
    first = tl.load(start_ptr + sequence)
    length = tl.load(start_ptr + sequence + 1) - first
    if block * BM >= length:
        return
    i = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    rows = (i < length)[:, None]
    q = tl.load(
        q_ptr + ((first + i)[:, None] * HEADS + head) * D + d[None, :], mask=rows, other=0.0
    )
    keys = k_ptr + (first * KV + head // GROUP) * D
    values = v_ptr + (first * KV + head // GROUP) * D
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = tl.minimum((block + 1) * BM, length) if CAUSAL else length
    for start in range(0, end, BN):
        start = tl.multiple_of(start, BN)
        j = start + tl.arange(0, BN)
        k = tl.load(keys + j[None, :] * KV * D + d[:, None], mask=(j < length)[None, :], other=0.0)
        qk = tl.dot(q, k)
        if CAUSAL:
            qk = tl.where(i[:, None] >= j[None, :], qk * scale, -1.0e8)
        else:
            qk = tl.where((j < length)[None, :], qk * scale, -1.0e8)
        higher = tl.maximum(largest, tl.max(qk, 1))
        p = tl.math.exp2(qk - higher[:, None])
        kept = tl.math.exp2(largest - higher)
        total = total * kept + tl.sum(p, 1)
        acc = acc * kept[:, None]
        v = tl.load(
            values + j[:, None] * KV * D + d[None, :], mask=(j < length)[:, None], other=0.0
        )
        acc = tl.dot(p.to(v.dtype), v, acc)
        largest = higher
    tl.store(
        o_ptr + ((first + i)[:, None] * HEADS + head) * D + d[None, :],
        acc / total[:, None],
        mask=rows,
    )
