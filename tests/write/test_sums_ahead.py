"""Loops of sums load for the next step once they have used their own elements, all loads together."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


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
def moved(a, x, y, M, N, BM: gl.constexpr, BN: gl.constexpr):
    """Move the pointers from the last step to the first."""
    m, n = gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    start = N - BN
    tiles, factors = a + m[:, None] * N + (start + n)[None, :], x + start + n
    for k in range(N, 0, -BN):
        acc += gl.load(tiles) * gl.load(factors)[None, :]
        tiles -= BN
        factors -= BN
    gl.store(y + m, gl.sum(acc, axis=1))


@gluon.jit(layouts="auto")
def running(x, y, total, N, BM: gl.constexpr, BN: gl.constexpr):
    """Store each step's sums, which the next step may load."""
    place = gl.arange(0, BM)[:, None] * BN + gl.arange(0, BN)[None, :]
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, N):
        acc += gl.load(x + k * BM * BN + place)
        gl.store(y + k * BM * BN + place, acc)
    gl.store(total + place, acc)


@gluon.jit(layouts="auto")
def counted(x, counts, n, BINS: gl.constexpr, BLOCK: gl.constexpr):
    total = gl.zeros([BINS], gl.int32)
    for start in range(gl.program_id(0) * BLOCK, n, gl.num_programs(0) * BLOCK):
        place = start + gl.arange(0, BLOCK)
        values = gl.load(x + place, mask=place < n, other=0)
        total += gl.histogram(values, BINS, mask=place < n)
    gl.atomic_add(counts + gl.arange(0, BINS), total)


def test_counts_are_those_of_all_steps(chosen_sources):
    x = np.random.default_rng(3).integers(0, 32, 3008).astype(np.int32)
    counts = np.zeros(32, np.int32)
    counted[(2,)](x, counts, 3008, 32, 512, num_warps=1, target="sim:sm_90")
    assert (counts == np.bincount(x, minlength=32)).all()
    assert "gl.histogram(values, BINS" in chosen_sources[0]
    assert "values = values_ahead" in chosen_sources[0]


def of(kernel, a, x):
    y = np.zeros(len(a), np.float32)
    kernel[(1,)](a, x, y, *a.shape, len(a), 64, num_warps=1, target="sim:sm_90")
    return y


@pytest.mark.parametrize("kernel, widths", [(gemv, (256, 176, 0)), (moved, (192,))])
def test_sums_are_those_of_all_steps(chosen_sources, kernel, widths):
    for width in widths:
        rng = np.random.default_rng(width)
        a, x = (rng.standard_normal(s).astype(np.float32) for s in ((8, width), width))
        assert np.allclose(of(kernel, a, x), a @ x, atol=1e-4)
    for text in chosen_sources:
        step = re.findall(r"\n {8,}acc \+= .*", text)
        assert step and all("gl.load" not in line and "_ahead" in line for line in step)


@gluon.jit(layouts="auto")
def moments(x, sums, squares, M, N, BM: gl.constexpr, BN: gl.constexpr):
    n = gl.arange(0, BN)
    total, squared = gl.zeros([BM, BN], gl.float32), gl.zeros([BM, BN], gl.float32)
    for start in range(0, M, BM):
        m = start + gl.arange(0, BM)
        tile = gl.load(x + m[:, None] * N + n[None, :], mask=(m < M)[:, None], other=0.0)
        tile = tile.to(gl.float32)
        total += tile
        squared += tile * tile
    gl.store(sums + n, gl.sum(total, 0))
    gl.store(squares + n, gl.sum(squared, 0))


def test_a_few_sums_may_belong_to_each_load(chosen_sources):
    """Two loads of a thread in a step, whose eight registers end in 32."""
    x = np.random.default_rng(5).standard_normal((70, 64)).astype(np.float16)
    sums, squares = np.zeros(64, np.float32), np.zeros(64, np.float32)
    moments[(1,)](x, sums, squares, 70, 64, 32, 64, num_warps=4, target="sim:sm_90")
    exact = x.astype(np.float32)
    assert np.allclose(sums, exact.sum(0), atol=1e-3)
    assert np.allclose(squares, (exact**2).sum(0), atol=1e-3)
    assert "tile = tile_ahead" in chosen_sources[0]


def test_single_elements_are_loaded_when_they_are_used(chosen_sources):
    a, x = np.ones((8, 150), np.float32), np.ones(150, np.float32)
    assert (of(gemv, a, x) == 150).all()
    assert "_ahead" not in chosen_sources[0]


def test_a_step_may_load_values_that_the_one_before_stored(chosen_sources):
    x = np.ones((5, 16, 64), np.float32)
    total = np.zeros((16, 64), np.float32)
    running[(1,)](x, x[1:], total, 4, 16, 64, num_warps=1, target="sim:sm_90")
    assert (total == 8).all()
    assert "_ahead" not in chosen_sources[0]


def test_all_loads_of_a_step_are_under_way():
    signature = {"a": "*fp32:16", "x": "*fp32:16", "y": "*fp32:16", "M": "i32:16", "N": "i32:16"}
    compiled = gluon.compile(
        gemv, target="sm_90", signature=signature, constexprs={"BM": 16, "BN": 256}
    )
    names = re.findall(r"\b(LDG|FFMA)\b", compiled.asm["sass"])
    runs = re.findall("L+", "".join(name[0] for name in names))
    assert sorted(map(len, runs))[-2] >= 8  # of a tile; the vector's may be apart
