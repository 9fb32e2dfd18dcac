"""Weight-only quantization: int8 weights, dequantized next to the mainloop.

    python examples/gemm/int8_weights.py

Decoding reads every weight once for a few rows, so bytes of weights are its time. The tile is loaded as int8, widened in
registers, and multiplied by its column's scale after the mainloop, where that costs one multiplication per element of C.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def int8_kernel(
    x, weights, scales, out, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = x.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype)
    left: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_K], dtype)
    right: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_N], gl.int8)
    i = gl.arange(0, BLOCK_M, gl.SliceLayout(1, left))
    first = gl.program_id(0) * BLOCK_N
    j = first + gl.arange(0, BLOCK_N, gl.SliceLayout(0, right))[None, :]
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layouts.accumulator)
    for k in range(0, K, BLOCK_K):
        along = k + gl.arange(0, BLOCK_K, gl.SliceLayout(0, left))[None, :]
        down = k + gl.arange(0, BLOCK_K, gl.SliceLayout(1, right))[:, None]
        inside = (i < M)[:, None] & (along < K)
        x_tile = gl.load(x + (i * K)[:, None] + along, mask=inside, other=0.0)
        w_tile = gl.load(weights + down * N + j, mask=(down < K) & (j < N), other=0)
        w_tile = gl.convert_layout(w_tile.to(dtype), layouts.b)
        acc = gl.portable.mma(gl.convert_layout(x_tile, layouts.a), w_tile, acc)
    i = gl.arange(0, BLOCK_M, gl.SliceLayout(1, layouts.accumulator))
    j = first + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layouts.accumulator))
    acc = acc * gl.load(scales + j, mask=j < N, other=0.0)[None, :]
    inside = (i < M)[:, None] & (j < N)[None, :]
    gl.store(out + (i * N)[:, None] + j[None, :], acc.to(dtype), mask=inside)


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((5, 200)).astype(np.float16), rng.standard_normal((200, 130))
    scales = (np.abs(weight).max(0) / 127).astype(np.float32)
    weights = np.rint(weight / scales).astype(np.int8)
    out, arrays = place.empty((5, 130), np.float16), map(place.array, (x, weights, scales))
    int8_kernel[(gluon.cdiv(130, 64),)](*arrays, out, 5, 130, 200, 16, 64, 64, target=place.target)
    wanted = x.astype(float) @ weights * scales
    np.testing.assert_allclose(place.numpy(out), wanted, rtol=0.01, atol=0.05)
    print(f"int8 weights on {place.target}: 5 x 130 x 200")


if __name__ == "__main__":
    main()
