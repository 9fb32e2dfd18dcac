"""Rows in mxfp4 times rows in mxfp8: gfx1250's scaled matrix instructions, asynchronous copies from
pointers under a condition, scales loaded in the layout that the instruction wants."""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.gfx1250 import async_copy, get_wmma_scale_layout, wmma_scaled
from tests import microscaling
from tests.backends.amd.language import wmma
from tests.programs import Launch

SUMS = gl.constexpr(wmma.two_by_two(gl, 128))
PACKED = gl.constexpr(wmma.two_by_two(gl, 64))
BYTES = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.constexpr_function
def per_byte(kind):
    return 2 if kind == "e2m1" else 1


@gluon.constexpr_function
def operand(index, kind):
    return gl.DotOperandLayout(index, PACKED if per_byte(kind) == 2 else SUMS, 16)


@gluon.jit
def panel(base, first, ROWS: gl.constexpr, COLUMNS: gl.constexpr, pitch, LAYOUT: gl.constexpr):
    """Pointers to the first `COLUMNS` elements of `ROWS` rows."""
    down = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    across = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    return base + down[:, None] * pitch + across[None, :]


@gluon.jit
def slots_for(base, SIDE: gl.constexpr, WIDTH: gl.constexpr):
    PADDED: gl.constexpr = gl.PaddedSharedLayout.with_identity_for(
        [[WIDTH, 16]], [SIDE, WIDTH], [1, 0]
    )
    return gl.allocate_shared_memory(base.dtype.element_ty, [2, SIDE, WIDTH], PADDED)


@gluon.jit
def mixed(
    x,
    x_scales,
    y,
    y_scales,
    out,
    rows,
    columns,
    size,
    SIDE: gl.constexpr,
    INNER: gl.constexpr,
    X_KIND: gl.constexpr,
    Y_KIND: gl.constexpr,
):
    X_BYTES: gl.constexpr = INNER // per_byte(X_KIND)
    Y_BYTES: gl.constexpr = INNER // per_byte(Y_KIND)
    RUNS: gl.constexpr = INNER // 32
    LEFT: gl.constexpr = operand(0, X_KIND)
    RIGHT: gl.constexpr = operand(1, Y_KIND)
    X_SCALES: gl.constexpr = get_wmma_scale_layout(LEFT, [SIDE, RUNS])
    Y_SCALES: gl.constexpr = get_wmma_scale_layout(RIGHT, [SIDE, RUNS])
    row, column = gl.program_id(0) * SIDE, gl.program_id(1) * SIDE
    x_from = panel(x, row, SIDE, X_BYTES, size // per_byte(X_KIND), BYTES)
    y_from = panel(y, column, SIDE, Y_BYTES, size // per_byte(Y_KIND), BYTES)
    s_from = panel(x_scales, row, SIDE, RUNS, size // 32, X_SCALES)
    t_from = panel(y_scales, column, SIDE, RUNS, size // 32, Y_SCALES)
    xs, ys = slots_for(x, SIDE, X_BYTES), slots_for(y, SIDE, Y_BYTES)
    async_copy.global_to_shared(xs.index(0), x_from)
    async_copy.global_to_shared(ys.index(0), y_from)
    async_copy.commit_group()
    acc = gl.zeros([SIDE, SIDE], gl.float32, SUMS)
    for done in range(0, size, INNER):
        slot = done // INNER % 2
        if done + INNER < size:
            x_from += X_BYTES
            y_from += Y_BYTES
            async_copy.global_to_shared(xs.index(1 - slot), x_from)
            async_copy.global_to_shared(ys.index(1 - slot), y_from)
            async_copy.commit_group()
            async_copy.wait_group(1)
        else:
            async_copy.wait_group(0)
        a, b = xs.index(slot).load(LEFT), ys.index(slot).permute((1, 0)).load(RIGHT)
        acc = wmma_scaled(a, gl.load(s_from), X_KIND, b, gl.load(t_from), Y_KIND, acc)
        s_from += RUNS
        t_from += RUNS
        gl.barrier()
    inside = (row + gl.arange(0, SIDE, layout=gl.SliceLayout(1, SUMS)) < rows)[:, None]
    inside &= (column + gl.arange(0, SIDE, layout=gl.SliceLayout(0, SUMS)) < columns)[None, :]
    gl.store(panel(out + column, row, SIDE, SIDE, columns, SUMS), acc, mask=inside)


def data(rng):
    x = rng.integers(0, 256, (128, 192), dtype=np.uint8)
    y = rng.standard_normal((128, 384)).astype(ml_dtypes.float8_e4m3fn)
    x_scales, y_scales = rng.integers(124, 130, (2, 128, 12), dtype=np.uint8)
    left = microscaling.of_fp4(x) * microscaling.of_scales(x_scales)
    right = y.astype(float) * microscaling.of_scales(y_scales)
    out = np.zeros((116, 120), np.float32)
    arguments = [x, x_scales, y.view(np.uint8), y_scales, out, 116, 120, 384]
    return arguments, {"out": (left @ right.T)[:116, :120]}


LAUNCHES = [
    Launch(
        mixed,
        "gfx1250",
        data,
        grid=(2, 2),
        constants={"SIDE": 64, "INNER": 128, "X_KIND": "e2m1", "Y_KIND": "e4m3", "num_warps": 4},
        tolerance=1e-6,
        compiled=(3, 7),  # 3.6 cannot translate a wait for copies that are issued under a condition
    )
]
