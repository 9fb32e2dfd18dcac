"""Sums over time of products of two sets of series: stages of CDNA4's warp pipeline between barriers,
padded buffers read transposed, the result stored by quarters."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna4 import async_copy, buffer_store, mfma
from tests.programs import Launch


@gluon.jit
def copy_moments(series, start, into, LAYOUT: gl.constexpr):
    """Start copying as many moments of all series as `into` has rows, from `start` on."""
    COUNT: gl.constexpr = into.shape[0]
    WIDTH: gl.constexpr = into.shape[1]
    when = start + gl.arange(0, COUNT, gl.SliceLayout(1, LAYOUT))
    which = gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    gl.amd.cdna4.async_copy.buffer_load_to_shared(
        into, series, when[:, None] * WIDTH + which[None, :]
    )


@gluon.jit
def covariance(x, y, out, moments, SERIES: gl.constexpr, CHUNK: gl.constexpr):
    MATRIX: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 32], True, [2, 2])
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 16], warps_per_cta=[4, 1], order=[1, 0])
    PADDED: gl.constexpr = gl.PaddedSharedLayout.with_identity_for(
        [[512, 16]], [CHUNK, SERIES], [1, 0]
    )
    xs = gl.allocate_shared_memory(x.dtype.element_ty, [2, CHUNK, SERIES], PADDED)
    ys = gl.allocate_shared_memory(y.dtype.element_ty, [2, CHUNK, SERIES], PADDED)
    copy_moments(x, 0, xs.index(0), ROWS)
    copy_moments(y, 0, ys.index(0), ROWS)
    async_copy.commit_group()
    acc = gl.zeros([SERIES, SERIES], gl.float32, MATRIX)
    chunks = moments // CHUNK
    for chunk in range(chunks):
        with gl.amd.warp_pipeline_stage("copy", priority=1):
            # After the last chunk it is copied once more, so that every turn waits alike.
            ahead = gl.minimum(chunk + 1, chunks - 1) * CHUNK
            copy_moments(x, ahead, xs.index((chunk + 1) % 2), ROWS)
            copy_moments(y, ahead, ys.index((chunk + 1) % 2), ROWS)
            async_copy.commit_group()
        async_copy.wait_group(1)
        with gl.amd.warp_pipeline_stage("read", priority=2):
            transposed = xs.index(chunk % 2).permute([1, 0])
            a = async_copy.load_shared_relaxed(transposed, gl.DotOperandLayout(0, MATRIX, 8))
            b = async_copy.load_shared_relaxed(
                ys.index(chunk % 2), gl.DotOperandLayout(1, MATRIX, 8)
            )
        with gl.amd.warp_pipeline_stage("multiply", priority=0):
            acc = mfma(a, b, acc)
    async_copy.wait_group(0)
    HALF: gl.constexpr = SERIES // 2
    i = gl.arange(0, HALF, gl.SliceLayout(1, MATRIX))[:, None]
    j = gl.arange(0, HALF, gl.SliceLayout(0, MATRIX))[None, :]
    for top in gl.static_range(0, SERIES, HALF):
        for left in gl.static_range(0, SERIES, HALF):
            quarter = gl.amd.slice(acc, [HALF, HALF], [top, left])
            buffer_store(quarter, out, (top + i) * SERIES + left + j)


def data(rng):
    x, y = rng.standard_normal((2, 256, 128)).astype(np.float16)
    wanted = x.astype(np.float64).T @ y.astype(np.float64)
    return [x, y, np.zeros((128, 128), np.float32), 256], {"out": wanted}


LAUNCHES = [
    Launch(
        covariance,
        "gfx950",
        data,
        constants={"SERIES": 128, "CHUNK": 64, "num_warps": 4},
        tolerance=1e-6,
        since=(3, 8),
    )
]
