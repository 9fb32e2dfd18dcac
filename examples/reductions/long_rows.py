"""Log-sum-exp of rows that no program holds: a running maximum and a running sum.

    python examples/reductions/long_rows.py

Each step reads a block of the row, raises the maximum, and rescales the sum of what was read before (Milakov and
Gimelshein, arXiv:1805.02867). Attention's online softmax is this loop.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def log_sum_exp_kernel(x, out, columns, BLOCK: gl.constexpr):
    row = x + gl.program_id(0).to(gl.int64) * columns
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = start + gl.arange(0, BLOCK)
        values = gl.load(row + column, mask=column < columns, other=-float("inf"))
        higher = gl.maximum(largest, gl.max(values, 0))
        total = total * gl.exp(largest - higher) + gl.sum(gl.exp(values - higher), 0)
        largest = higher
    gl.store(out + gl.program_id(0), largest + gl.log(total))


def main():
    place = gluon.testing.place()
    x = 30 * np.random.default_rng(0).standard_normal((3, 10_000), np.float32)
    out = place.empty(3, np.float32)
    log_sum_exp_kernel[(3,)](place.array(x), out, 10_000, BLOCK=1024, target=place.target)
    np.testing.assert_allclose(place.numpy(out), np.logaddexp.reduce(x, 1), rtol=1e-5)
    print(f"log-sum-exp on {place.target}: 3 rows of 10000, 1024 at a time")


if __name__ == "__main__":
    main()
