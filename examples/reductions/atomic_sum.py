"""Sum long rows with several programs for each: partial sums by `gl.atomic_add`.

    python examples/reductions/atomic_sum.py

The order of the additions is open, so the last bits may differ from run to run; `gl.portable.split_k_reduce` adds in a
fixed order (`examples/gemm/split_k.py`).
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def sum_kernel(x, out, columns, PART: gl.constexpr, BLOCK: gl.constexpr):
    row, first = gl.program_id(0), gl.program_id(1) * PART
    total = 0.0
    for start in range(first, first + PART, BLOCK):
        column = start + gl.arange(0, BLOCK)
        total += gl.sum(gl.load(x + row * columns + column, mask=column < columns, other=0.0), 0)
    gl.atomic_add(out + row, total)


def main():
    place = gluon.testing.place()
    x = np.random.default_rng(0).standard_normal((5, 20_000), np.float32)
    out = place.empty(5, np.float32)
    grid = (5, gluon.cdiv(20_000, 4096))
    sum_kernel[grid](place.array(x), out, 20_000, 4096, 1024, target=place.target)
    np.testing.assert_allclose(place.numpy(out), x.sum(1, dtype=float), rtol=1e-4, atol=1e-3)
    print(f"row sums on {place.target}: 5 rows, 5 programs for each")


if __name__ == "__main__":
    main()
