"""Step 3: two dimensions. A tile's rows and columns lie in slices of its layout.

New: `SliceLayout`, `[:, None]`, an order of the dimensions, `convert_layout`.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROWS = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])  # neighbours of a thread lie in a row
COLUMNS = gl.BlockedLayout([4, 1], [4, 8], [1, 4], [0, 1])  # ... in a column


@gluon.jit
def transpose(x, out, M, N, BLOCK: gl.constexpr, read: gl.constexpr, write: gl.constexpr):
    top = gl.program_id(0) * BLOCK
    left = gl.program_id(1) * BLOCK
    row = top + gl.arange(0, BLOCK, gl.SliceLayout(1, read))[:, None]
    column = left + gl.arange(0, BLOCK, gl.SliceLayout(0, read))[None, :]
    tile = gl.load(x + row * N + column)
    # Rows are read by neighbours in a row; columns are written by neighbours in a column.
    tile = gl.convert_layout(tile, write)
    row = top + gl.arange(0, BLOCK, gl.SliceLayout(1, write))[:, None]
    column = left + gl.arange(0, BLOCK, gl.SliceLayout(0, write))[None, :]
    gl.store(out + column * M + row, tile)


def launch(x, out, BLOCK=64, **options):
    M, N = x.shape
    return transpose[(M // BLOCK, N // BLOCK)](x, out, M, N, BLOCK, ROWS, COLUMNS, **options)


def main():
    x = np.arange(128 * 192, dtype=np.float32).reshape(128, 192)
    out = np.zeros((192, 128), np.float32)
    launch(x, out, target="sim:hopper")
    print("transposed:", (out == x.T).all())
    print(gluon.layouts.explain(ROWS, COLUMNS, [64, 64]).splitlines()[-1].strip())


if __name__ == "__main__":
    main()
