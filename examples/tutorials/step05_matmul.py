"""Step 5: a matrix product. Each program makes one tile of C, walking over K.

New: a loop over tiles, `DotOperandLayout`, multiply-add without a matrix unit.
"""

import numpy as np

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
        # The layout of an operand gives each thread the elements that its part of C needs.
        left = gl.convert_layout(left, gl.DotOperandLayout(0, tile, 0))
        right = gl.convert_layout(right, gl.DotOperandLayout(1, tile, 0))
        acc = gl.dot_fma(left, right, acc)
    gl.store(c + rows * N + columns, acc.to(c.dtype.element_ty))


def launch(a, b, c, BLOCK=64, STEP=16, **options):
    (M, K), N = a.shape, b.shape[1]
    return matmul[(M // BLOCK, N // BLOCK)](a, b, c, M, N, K, BLOCK, STEP, TILE, **options)


def operands(M=128, N=128, K=256):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((M, K)).astype(np.float16)
    b = rng.standard_normal((K, N)).astype(np.float16)
    return a, b, np.zeros((M, N), np.float16)


def main(launch=launch, unit="multiply-add"):
    a, b, c = operands()
    launch(a, b, c, target="sim:hopper")
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    print(f"{unit}: right to {np.abs(c - wanted).max() / np.abs(wanted).max():.0e} of the largest")


if __name__ == "__main__":
    main()
