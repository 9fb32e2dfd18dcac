"""The tile program of `examples/matmul.py` in Triton's own interpreter; prints seconds per run.

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


# The bounds are constants: the interpreter of Triton 3.6 cannot loop to a runtime value under
# recent versions of NumPy.
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


def main() -> None:
    m, n, k, block_m, block_n, block_k, repeats = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    a = torch.rand((m, k)).to(torch.float16)
    b = torch.rand((k, n)).to(torch.float16)
    c = torch.empty((m, n), dtype=torch.float16)
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        matmul[grid](a, b, c, m, n, k, block_m, block_n, block_k)
        times.append(time.perf_counter() - started)
    expected = a.float() @ b.float()
    assert torch.allclose(c.float(), expected, rtol=2e-3), "the interpreter is wrong"
    print(json.dumps(times))


if __name__ == "__main__":
    main()
