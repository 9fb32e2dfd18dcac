"""limits.capacity call.failed: plain Triton with more shared memory than there is"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, STEP):
        left = tl.load(a + rows * K + k + tl.arange(0, STEP)[None, :])
        right = tl.load(b + (k + tl.arange(0, STEP)[:, None]) * N + columns)
        acc = tl.dot(left, right, acc)
    tl.store(c + rows * N + columns, acc.to(c.dtype.element_ty))


def run(a, b):
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    matmul[(M // 128, N // 128)](a, b, c, M, N, K, 128, 128, num_stages=6, num_warps=8)
    return c
