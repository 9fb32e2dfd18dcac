"""Step 1: a copy. A kernel is a program that many run, each on a block of elements.

New: `@gluon.jit`, `gl.arange` with a layout, masks, the grid.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def copy(x, out, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    # All threads of the program hold `offsets` together: `layout` says which thread has which.
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    inside = offsets < n
    gl.store(out + offsets, gl.load(x + offsets, mask=inside), mask=inside)


# One element to a thread, 32 threads to a warp, 4 warps to a program, one dimension.
LAYOUT = gl.BlockedLayout([1], [32], [4], [0])


def launch(x, out, BLOCK=1024, layout=LAYOUT, **options):
    n = out.shape[0]
    return copy[(-(-n // BLOCK),)](x, out, n, BLOCK, layout, **options)


def main():
    x = np.arange(5000, dtype=np.float32)
    out = np.zeros_like(x)
    launch(x, out, target="sim:hopper")
    print("5 programs copied 5000 elements:", (out == x).all())


if __name__ == "__main__":
    main()
