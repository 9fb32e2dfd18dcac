"""Kernels of attention for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, slope_ptr, length, scale, HEADS: tl.constexpr, GROUP: tl.constexpr,
              D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
              CAP: tl.constexpr, ALIBI: tl.constexpr):  # fmt: skip
    """Attend with heads that share keys, a window, a bias linear in the distance, or a cap of scores."""
    block = tl.program_id(0)
    batch = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    queries = (batch * HEADS + head).to(tl.int64) * length * D
    keys = (batch * (HEADS // GROUP) + head // GROUP).to(tl.int64) * length * D
    row = block * BM + tl.arange(0, BM)
    lane = tl.arange(0, D)
    inside = (row < length)[:, None]
    q = tl.load(q_ptr + queries + row[:, None] * D + lane[None, :], mask=inside, other=0.0)
    largest = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    begin = 0
    end = length
    if CAUSAL:
        end = tl.minimum(length, (block + 1) * BM)
    if WINDOW > 0:
        begin = tl.maximum(0, block * BM - WINDOW) // BN * BN
    if ALIBI:
        slope = tl.load(slope_ptr + head)
    for start in range(begin, end, BN):
        column = start + tl.arange(0, BN)
        present = (column < length)[:, None]
        offsets = keys + column[:, None] * D + lane[None, :]
        k = tl.load(k_ptr + offsets, mask=present, other=0.0)
        score = tl.dot(q, tl.permute(k, (1, 0)), tl.zeros([BM, BN], tl.float32)) * scale
        if CAP > 0:
            score = CAP * (1.0 - 2.0 / (tl.exp(score * (2.0 / CAP)) + 1.0))
        if ALIBI:
            score += slope * (column[None, :] - row[:, None]).to(tl.float32)
        seen = (column < length)[None, :]
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        if WINDOW > 0:
            seen = seen & (row[:, None] - column[None, :] <= WINDOW)
        score = tl.where(seen, score, -1e30)
        higher = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        kept = tl.exp(largest - higher)
        total = total * kept + tl.sum(weight, 1)
        largest = higher
        v = tl.load(v_ptr + offsets, mask=present, other=0.0)
        acc = tl.dot(weight.to(v.dtype), v, acc * kept[:, None])
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + queries + row[:, None] * D + lane[None, :], out, mask=inside)


@triton.jit
def attention_gradients(q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, slope_ptr, dk_ptr, dv_ptr, length, scale,
                        D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Compute gradients of keys and values of causal attention with a bias linear in the distance."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    base = head.to(tl.int64) * length * D
    column = block * BN + tl.arange(0, BN)
    lane = tl.arange(0, D)
    tile = base + column[:, None] * D + lane[None, :]
    present = (column < length)[:, None]
    k = tl.load(k_ptr + tile, mask=present, other=0.0)
    v = tl.load(v_ptr + tile, mask=present, other=0.0)
    slope = tl.load(slope_ptr + head)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for start in range(block * BN // BM * BM, length, BM):
        row = start + tl.arange(0, BM)
        inside = row < length
        rows = base + row[:, None] * D + lane[None, :]
        q = tl.load(q_ptr + rows, mask=inside[:, None], other=0.0)
        do = tl.load(do_ptr + rows, mask=inside[:, None], other=0.0)
        lse = tl.load(lse_ptr + head * length + row, mask=inside, other=0.0)
        delta = tl.load(delta_ptr + head * length + row, mask=inside, other=0.0)
        score = tl.dot(k, tl.permute(q, (1, 0)), tl.zeros([BN, BM], tl.float32)) * scale
        score += slope * (column[:, None] - row[None, :]).to(tl.float32)
        seen = (column[:, None] <= row[None, :]) & inside[None, :]
        weight = tl.where(seen, tl.exp(score - lse[None, :]), 0.0)
        dv = tl.dot(weight.to(do.dtype), do, dv)
        dw = tl.dot(v, tl.permute(do, (1, 0)), tl.zeros([BN, BM], tl.float32))
        ds = weight * (dw - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    tl.store(dk_ptr + tile, (dk * scale).to(dk_ptr.dtype.element_ty), mask=present)
    tl.store(dv_ptr + tile, dv.to(dv_ptr.dtype.element_ty), mask=present)


@triton.jit
def decode(q_ptr, k_ptr, v_ptr, length_ptr, part_ptr, lse_ptr, longest, scale, PARTS: tl.constexpr,
           D: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Attend to one part of a sequence with one query."""
    sequence = tl.program_id(0)
    part = tl.program_id(1)
    length = tl.load(length_ptr + sequence)
    share = tl.cdiv(tl.cdiv(length, PARTS), BN) * BN
    begin = part * share
    end = tl.minimum(length, begin + share)
    lane = tl.arange(0, D)
    q = tl.load(q_ptr + sequence * D + lane).to(tl.float32) * scale
    base = sequence.to(tl.int64) * longest * D
    largest = -1e30
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for start in range(begin, end, BN):
        column = start + tl.arange(0, BN)
        present = column < end
        offsets = base + column[:, None] * D + lane[None, :]
        k = tl.load(k_ptr + offsets, mask=present[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_ptr + offsets, mask=present[:, None], other=0.0).to(tl.float32)
        score = tl.where(present, tl.sum(k * q[None, :], 1), -1e30)
        higher = tl.maximum(largest, tl.max(score, 0))
        kept = tl.exp(largest - higher)
        weight = tl.exp(score - higher)
        total = total * kept + tl.sum(weight, 0)
        acc = acc * kept + tl.sum(weight[:, None] * v, 0)
        largest = higher
    place = sequence * PARTS + part
    tl.store(part_ptr + place * D + lane, acc / tl.maximum(total, 1e-30))
    tl.store(lse_ptr + place, largest + tl.log(tl.maximum(total, 1e-30)))
