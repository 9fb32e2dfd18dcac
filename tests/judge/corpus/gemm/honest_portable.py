"""honest: portable operations"""

import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def matmul(a, b, c, M, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr):
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK, BLOCK, STEP, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK, STEP], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [STEP, BLOCK], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK, BLOCK])
    tiles = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    m, n = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    steps = gl.cdiv(K, STEP)
    for i in gl.static_range(STAGES - 1):
        tiles.fetch(i, [[m, i * STEP], [i * STEP, n]], pred=i < steps)
    acc = gl.portable.accumulator(layouts)
    for step in range(steps):
        a_tile, b_tile = tiles.wait(step)
        acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=1)
        ahead = step + STAGES - 1
        tiles.fetch(ahead, [[m, ahead * STEP], [ahead * STEP, n]], pred=ahead < steps)
    gl.portable.store(c_tiles, [m, n], gl.portable.read(acc))
    tiles.close()


def run(a, b):
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    matmul[(-(-M // 64), -(-N // 64))](a, b, c, M, N, K, 64, 32, 3)
    return c
