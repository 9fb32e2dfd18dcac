"""Multiply matrices, written once: C = A B with a pipelined mainloop on every matrix unit.

    python examples/gemm/portable.py
    gluon explain examples/gemm/portable.py --target gfx942

`gl.portable` takes `wgmma` or `tcgen05` fed by TMA, `mma.sync` fed by `cp.async`, MFMA or WMMA fed by buffer loads: the
second command shows the choice for a target and its reason. `gluon_kernels.matmul` is the tuned form.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def gemm_kernel(
    a, b, c, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    row, column = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)

    for i in gl.static_range(STAGES - 1):  # fill the ring
        ring.fetch(i, [[row, i * BLOCK_K], [i * BLOCK_K, column]], pred=i < steps)
    acc = gl.portable.accumulator(layouts)
    for i in range(steps):
        a_tile, b_tile = ring.wait(i)
        acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=1)  # the product before is done: reuse its slot
        ahead = i + STAGES - 1
        ring.fetch(ahead, [[row, ahead * BLOCK_K], [ahead * BLOCK_K, column]], pred=ahead < steps)
    result = gl.portable.read(acc)
    ring.close()  # before the store, which may need the memory of the ring
    gl.portable.store(c_tiles, [row, column], result)


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((136, 176), (176, 80)))
    c = place.empty((136, 80), np.float16)
    grid, block = (gluon.cdiv(136, 64), gluon.cdiv(80, 64)), (64, 64, 32)
    arrays = place.array(a), place.array(b), c
    gemm_kernel[grid](*arrays, 136, 80, 176, *block, STAGES=3, target=place.target)
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"GEMM on {place.target}: 136 x 80 x 176 in float16")


if __name__ == "__main__":
    main()
