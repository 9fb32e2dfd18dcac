"""Step 4: shared memory, and its banks. The conversion of step 3, by hand and without conflicts.

New: `allocate_shared_memory`, views of a buffer, swizzling, `bank_conflicts`.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROWS = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
PLAIN = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
SWIZZLED = gl.SwizzledSharedLayout(1, 1, 32, [1, 0])


@gluon.jit
def transpose(x, out, M, N, BLOCK: gl.constexpr, rows: gl.constexpr, shared: gl.constexpr):
    top = gl.program_id(0) * BLOCK
    left = gl.program_id(1) * BLOCK
    i = gl.arange(0, BLOCK, gl.SliceLayout(1, rows))[:, None]
    j = gl.arange(0, BLOCK, gl.SliceLayout(0, rows))[None, :]
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK], shared)
    buffer.store(gl.load(x + (top + i) * N + left + j))
    # Reading the transposed view waits for the stores: the compiler puts the barrier there.
    transposed = buffer.permute((1, 0)).load(rows)
    gl.store(out + (left + i) * M + top + j, transposed)


def launch(x, out, BLOCK=32, shared=SWIZZLED, **options):
    M, N = x.shape
    return transpose[(M // BLOCK, N // BLOCK)](x, out, M, N, BLOCK, ROWS, shared, **options)


def main():
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    columns = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])  # reads the transposed view
    for name, shared in (("plain", PLAIN), ("swizzled", SWIZZLED)):
        out = np.zeros((96, 64), np.float32)
        launch(x, out, shared=shared, target="sim:hopper")
        extra = gluon.layouts.bank_conflicts(columns, shared, [32, 32], bits=32)
        print(f"{name}: {(out == x.T).all()}, {extra} extra passes for each column")


if __name__ == "__main__":
    main()
