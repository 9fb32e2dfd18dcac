"""Hints to the compiler change no result, with every Triton that has them."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3
from gluon_core.testing import triton_at_least

ACC = gl.constexpr(gl.amd.AMDMFMALayout(3, [16, 16, 16], True, [2, 2]))
NEWEST = triton_at_least(3, 9)
SLICES = triton_at_least(3, 8)
STAGES = triton_at_least(3, 7)


@gluon.jit
def kernel(out, STAGED: gl.constexpr, NEW: gl.constexpr, PARTS: gl.constexpr):
    a = gl.full([64, 16], 2.0, gl.float16, gl.DotOperandLayout(0, ACC, 4))
    b = gl.full([16, 64], 3.0, gl.float16, gl.DotOperandLayout(1, ACC, 4))
    acc = gl.zeros([64, 64], gl.float32, ACC)
    for i in range(4):
        if STAGED:
            with gl.amd.warp_pipeline_stage("load", priority=1):
                x = a * (i + 1).to(gl.float16)
            with gl.amd.warp_pipeline_stage("multiply"):
                acc = cdna3.mfma(x, b, acc)
        else:
            acc = cdna3.mfma(a * (i + 1).to(gl.float16), b, acc)
        if NEW:
            gl.amd.hint.sched_barrier()
            gl.amd.hint.sched_barrier(["mfma", "valu"])
            acc = cdna3.mfma(a, b, acc, cd_regclass="a")
    row = gl.arange(0, 64, gl.SliceLayout(1, ACC))
    column = gl.arange(0, 64, gl.SliceLayout(0, ACC))
    acc += (row[:, None] * 64 + column[None, :]).to(gl.float32)
    if PARTS:
        part = gl.amd.slice(acc, [32, 32], [32, 0])
        rows = gl.arange(0, 32, gl.SliceLayout(1, ACC))
        columns = gl.arange(0, 32, gl.SliceLayout(0, ACC))
        gl.store(out + rows[:, None] * 64 + columns[None, :], part)
    else:
        gl.store(out + row[:, None] * 64 + column[None, :], acc)


@pytest.mark.parametrize("parts", [False] + [True] * SLICES)
@pytest.mark.parametrize("new", [False] + [True] * NEWEST)
@pytest.mark.parametrize("staged", [False] + [True] * STAGES)
def test_results_are_those_without_hints(on, staged, new, parts):
    out = np.full((64, 64), -1, np.float32)
    kernel[(1,)](out, staged, new, parts, num_warps=4, target=on("gfx942"))
    whole = 96 * (10 + 4 * new) + np.arange(4096).reshape(64, 64)
    if parts:
        assert (out[:32, :32] == whole[32:, :32]).all() and (out[32:] == -1).all()
    else:
        assert (out == whole).all()
