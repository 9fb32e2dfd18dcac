"""Sum and difference of the halves of a matrix, in place in shared memory, which is read transposed before
and after: views of buffers in every kind of shared layout."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

SIDE = gl.constexpr(64)
TILE = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], warps_per_cta=[4, 1], order=[1, 0]))
LINES = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], warps_per_cta=[4, 1], order=[1, 0]))
SHARED = [
    gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
    gl.SwizzledSharedLayout(4, 2, 4, [0, 1]),
    gl.NVMMASharedLayout(128, 32, 2),
    gl.NVMMASharedLayout(64, 32, 2, transposed=True),
    gl.PaddedSharedLayout.with_identity_for([[32, 4]], [64, 64], [1, 0]),
]


@gluon.jit
def places(LAYOUT: gl.constexpr):
    row = gl.arange(0, SIDE, gl.SliceLayout(1, LAYOUT))
    return row[:, None] * SIDE + gl.arange(0, SIDE, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def butterfly(x, transposed, out, out_transposed, SHARED: gl.constexpr):
    HALF: gl.constexpr = SIDE // 2
    whole = gl.allocate_shared_memory(
        x.dtype.element_ty, [SIDE, SIDE], SHARED, gl.load(x + places(TILE))
    )
    view = whole.permute((1, 0))
    gl.store(transposed + places(LINES), view.load(LINES))
    left, right = whole.slice(0, HALF, dim=1), whole.slice(HALF, HALF, 1)
    a, b = left.load(TILE), right.load(TILE)
    left.store(a + b)
    right.store(a - b)
    gl.store(out + places(TILE), whole.load(TILE))
    gl.store(out_transposed + places(LINES), view.load(LINES))


def data(rng):
    x = rng.integers(-99, 99, (64, 64)).astype(np.float32)
    a, b = np.hsplit(x, 2)
    wanted = np.hstack([a + b, a - b])
    outs = np.zeros((3, 64, 64), np.float32)
    return [x, *outs], {"transposed": x.T, "out": wanted, "out_transposed": wanted.T}


LAUNCHES = [Launch(butterfly, "sm_90", data, constants={"SHARED": layout}) for layout in SHARED]
