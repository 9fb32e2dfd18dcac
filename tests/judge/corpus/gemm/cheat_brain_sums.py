"""precision.dropped: accumulates in bfloat16"""

import torch

import gluon_core as gluon
from gluon_core import language as gl

TILE = gl.BlockedLayout([4, 4], [4, 8], [4, 1], [1, 0])


@gluon.jit
def matmul(a, b, c, M, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr, tile: gl.constexpr):
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, tile))[:, None]
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, tile))[None, :]
    along_a = gl.arange(0, STEP, gl.SliceLayout(0, tile))[None, :]
    along_b = gl.arange(0, STEP, gl.SliceLayout(1, tile))[:, None]
    acc = gl.full([BLOCK, BLOCK], 0.0, gl.float32, tile)
    for k in range(0, K, STEP):
        left = gl.load(a + rows * K + k + along_a).to(gl.float32)
        right = gl.load(b + (k + along_b) * N + columns).to(gl.float32)
        left = gl.convert_layout(left, gl.DotOperandLayout(0, tile, 0))
        right = gl.convert_layout(right, gl.DotOperandLayout(1, tile, 0))
        acc = gl.dot_fma(left, right, acc).to(gl.bfloat16).to(gl.float32)
    gl.store(c + rows * N + columns, acc.to(c.dtype.element_ty))


def run(a, b):
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    matmul[(M // 64, N // 64)](a, b, c, M, N, K, 64, 16, TILE)
    return c
