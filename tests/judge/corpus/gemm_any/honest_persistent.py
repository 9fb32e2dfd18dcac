"""honest: few programs walk over all tiles"""

import torch

import gluon_core as gluon
from gluon_core import language as gl

TILE = gl.BlockedLayout([4, 4], [4, 8], [4, 1], [1, 0])


@gluon.jit
def matmul(a, b, c, M, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr, tile: gl.constexpr):
    across = gl.cdiv(N, BLOCK)
    for number in range(gl.program_id(0), gl.cdiv(M, BLOCK) * across, gl.num_programs(0)):
        first, second = number // across * BLOCK, number % across * BLOCK
        rows = first + gl.arange(0, BLOCK, gl.SliceLayout(1, tile))[:, None]
        columns = second + gl.arange(0, BLOCK, gl.SliceLayout(0, tile))[None, :]
        along_a = gl.arange(0, STEP, gl.SliceLayout(0, tile))[None, :]
        along_b = gl.arange(0, STEP, gl.SliceLayout(1, tile))[:, None]
        acc = gl.full([BLOCK, BLOCK], 0.0, gl.float32, tile)
        for k in range(0, K, STEP):
            inside = (rows < M) & (k + along_a < K)
            left = gl.load(a + rows * K + k + along_a, mask=inside, other=0.0)
            inside = (k + along_b < K) & (columns < N)
            right = gl.load(b + (k + along_b) * N + columns, mask=inside, other=0.0)
            left = gl.convert_layout(left.to(gl.float32), gl.DotOperandLayout(0, tile, 0))
            right = gl.convert_layout(right.to(gl.float32), gl.DotOperandLayout(1, tile, 0))
            acc = gl.dot_fma(left, right, acc)
        inside = (rows < M) & (columns < N)
        gl.store(c + rows * N + columns, acc.to(c.dtype.element_ty), mask=inside)


def run(a, b):
    a, b = a.contiguous(), b.contiguous()
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    if c.numel():
        matmul[(3,)](a, b, c, a.shape[0], b.shape[1], a.shape[1], 32, 16, TILE)
    return c
