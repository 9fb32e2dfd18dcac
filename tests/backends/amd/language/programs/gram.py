"""The products of all rows of an mxfp4 matrix with each other: CDNA4's scaled matrix instructions with
scales loaded in their own layout, the inner dimension split over programs, sums by buffer atomics."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna4 import (
    buffer_load,
    get_mfma_scale_layout,
    mfma_scaled,
)
from tests import microscaling
from tests.programs import Launch

RUN = gl.constexpr(32)  # elements of one scale
SUMS = gl.constexpr(
    gl.amd.AMDMFMALayout(
        version=4,
        instr_shape=[32, 32, 64],
        transposed=True,
        warps_per_cta=[2, 2],
        tiles_per_warp=[1, 1],
    )
)
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS, k_width=16))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SUMS, k_width=16))
BYTES = gl.constexpr(gl.BlockedLayout([1, 16], [8, 8], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.jit
def corner(tile):
    """Row and column of a tile, counted along the rows of the lower triangle."""
    row = 0
    while tile > row:
        row += 1
        tile -= row
    return row, tile


@gluon.jit
def block_of(
    source, first, start, pitch, LAYOUT: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr
):
    """Bytes `start` and on of rows `first` and on."""
    rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = start + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))
    return buffer_load(source, rows[:, None] * pitch + columns[None, :])


@gluon.jit
def gram(
    codes, exponents, out, rows, size, PARTS: gl.constexpr, SIDE: gl.constexpr, INNER: gl.constexpr
):
    RUNS: gl.constexpr = INNER // RUN
    PACKED: gl.constexpr = INNER // 2
    HEIGHTS: gl.constexpr = get_mfma_scale_layout(LEFT, [SIDE, RUNS])
    WIDTHS: gl.constexpr = get_mfma_scale_layout(RIGHT, [SIDE, RUNS])
    part = gl.program_id(0) % PARTS
    down, across = corner(gl.program_id(0) // PARTS)
    down, across = down * SIDE, across * SIDE
    tall = gl.allocate_shared_memory(
        gl.uint8, [SIDE, PACKED], gl.SwizzledSharedLayout(16, 2, 8, order=[1, 0])
    )
    wide = gl.allocate_shared_memory(
        gl.uint8, [PACKED, SIDE], gl.SwizzledSharedLayout(16, 2, 8, order=[0, 1])
    )
    acc = gl.zeros((SIDE, SIDE), dtype=gl.float32, layout=SUMS)
    each = gl.cdiv(gl.cdiv(size, INNER), PARTS)
    for step in range(part * each, (part + 1) * each):
        tall.store(block_of(codes, down, step * PACKED, size // 2, BYTES, SIDE, PACKED))
        other = block_of(codes, across, step * PACKED, size // 2, BYTES, SIDE, PACKED)
        wide.store(gl.permute(other, [1, 0]))
        acc = mfma_scaled(
            a=tall.load(LEFT),
            a_scale=block_of(exponents, down, step * RUNS, size // RUN, HEIGHTS, SIDE, RUNS),
            a_format="e2m1",
            b=wide.load(RIGHT),
            b_scale=block_of(exponents, across, step * RUNS, size // RUN, WIDTHS, SIDE, RUNS),
            b_format="e2m1",
            acc=acc,
        )
    i = down + gl.arange(0, SIDE, layout=gl.SliceLayout(1, SUMS))
    j = across + gl.arange(0, SIDE, layout=gl.SliceLayout(0, SUMS))
    gl.amd.cdna4.buffer_atomic_add(
        out,
        i[:, None] * rows + j[None, :],
        acc,
        mask=(i[:, None] < rows) & (j[None, :] <= i[:, None]),
        sem="relaxed",
        scope="gpu",
    )


def data(rng):
    codes = rng.integers(0, 256, (192, 256), dtype=np.uint8)
    exponents = rng.integers(124, 130, (192, 16), dtype=np.uint8)
    x = microscaling.of_fp4(codes) * microscaling.of_scales(exponents)
    return [codes, exponents, np.zeros((192, 192), np.float32), 192, 512], {"out": np.tril(x @ x.T)}


LAUNCHES = [
    Launch(
        gram,
        "gfx950",
        data,
        grid=(2 * 6,),
        constants={"PARTS": 2, "SIDE": 64, "INNER": 256, "num_warps": 4},
        tolerance=1e-6,
    )
]
