"""A GEMM without layouts: the source that `gluon write` makes explicit in this folder."""

# proved: matmul on sim:sm_90

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


# Layouts for nvidia:sm_90, *fp16:16, *fp16:16, *fp16:16, i32:16, i32:16, i32:16.
# Launched with launch_pdl=True, it begins while the kernel in front ends.
@gluon.jit
def matmul(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    # The kernel in front may still run.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, $1;", "=r,r", [0], gl.int32, False, 1
    )
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BM, BN, BK, a.dtype.element_ty, b.dtype.element_ty, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN], layouts.b_shared)
    acc = gl.portable.accumulator(layouts)
    # A ring of 3 buffers for each tile: copies run 2 ahead of the products.
    tiles = gl.portable.pipeline([a_tiles, b_tiles], 3)
    steps = gl.cdiv(K, BK)
    for step in gl.static_range(2):
        tiles.fetch(step, [[row, step * BK], [step * BK, column]], pred=step < steps)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    for step in range(steps):
        x, y = tiles.wait(step)
        acc = gl.portable.mma(x, y, acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=1)  # frees the step before
        tiles.fetch(
            step + 2, [[row, (step + 2) * BK], [(step + 2) * BK, column]], pred=step + 2 < steps
        )
    acc = gl.portable.read(acc)
    tiles.close()
    gl.portable.store(c_tiles, [row, column], acc.to(c.dtype.element_ty))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype(np.float16) for _ in range(2))
    c = np.zeros((128, 128), np.float16)
    matmul[(1, 1)](a, b, c, 128, 128, 128, 128, 128, 64, launch_pdl=True)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    print("right:", np.allclose(c, wanted, atol=0.05))
