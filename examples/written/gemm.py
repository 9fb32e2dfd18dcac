"""A GEMM without layouts: the source that `gluon write` makes explicit in this folder."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def matmul(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(c_tiles, [row, column], acc.to(c.dtype.element_ty))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype(np.float16) for _ in range(2))
    c = np.zeros((128, 128), np.float16)
    matmul[(1, 1)](a, b, c, 128, 128, 128, 128, 128, 64)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    print("right:", np.allclose(c, wanted, atol=0.05))
