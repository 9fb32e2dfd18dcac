"""Softmax of rows: reductions along one dimension of a block.

    python examples/reductions/softmax.py

A program takes four whole rows. `gl.max` and `gl.sum` reduce within threads, warps and the program as the layout demands.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def softmax_kernel(x, out, rows, columns, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS)
    column = gl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    offsets = row[:, None] * columns + column[None, :]
    values = gl.load(x + offsets, mask=inside, other=-float("inf"))
    powers = gl.exp(values - gl.max(values, 1)[:, None])
    gl.store(out + offsets, powers / gl.sum(powers, 1)[:, None], mask=inside)


def main():
    place = gluon.testing.place()
    x = np.random.default_rng(0).standard_normal((20, 1000), np.float32)
    out = place.empty(x.shape, np.float32)
    softmax_kernel[(5,)](place.array(x), out, 20, 1000, ROWS=4, BLOCK=1024, target=place.target)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(place.numpy(out), powers / powers.sum(1, keepdims=True), rtol=1e-5)
    print(f"softmax on {place.target}: 20 rows of 1000")


if __name__ == "__main__":
    main()
