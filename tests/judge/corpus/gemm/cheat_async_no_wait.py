"""sync.race memory.uninitialized: does not wait for its asynchronous copies"""

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy, mma_v2

TILE = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
ACC = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
SHARED = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])


@gluon.jit
def fetch(a_at, b_at, N, k, left, right):
    async_copy.async_copy_global_to_shared(left, a_at + k)
    async_copy.async_copy_global_to_shared(right, b_at + k * N)
    async_copy.commit_group()


@gluon.jit
def matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK: gl.constexpr,
    STEP: gl.constexpr,
    tile: gl.constexpr,
    unit: gl.constexpr,
    shared: gl.constexpr,
):
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, tile))[:, None]
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, tile))[None, :]
    a_at = a + rows * K + gl.arange(0, STEP, gl.SliceLayout(0, tile))[None, :]
    b_at = b + gl.arange(0, STEP, gl.SliceLayout(1, tile))[:, None] * N + columns
    left = gl.allocate_shared_memory(a.dtype.element_ty, [2, BLOCK, STEP], shared)
    right = gl.allocate_shared_memory(b.dtype.element_ty, [2, STEP, BLOCK], shared)
    acc = gl.full([BLOCK, BLOCK], 0.0, gl.float32, unit)

    fetch(a_at, b_at, N, 0, left.index(0), right.index(0))
    for step in range(K // STEP):
        # The last step has nothing to fetch; fetching the first tile again keeps the loop simple.
        ahead = (step + 1) % (K // STEP)
        fetch(a_at, b_at, N, ahead * STEP, left.index((step + 1) % 2), right.index((step + 1) % 2))
        x = left.index(step % 2).load(gl.DotOperandLayout(0, unit, 2))
        y = right.index(step % 2).load(gl.DotOperandLayout(1, unit, 2))
        acc = mma_v2(x, y, acc)
    async_copy.wait_group(0)
    out = gl.convert_layout(acc.to(c.dtype.element_ty), tile)
    gl.store(c + rows * N + columns, out)


def run(a, b, BLOCK=64, STEP=32):
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    matmul[(M // BLOCK, N // BLOCK)](a, b, c, M, N, K, BLOCK, STEP, TILE, ACC, SHARED)
    return c
