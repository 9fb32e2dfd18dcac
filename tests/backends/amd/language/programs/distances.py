"""Squared distances of points to centres, up to the norms of the points: CDNA3's buffer loads with and
without masks, matrix instructions of 16 and of 8 bits, programs in an order of their own."""

from functools import partial

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3
from tests.programs import Launch


@gluon.jit
def share(program, tiles, CHIPS: gl.constexpr = 8):
    """Programs go to the chips in turn; each chip gets neighbouring tiles."""
    chip = program % CHIPS
    return chip * (tiles // CHIPS) + min(chip, tiles % CHIPS) + program // CHIPS


@gluon.jit
def meander(tile, down, across, STRIP: gl.constexpr = 1):
    """Row and column of a tile: down one strip of `STRIP` columns and up the next."""
    strip = tile // (down * STRIP)
    if STRIP == 1:
        row, column = tile - strip * down, strip
    else:
        width = min(across - strip * STRIP, STRIP)
        gl.assume(width >= 1)
        within = tile - strip * STRIP * down
        row, column = within // width, strip * STRIP + within % width
    if strip % 2 == 1:
        row = down - 1 - row
    return row, column


@gluon.jit
def fetch(base, place, inside, MASKED: gl.constexpr, CACHE: gl.constexpr):
    if MASKED:
        return gl.amd.cdna3.buffer_load(ptr=base, offsets=place, mask=inside, cache=CACHE)
    return gl.amd.cdna3.buffer_load(ptr=base, offsets=place, cache=CACHE)


@gluon.jit
def distances(
    points,
    centres,
    norms,
    out,
    count,
    kinds,
    size,
    pitch,
    BLOCK: gl.constexpr,
    INNER: gl.constexpr,
    STRIP: gl.constexpr,
    MASKED: gl.constexpr,
    NORMS: gl.constexpr,
    DEPTH: gl.constexpr,
):
    gl.assume(pitch > 0)
    down, across = gl.cdiv(count, BLOCK), gl.cdiv(kinds, BLOCK)
    tile = share(gl.program_id(axis=0), down * across)
    row, column = meander(tile, down, across, STRIP=STRIP)

    LANES: gl.constexpr = gl.BlockedLayout(
        size_per_thread=[1, 8],
        threads_per_warp=[16, 4],
        warps_per_cta=[gl.num_warps(), 1],
        order=[1, 0],
    )
    B_TRANSPOSED: gl.constexpr = gl.BlockedLayout(
        size_per_thread=[8, 1],
        threads_per_warp=[4, 16],
        warps_per_cta=[1, gl.num_warps()],
        order=[0, 1],
    )
    SUMS: gl.constexpr = gl.amd.AMDMFMALayout(
        version=3,
        instr_shape=[16, 16, DEPTH],
        transposed=True,
        warps_per_cta=[2, gl.num_warps() // 2],
    )
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=SUMS, k_width=8)
    RIGHT: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=SUMS, k_width=8)
    dtype: gl.constexpr = points.type.element_ty
    near = gl.allocate_shared_memory(
        dtype,
        [BLOCK, INNER],
        layout=gl.SwizzledSharedLayout(vec=8, per_phase=1, max_phase=8, order=[1, 0]),
    )
    far = gl.allocate_shared_memory(
        dtype,
        [INNER, BLOCK],
        layout=gl.SwizzledSharedLayout(vec=8, per_phase=1, max_phase=8, order=[0, 1]),
    )

    # Past the last point and the last centre the first ones are read again, and not stored.
    point = (row * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, LANES))) % count
    centre = (column * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, B_TRANSPOSED))) % kinds
    along = gl.arange(0, INNER, layout=gl.SliceLayout(0, LANES))[None, :]
    upward = gl.arange(0, INNER, layout=gl.SliceLayout(1, B_TRANSPOSED))[:, None]
    a_at = point[:, None] * pitch + along
    b_at = centre[None, :] * pitch + upward
    a = fetch(points, a_at, along < size, MASKED, None)
    b = fetch(centres, b_at, upward < size, MASKED, ".cg")
    kind = gl.float32 if dtype != gl.int8 else gl.int32
    acc = gl.zeros((BLOCK, BLOCK), dtype=kind, layout=SUMS)
    for done in range(INNER, size, INNER):
        near.store(a)
        far.store(b)
        points += INNER
        centres += INNER
        a = fetch(points, a_at, along < size - done, MASKED, None)
        b = fetch(centres, b_at, upward < size - done, MASKED, ".cg")
        acc = cdna3.mfma(near.load(layout=LEFT), far.load(layout=RIGHT), acc)
    near.store(a)
    far.store(b)
    acc = cdna3.mfma(near.load(layout=LEFT), far.load(layout=RIGHT), acc)

    rows = row * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, SUMS))
    columns = column * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SUMS))
    acc = acc * -2
    if NORMS:
        acc += cdna3.buffer_load(ptr=norms, offsets=columns % kinds).to(kind)[None, :]
    cdna3.buffer_store(
        stored_value=acc.to(out.type.element_ty),
        ptr=out,
        offsets=rows[:, None] * kinds + columns[None, :],
        mask=(rows < count)[:, None] & (columns < kinds)[None, :],
    )


def data(count, kinds, size, dtype, rng):
    whole = dtype == np.int8
    draw = (
        rng.integers(-9, 9, (count + kinds, size))
        if whole
        else rng.standard_normal((count + kinds, size))
    )
    points, centres = np.split(draw.astype(dtype), [count])
    norms = (centres.astype(np.float64) ** 2).sum(1).astype(dtype if not whole else np.int32)
    out = np.zeros((count, kinds), np.int32 if whole else dtype)
    wanted = norms.astype(np.float64) - 2 * points.astype(np.float64) @ centres.astype(np.float64).T
    return [points, centres, norms, out, count, kinds, size, size], {"out": wanted}


SHAPE = {"BLOCK": 64, "INNER": 64, "NORMS": True, "num_warps": 4}
LAUNCHES = [
    Launch(
        distances,
        "gfx942",
        partial(data, 200, 136, 144, ml_dtypes.bfloat16),
        grid=(12,),
        constants={**SHAPE, "STRIP": 2, "MASKED": True, "DEPTH": 16},
        tolerance=4e-3,
    ),
    Launch(
        distances,
        "gfx942",
        partial(data, 70, 192, 128, np.int8),
        grid=(6,),
        constants={**SHAPE, "STRIP": 1, "MASKED": False, "DEPTH": 32},
    ),
]
