"""Prices of instructions that a layout repeats: those of sines, and of the rows and the columns of a tile."""

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def stencil(x, weights, y, H, W, BH: gl.constexpr, BW: gl.constexpr):
    down = gl.program_id(0) * BH + gl.arange(0, BH)
    right = gl.program_id(1) * BW + gl.arange(0, BW)
    acc = gl.zeros([BH, BW], gl.float32)
    for dy in gl.static_range(-1, 2):
        for dx in gl.static_range(-1, 2):
            i, j = down[:, None] + dy, right[None, :] + dx
            seen = (i >= 0) & (i < H) & (j >= 0) & (j < W)
            weight = gl.load(weights + (dy + 1) * 3 + dx + 1)
            acc += weight * gl.load(x + i * W + j, mask=seen, other=0.0)
    inside = (down < H)[:, None] & (right < W)[None, :]
    gl.store(y + down[:, None] * W + right[None, :], acc, mask=inside)


def test_a_thread_has_few_rows_and_columns():
    """Four of each, where warps along the columns leave a thread all sixteen rows."""
    signature = {"x": "*fp32:16", "weights": "*fp32:16", "y": "*fp32:16", "H": "i32", "W": "i32:16"}
    compiled = gluon.compile(
        stencil, target="sm_90", signature=signature, constexprs={"BH": 16, "BW": 128}
    )
    layout = re.search(r"#blocked = #ttg\.blocked<(.*)>", compiled.asm["ttgir"])
    assert "threadsPerWarp = [1, 32], warpsPerCTA = [4, 1]" in layout[1]


@gluon.jit(layouts="auto")
def rotated(x, y, step, B: gl.constexpr, N: gl.constexpr):
    row, column = gl.arange(0, B), gl.arange(0, N)
    place = row[:, None] * N + column[None, :]
    angle = row.to(gl.float32) * step
    wave = gl.cos(angle) * gl.sin(angle)
    gl.store(y + place, gl.load(x + place) * wave[:, None])


def test_a_thread_computes_few_sines():
    """One of 16 rows, which is converted, where the lanes of a tile repeat four."""
    signature = {"x": "*fp32:16", "y": "*fp32:16", "step": "fp32"}
    constants = {"B": 16, "N": 128}
    compiled = gluon.compile(rotated, target="sm_90", signature=signature, constexprs=constants)
    assert len(re.findall(r"convert_layout .*tensor<16x?1?xf32", compiled.asm["ttgir"])) == 1
