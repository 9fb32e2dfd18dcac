"""Loads whose masks other loads give start behind a barrier, by which all of these have started."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def softmax(x, keep, y, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row, column = gl.program_id(0) * ROWS + gl.arange(0, ROWS), gl.arange(0, BLOCK)
    place = row[:, None] * N + column[None, :]
    inside = column[None, :] < N
    kept = gl.load(keep + place, mask=inside, other=0) != 0
    values = gl.load(x + place, mask=inside & kept, other=-float("inf"))
    powers = gl.exp(values - gl.max(values, axis=1)[:, None])
    gl.store(y + place, powers / gl.sum(powers, axis=1)[:, None], mask=inside)


@gluon.jit(layouts="auto")
def shifted(x, shift, y, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    """Load from a place that depends on a sum, for which all elements have arrived."""
    row, column = gl.program_id(0) * ROWS + gl.arange(0, ROWS), gl.arange(0, BLOCK)
    place = row[:, None] * N + column[None, :]
    inside = column[None, :] < N
    distance = gl.sum(gl.load(shift + place, mask=inside, other=0).to(gl.int32), axis=1)
    values = gl.load(x + place + distance[:, None], mask=inside, other=0.0)
    gl.store(y + place, values, mask=inside)


SIGNATURE = {"x": "*fp32:16", "y": "*fp32:16", "N": "i32"}
SIZES = {"ROWS": 4, "BLOCK": 1024}


def test_all_loads_of_a_mask_are_under_way_together():
    signature = {**SIGNATURE, "keep": "*i8:16"}
    sass = gluon.compile(softmax, target="sm_90", signature=signature, constexprs=SIZES).asm["sass"]
    loads = re.findall(r"\bLDG\.E(\.U8)?|\b(BAR)\.SYNC", sass)
    kinds = "".join("B" if barrier else "k" if kept else "x" for kept, barrier in loads)
    assert kinds.startswith("k" * 32 + "B" + "x" * 32)
    signature = {**SIGNATURE, "shift": "*i8:16"}
    compiled = gluon.compile(shifted, target="sm_90", signature=signature, constexprs=SIZES)
    assert "barrier" not in compiled.asm["ttgir"]


def test_the_barrier_changes_no_result(chosen_sources):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((8, 500)).astype(np.float32)
    keep = (rng.random(x.shape) < 0.7).astype(np.int8)
    y = np.zeros_like(x)
    softmax[(2,)](x, keep, y, 500, 4, 512, num_warps=1, target="sim:sm_90")
    wanted = np.exp(x - x.max(1, keepdims=True)) * keep
    assert np.allclose(y, wanted / wanted.sum(1, keepdims=True), atol=1e-6)
    assert chosen_sources[0].count("gl.barrier()") == 1
