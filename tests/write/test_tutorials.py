"""The steps of examples/tutorials without layouts, on every architecture."""

import sys
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

TUTORIALS = Path(__file__).parents[2] / "examples" / "tutorials"
TARGETS = [
    "sim:sm_80", "sim:sm_89", "sim:sm_90", "sim:sm_100", "sim:sm_120",
    "sim:gfx90a", "sim:gfx942", "sim:gfx950", "sim:gfx1100", "sim:gfx1201", "sim:gfx1250",
]  # fmt: skip


@gluon.jit(layouts="auto")
def copy(x, out, n, BLOCK: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)
    inside = offsets < n
    gl.store(out + offsets, gl.load(x + offsets, mask=inside), mask=inside)


@gluon.jit(layouts="auto")
def transpose(x, out, M, N, BLOCK: gl.constexpr):
    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    column = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    gl.store(out + column * M + row, gl.load(x + row * N + column))


@gluon.jit(layouts="auto")
def transpose_by_hand(x, out, M, N, BLOCK: gl.constexpr):
    top, left = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    i, j = gl.arange(0, BLOCK)[:, None], gl.arange(0, BLOCK)[None, :]
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK])
    buffer.store(gl.load(x + (top + i) * N + left + j))
    gl.store(out + (left + i) * M + top + j, buffer.permute((1, 0)).load())


@gluon.jit(layouts="auto")
def matmul(a, b, c, M, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr, unit: gl.constexpr):
    rows = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)[:, None]
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK)[None, :]
    acc = gl.zeros([BLOCK, BLOCK], gl.float32)
    for k in range(0, K, STEP):
        left = gl.load(a + rows * K + k + gl.arange(0, STEP)[None, :])
        right = gl.load(b + (k + gl.arange(0, STEP)[:, None]) * N + columns)
        if unit:
            acc = gl.portable.mma(left, right, acc)
        else:
            acc = gl.dot_fma(left.to(gl.float32), right.to(gl.float32), acc)
    gl.store(c + rows * N + columns, acc.to(c.dtype.element_ty))


@gluon.jit(layouts="auto")
def matmul_of_tiles(a, b, c, M, N, K, BLOCK: gl.constexpr, STEP: gl.constexpr):
    row, column = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK, STEP])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [STEP, BLOCK])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK, BLOCK])
    acc = gl.zeros([BLOCK, BLOCK], gl.float32)
    for k in range(0, K, STEP):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(c_tiles, [row, column], acc.to(gl.float16))


def copied(target):
    x = np.arange(3000, dtype=np.float32)
    out = np.zeros_like(x)
    copy[(3,)](x, out, 3000, 1024, target=target)
    return out, x


def transposed(target, kernel=transpose):
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    out = np.zeros((96, 64), np.float32)
    kernel[(2, 3)](x, out, 64, 96, 32, target=target)
    return out, x.T


def multiplied(target, kernel, *constants, **options):
    sys.path.insert(0, str(TUTORIALS))
    try:
        from step05_matmul import operands
    finally:
        sys.path.remove(str(TUTORIALS))
    a, b, c = operands(64, 64, 128)
    kernel[(1, 1)](a, b, c, 64, 64, 128, 64, 32, *constants, target=target, **options)
    return c, a.astype(np.float32) @ b.astype(np.float32)


STEPS = {
    "01 a copy": copied,
    "03 two dimensions": transposed,
    "04 shared memory": lambda target: transposed(target, transpose_by_hand),
    "05 a product": lambda target: multiplied(target, matmul, False),
    "06 the matrix unit": lambda target: multiplied(target, matmul, True, num_stages=1),
    "07 copies ahead": lambda target: multiplied(target, matmul, True, num_stages=2),
    "08 tiles": lambda target: multiplied(target, matmul_of_tiles, num_stages=1),
    "09 a ring": lambda target: multiplied(target, matmul_of_tiles, num_stages=4),
}


@pytest.mark.once
@pytest.mark.sampled(16)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", STEPS)
def test_steps(step, target):
    result, wanted = STEPS[step](target)
    scale = np.abs(wanted).max()
    assert np.abs(result.astype(np.float32) - wanted).max() <= 1e-3 * scale


@pytest.mark.once
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_the_chosen_layout_is_a_load_of_16_bytes(target):
    """Step 2 compares two layouts by their loads: the chosen one is the better."""
    signature = {"x": "*fp32:16", "out": "*fp32:16", "n": "i32:16"}
    compiled = gluon.compile(copy, target=target, signature=signature, constexprs={"BLOCK": 1024})
    ptx = compiled.asm["ptx"]
    assert "ld.global.v4" in ptx and "ld.global.b32" not in ptx
