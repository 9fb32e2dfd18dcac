"""Exponentials of rows: values, rows that a cluster's blocks share, how often they exchange; misuse."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, DtypeError, ShapeError
from gluon_core.testing import TRITON_VERSION

pytestmark = pytest.mark.once

CLUSTERS = TRITON_VERSION >= (3, 8)


@gluon.jit
def exponentials(x, out, highest, total, columns, ROWS: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, BLOCK], gl.float32)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
    offsets = row[:, None] * columns + column[None, :]
    inside = (column < columns)[None, :] & (row[:, None] >= 0)
    below, most, sums = gl.portable.cluster_softmax(
        gl.load(x + offsets, mask=inside, other=-float("inf"))
    )
    gl.store(out + offsets, below, mask=inside)
    gl.store(highest + row, most)
    gl.store(total + row, sums)


def run(rows, columns, target="sim:sm_90", **options):
    x = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32) * 9
    out, highest, total = np.zeros_like(x), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    exponentials[(1,)](x, out, highest, total, columns, rows, 512, target=target, **options)
    most = x.astype(np.float64).max(axis=1)
    wanted = np.exp(x - most[:, None])
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-30)
    np.testing.assert_array_equal(highest, most.astype(np.float32))
    np.testing.assert_allclose(total, wanted.sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
@pytest.mark.parametrize("rows, columns", [(1, 500), (4, 512), (2, 3)])
def test_computed_results(target, rows, columns):
    run(rows, columns, target, num_warps=4)


@pytest.mark.skipif(not CLUSTERS, reason="Triton 3.8 reduces across a cluster")
@pytest.mark.parametrize("num_ctas", [2, 4])
# With 3 columns most blocks have none; with 4 rows each block of 4 has one of its own.
@pytest.mark.parametrize("rows, columns", [(1, 500), (1, 3), (2, 512), (4, 300)])
def test_rows_that_blocks_share(num_ctas, rows, columns):
    run(rows, columns, num_warps=2, num_ctas=num_ctas)


def compiled(rows, **options):
    arrays = np.zeros((rows, 512), np.float32), *(np.zeros(rows, np.float32) for _ in range(2))
    args = [arrays[0], arrays[0], *arrays[1:], 512, rows, 512]
    return exponentials.warmup(*args, grid=(1,), target="sm_90", num_warps=4, **options)


@gluon.jit
def twice(x, out, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([1, BLOCK], gl.float32)
    column = gl.arange(0, BLOCK, gl.SliceLayout(0, layout))[None, :]
    value = gl.load(x + column)
    below = gl.exp(value - gl.max(value, 1)[:, None])
    gl.store(out + column, below / gl.sum(below, 1)[:, None])


def test_blocks_exchange_once():
    if not CLUSTERS:
        with pytest.raises(CapabilityError, match="blocks of a cluster share needs Triton >= 3.8"):
            compiled(1, num_ctas=4)
        compiled(4, num_ctas=4)  # rows of their own
        return
    x = np.zeros(512, np.float32)
    plain = twice.warmup(x, x, 512, grid=(1,), target="sm_90", num_warps=4, num_ctas=4)
    arrivals = [
        artifact.asm["ptx"].count("cluster.arrive") for artifact in (compiled(1, num_ctas=4), plain)
    ]
    assert arrivals[0] < arrivals[1]


@gluon.jit
def wrong(WAY: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([16, 16], gl.float32)
    if WAY == "halves":
        gl.portable.cluster_softmax(gl.zeros([16, 16], gl.float16, layout))
    if WAY == "one row":
        gl.portable.cluster_softmax(gl.zeros([16], gl.float32, gl.SliceLayout(0, layout)))


@pytest.mark.parametrize("way, error", [("halves", DtypeError), ("one row", ShapeError)])
def test_misuse_is_an_error(way, error):
    with pytest.raises(error, match="x: "):
        wrong[(1,)](way, target="sim:sm_90", num_warps=4)
