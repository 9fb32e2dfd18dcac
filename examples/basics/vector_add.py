"""Add two vectors: a grid of programs, a block of elements for each, and a mask for the last block.

    python examples/basics/vector_add.py

With `layouts="auto"` the compiler chooses which thread holds which element.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def add_kernel(x, y, out, n, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)
    inside = i < n
    total = gl.load(x + i, mask=inside) + gl.load(y + i, mask=inside)
    gl.store(out + i, total, mask=inside)


def main():
    place = gluon.testing.place()
    x, y = np.random.default_rng(0).standard_normal((2, 10_000), np.float32)
    out = place.empty(10_000, np.float32)
    grid = (gluon.cdiv(10_000, 1024),)
    add_kernel[grid](place.array(x), place.array(y), out, 10_000, BLOCK=1024, target=place.target)
    np.testing.assert_array_equal(place.numpy(out), x + y)
    print(f"vector add on {place.target}: 10000 elements as NumPy adds them")


if __name__ == "__main__":
    main()
