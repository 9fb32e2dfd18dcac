"""Step 6: the matrix unit. `mma.sync` multiplies 16x8x16 in a warp; its layouts place elements in lanes.

New: `NVMMADistributedLayout`, operands in registers, `k_width`.
"""

from step05_matmul import main

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import mma_v2

TILE = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
ACC = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])


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
):
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, tile))[:, None]
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, tile))[None, :]
    along_a = gl.arange(0, STEP, gl.SliceLayout(0, tile))[None, :]
    along_b = gl.arange(0, STEP, gl.SliceLayout(1, tile))[:, None]
    acc = gl.full([BLOCK, BLOCK], 0.0, gl.float32, unit)
    for k in range(0, K, STEP):
        left = gl.load(a + rows * K + k + along_a)
        right = gl.load(b + (k + along_b) * N + columns)
        # Two neighbours along K share a 32-bit register: k_width=2 for 16-bit elements.
        left = gl.convert_layout(left, gl.DotOperandLayout(0, unit, 2))
        right = gl.convert_layout(right, gl.DotOperandLayout(1, unit, 2))
        acc = mma_v2(left, right, acc)
    out = gl.convert_layout(acc.to(c.dtype.element_ty), tile)
    gl.store(c + rows * N + columns, out)


def launch(a, b, c, BLOCK=64, STEP=32, **options):
    (M, K), N = a.shape, b.shape[1]
    return matmul[(M // BLOCK, N // BLOCK)](a, b, c, M, N, K, BLOCK, STEP, TILE, ACC, **options)


if __name__ == "__main__":
    main(launch, "mma.sync")
