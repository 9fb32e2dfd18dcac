"""Fuse the epilogue of a GEMM: bias and activation on the accumulator, before it is rounded.

    python examples/gemm/epilogue.py

`gl.portable.read` returns the accumulator in registers, in the layout of the matrix unit; a `SliceLayout` of it places the
bias. Operands come through registers here, the shortest mainloop there is.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def tile(pointer, rows, columns, stride, row, column, shape: gl.constexpr):
    """Load a tile in a layout for its shape, zeros outside of the matrix."""
    layout: gl.constexpr = gl.portable.blocked_layout(shape, pointer.dtype.element_ty)
    i = row + gl.arange(0, shape[0], gl.SliceLayout(1, layout))
    j = column + gl.arange(0, shape[1], gl.SliceLayout(0, layout))
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    return gl.load(pointer + (i * stride)[:, None] + j[None, :], mask=inside, other=0.0)


@gluon.jit
def linear_kernel(
    x, weight, bias, out, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = x.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype)
    row, column = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layouts.accumulator)
    for k in range(0, K, BLOCK_K):
        left = tile(x, M, K, K, row, k, [BLOCK_M, BLOCK_K])
        right = tile(weight, K, N, N, k, column, [BLOCK_K, BLOCK_N])
        left, right = gl.convert_layout(left, layouts.a), gl.convert_layout(right, layouts.b)
        acc = gl.portable.mma(left, right, acc)
    i = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layouts.accumulator))
    j = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layouts.accumulator))
    acc += gl.load(bias + j, mask=j < N, other=0.0).to(gl.float32)[None, :]
    result = acc / (1.0 + gl.exp(-acc))  # SiLU
    inside = (i < M)[:, None] & (j < N)[None, :]
    gl.store(out + (i * N)[:, None] + j[None, :], result.to(out.dtype.element_ty), mask=inside)


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    shapes = ((70, 96), (96, 130), (130,))
    x, weight, bias = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    out = place.empty((70, 130), np.float16)
    grid, arrays = (gluon.cdiv(70, 64), gluon.cdiv(130, 64)), map(place.array, (x, weight, bias))
    linear_kernel[grid](*arrays, out, 70, 130, 96, 64, 64, 32, target=place.target)
    before = x.astype(float) @ weight.astype(float) + bias
    wanted = before / (1 + np.exp(-before))
    np.testing.assert_allclose(place.numpy(out), wanted, rtol=0.01, atol=0.05)
    print(f"linear layer with SiLU on {place.target}: 70 x 130 x 96")


if __name__ == "__main__":
    main()
