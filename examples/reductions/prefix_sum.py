"""Prefix sums of rows: a scan within a block, and the total of the blocks before.

    python examples/reductions/prefix_sum.py

`gl.associative_scan` takes any associative function; here it adds.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit(layouts="auto")
def prefix_sum_kernel(x, out, columns, BLOCK: gl.constexpr):
    row = gl.program_id(0) * columns
    before = 0.0
    for start in range(0, columns, BLOCK):
        column = start + gl.arange(0, BLOCK)
        values = gl.load(x + row + column, mask=column < columns, other=0.0)
        sums = before + gl.associative_scan(values, 0, plus)
        gl.store(out + row + column, sums, mask=column < columns)
        before += gl.sum(values, 0)


def main():
    place = gluon.testing.place()
    x = np.random.default_rng(0).standard_normal((3, 1300), np.float32)
    out = place.empty(x.shape, np.float32)
    prefix_sum_kernel[(3,)](place.array(x), out, 1300, BLOCK=512, target=place.target)
    np.testing.assert_allclose(place.numpy(out), x.cumsum(1, dtype=float), rtol=1e-4, atol=1e-4)
    print(f"prefix sums on {place.target}: 3 rows of 1300")


if __name__ == "__main__":
    main()
