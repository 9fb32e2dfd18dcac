"""Transpose a matrix: load in one layout, convert, store in another.

    python examples/basics/transpose.py

No layout suits both sides: loads want neighboring threads along a row, stores along a column. `gl.convert_layout`
exchanges the elements through shared memory.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def transpose_kernel(src, dst, rows, columns, BLOCK: gl.constexpr, THREADS: gl.constexpr):
    along: gl.constexpr = BLOCK // 4  # threads along a row of the block, four elements for each
    by_rows: gl.constexpr = gl.BlockedLayout(
        [1, 4], [THREADS // along, along], [gl.num_warps(), 1], [1, 0]
    )
    by_columns: gl.constexpr = gl.BlockedLayout(
        [4, 1], [along, THREADS // along], [1, gl.num_warps()], [0, 1]
    )
    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, by_rows))
    column = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, by_rows))
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = gl.load(src + (row * columns)[:, None] + column[None, :], mask=inside)

    values = gl.convert_layout(values, by_columns)

    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, by_columns))
    column = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, by_columns))
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    gl.store(dst + row[:, None] + (column * rows)[None, :], values, mask=inside)


def main():
    place = gluon.testing.place()
    matrix = np.random.default_rng(0).standard_normal((112, 208), np.float32)
    src, dst = place.array(matrix), place.empty((208, 112), np.float32)
    grid = (gluon.cdiv(112, 64), gluon.cdiv(208, 64))
    threads = place.target.warp_size
    transpose_kernel[grid](src, dst, 112, 208, 64, threads, target=place.target)
    np.testing.assert_array_equal(place.numpy(dst), matrix.T)
    print(f"transpose on {place.target}: 112 x 208")


if __name__ == "__main__":
    main()
