"""Kernels whose layouts are chosen get a limit of registers where more loads are under way, or more blocks run at once."""

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(1)]


@gluon.jit(layouts="auto")
def gemv(a, x, y, M, N, BM: gl.constexpr, BN: gl.constexpr):
    m = gl.program_id(0) * BM + gl.arange(0, BM)
    acc = gl.zeros([BM, BN], gl.float32)
    for start in range(0, N, BN):
        n = start + gl.arange(0, BN)
        inside = (m[:, None] < M) & (n[None, :] < N)
        tile = gl.load(a + m[:, None] * N + n[None, :], mask=inside, other=0.0)
        acc += tile * gl.load(x + n, mask=n < N, other=0.0)[None, :]
    gl.store(y + m, gl.sum(acc, axis=1), mask=m < M)


@gluon.jit(layouts="auto")
def softmax(x, keep, y, M, N, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    row, column = gl.program_id(0) * ROWS + gl.arange(0, ROWS), gl.arange(0, BLOCK)
    place = row[:, None] * N + column[None, :]
    inside = (row[:, None] < M) & (column[None, :] < N)
    kept = gl.load(keep + place, mask=inside, other=0) != 0
    values = gl.load(x + place, mask=inside & kept, other=-float("inf")).to(gl.float32)
    top = gl.max(values, axis=1)
    powers = gl.exp(values - gl.where(top == -float("inf"), 0.0, top)[:, None])
    total = gl.sum(powers, axis=1)
    powers = powers / gl.where(total == 0.0, 1.0, total)[:, None]
    gl.store(y + place, powers.to(y.dtype.element_ty), mask=inside)


@gluon.jit(layouts="auto")
def histogram(x, counts, n, BINS: gl.constexpr, BLOCK: gl.constexpr):
    total = gl.zeros([BINS], gl.int32)
    for start in range(gl.program_id(0) * BLOCK, n, gl.num_programs(0) * BLOCK):
        place = start + gl.arange(0, BLOCK)
        total += gl.histogram(gl.load(x + place, mask=place < n, other=0), BINS, mask=place < n)
    gl.atomic_add(counts + gl.arange(0, BINS), total)


def _gemv(**options):
    signature = {"a": "*fp32:16", "x": "*fp32:16", "y": "*fp32:16", "M": "i32:16", "N": "i32:16"}
    constants = {"BM": 16, "BN": 256}
    return gluon.compile(gemv, target="sm_90", signature=signature, constexprs=constants, **options)


def _most_under_way(compiled):
    """Return how many loads follow each other with no multiplication between."""
    names = re.findall(r"\b(LDG|FFMA)\b", compiled.asm["sass"])
    return max(len(run) for run in "".join(name[0] for name in names).split("F"))


def test_all_loads_of_a_step_are_under_way():
    compiled = _gemv()
    assert _most_under_way(compiled) >= 9  # eight of a tile, and the vector's
    assert compiled.n_regs <= compiled.metadata.maxnreg


def test_a_limit_of_the_launch_is_kept():
    compiled = _gemv(maxnreg=64)
    assert compiled.metadata.maxnreg == 64 and compiled.n_regs <= 64


def test_one_more_block_runs():
    signature = {"x": "*fp16:16", "keep": "*i8:16", "y": "*fp16:16", "M": "i32:16", "N": "i32"}
    constants = {"ROWS": 4, "BLOCK": 1024}
    compiled = gluon.compile(softmax, target="sm_90", signature=signature, constexprs=constants)
    assert compiled.metadata.maxnreg and compiled.report().occupancy > 16


def test_a_limit_that_spills_is_dropped():
    signature = {"x": "*i32:16", "counts": "*i32:16", "n": "i32:16"}
    constants = {"BINS": 256, "BLOCK": 2048}
    compiled = gluon.compile(histogram, target="sm_90", signature=signature, constexprs=constants)
    assert compiled.report().scratch == 0
