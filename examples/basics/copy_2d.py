"""Copy every other row of a matrix, with a layout written by hand.

    python examples/basics/copy_2d.py

A `BlockedLayout` says which thread holds which elements: here four neighbors of a row for each, a row for each warp.
Neighboring threads touch neighboring addresses, so that a warp reads 16 bytes a thread from whole cache lines.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def copy_kernel(
    src,
    dst,
    rows,
    columns,
    stride,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    THREADS: gl.constexpr,
):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, THREADS], [gl.num_warps(), 1], [1, 0])
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.program_id(1) * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = gl.load(src + (row * stride)[:, None] + column[None, :], mask=inside)
    gl.store(dst + (row * columns)[:, None] + column[None, :], values, mask=inside)


def main():
    place = gluon.testing.place()
    every = np.random.default_rng(0).standard_normal((74, 496), np.float32)
    src, dst = place.array(every), place.empty((37, 496), np.float32)
    grid, block = (gluon.cdiv(37, 8), gluon.cdiv(496, 256)), (8, 256)
    threads = place.target.warp_size
    copy_kernel[grid](src, dst, 37, 496, 2 * 496, *block, threads, target=place.target)
    np.testing.assert_array_equal(place.numpy(dst), every[::2])
    print(f"strided copy on {place.target}: 37 of 74 rows")


if __name__ == "__main__":
    main()
