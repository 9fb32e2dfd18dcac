"""The tile programs of the examples in Triton's own interpreter; prints seconds per run.

Run by `simulator.py` in a process of its own, because TRITON_INTERPRET is read at import.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

# The bounds of loops are constants: the interpreter of Triton 3.6 cannot loop to a runtime value
# under recent versions of NumPy.


@triton.jit
def memcpy(src, dst, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(dst + offsets, tl.load(src + offsets, mask=mask), mask=mask)


@triton.jit
def softmax(src, dst, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    offsets = tl.program_id(0) * columns + column
    mask = column < columns
    value = tl.load(src + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(value - tl.max(value, axis=0))
    tl.store(dst + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


@triton.jit
def layer_norm(src, weight, bias, dst, columns, epsilon, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < columns
    offsets = tl.program_id(0) * columns + column
    value = tl.load(src + offsets, mask=mask, other=0.0)
    mean = tl.sum(value, axis=0) / columns
    centred = tl.where(mask, value - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / columns
    scale = tl.load(weight + column, mask=mask, other=0.0) / tl.sqrt(variance + epsilon)
    shift = tl.load(bias + column, mask=mask, other=0.0)
    tl.store(dst + offsets, centred * scale + shift, mask=mask)


@triton.jit
def matmul(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        a_mask = (row < M)[:, None] & (inner + k < K)[None, :]
        b_mask = (inner + k < K)[:, None] & (column < N)[None, :]
        a_tile = tl.load(a + row[:, None] * K + (inner + k)[None, :], mask=a_mask, other=0.0)
        b_tile = tl.load(b + (inner + k)[:, None] * N + column[None, :], mask=b_mask, other=0.0)
        acc = tl.dot(a_tile, b_tile, acc)
    mask = (row < M)[:, None] & (column < N)[None, :]
    tl.store(c + row[:, None] * N + column[None, :], acc.to(tl.float16), mask=mask)


@triton.jit
def split_sum(src, dst, columns, BLOCK: tl.constexpr, PART: tl.constexpr):
    row = tl.program_id(0)
    first = tl.program_id(1) * PART
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, PART, BLOCK):
        column = first + start + tl.arange(0, BLOCK)
        total += tl.load(src + row * columns + column, mask=column < columns, other=0.0)
    tl.atomic_add(dst + row, tl.sum(total, axis=0))


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    LENGTH: tl.constexpr,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    base = tl.program_id(1) * LENGTH * D
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, D)
    q_offsets = base + (row * D)[:, None] + column[None, :]
    q_tile = tl.load(q + q_offsets, mask=(row < LENGTH)[:, None], other=0.0)
    key = tl.arange(0, BLOCK_N)
    largest = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for start in range(0, LENGTH, BLOCK_N):
        inside = start + key < LENGTH
        k_offsets = base + column[:, None] + ((start + key) * D)[None, :]
        k_tile = tl.load(k + k_offsets, mask=inside[None, :], other=0.0)
        score = tl.dot(q_tile, k_tile) * SCALE
        score = tl.where(inside[None, :], score, -1e30)
        higher = tl.maximum(largest, tl.max(score, axis=1))
        kept = tl.exp(largest - higher)
        p = tl.exp(score - higher[:, None])
        total = total * kept + tl.sum(p, axis=1)
        largest = higher
        v_offsets = base + ((start + key) * D)[:, None] + column[None, :]
        v_tile = tl.load(v + v_offsets, mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(tl.float16), v_tile, acc * kept[:, None])
    acc = acc / total[:, None]
    tl.store(out + q_offsets, acc.to(tl.float16), mask=(row < LENGTH)[:, None])


def _random(*shape, dtype=torch.float32):
    return (torch.rand(shape) * 2 - 1).to(dtype)


def case_memcpy(n, block):
    src, dst = _random(n), torch.empty(n)
    return lambda: memcpy[(triton.cdiv(n, block),)](src, dst, n, block), lambda: (dst, src)


def case_softmax(rows, columns, block):
    src, dst = _random(rows, columns), torch.empty(rows, columns)
    return (
        lambda: softmax[(rows,)](src, dst, columns, block),
        lambda: (dst, torch.softmax(src, 1)),
    )


def case_layer_norm(rows, columns, block):
    src, weight, bias = _random(rows, columns), _random(columns), _random(columns)
    dst = torch.empty(rows, columns)
    return (
        lambda: layer_norm[(rows,)](src, weight, bias, dst, columns, 1e-5, block),
        lambda: (dst, torch.nn.functional.layer_norm(src, (columns,), weight, bias)),
    )


def case_matmul(m, n, k, block_m, block_n, block_k):
    a, b = _random(m, k, dtype=torch.float16), _random(k, n, dtype=torch.float16)
    c = torch.empty((m, n), dtype=torch.float16)
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    return (
        lambda: matmul[grid](a, b, c, m, n, k, block_m, block_n, block_k),
        lambda: (c, a.float() @ b.float()),
    )


def case_split_sum(rows, columns, block, part):
    src, dst = _random(rows, columns), torch.zeros(rows)

    def run():
        dst.zero_()
        split_sum[(rows, triton.cdiv(columns, part))](src, dst, columns, block, part)

    return run, lambda: (dst, src.double().sum(1))


def case_attention(heads, length, depth, block_m, block_n):
    q, k, v = (_random(heads, length, depth, dtype=torch.float16) for _ in range(3))
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, block_m), heads)
    return (
        lambda: attention[grid](q, k, v, out, length, depth**-0.5, depth, block_m, block_n),
        lambda: (
            out,
            torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float()),
        ),
    )


def main() -> None:
    name, numbers, repeats = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run, outcome = globals()[f"case_{name}"](*numbers)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    got, wanted = outcome()
    limit = 4e-3 * float(wanted.abs().max())
    assert float((got.double() - wanted.double()).abs().max()) <= limit, "the interpreter is wrong"
    print(json.dumps(times))


if __name__ == "__main__":
    main()
