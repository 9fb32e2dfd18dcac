"""Gathers add what no step changes to their pointers before the loop."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def bags(table, rows, out, count, first, D, BK: gl.constexpr, BD: gl.constexpr):
    """Add the rows of a table that numbers name, and those before them."""
    column = gl.arange(0, BD)
    skipped = first * D
    acc = gl.zeros([BK, BD], gl.float32)
    for start in range(0, count, BK):
        item = start + gl.arange(0, BK)
        row = gl.load(rows + item, mask=item < count, other=0)
        inside = (item < count)[:, None] & (column < D)[None, :]
        acc += gl.load(table + skipped + row[:, None] * D + column[None, :], mask=inside, other=0.0)
        acc += gl.load(table + (row[:, None] - 1) * D + column[None, :], mask=inside, other=0.0)
        acc += gl.load(first + table + row[:, None] * D, mask=inside, other=0.0)
    gl.store(out + column, gl.sum(acc, 0), mask=column < D)


def test_columns_are_added_before_the_loop(chosen_sources):
    table = np.random.default_rng(2).standard_normal((9, 100)).astype(np.float32)
    rows, out = np.array([3, 1, 6, 2, 5], np.int32), np.zeros(100, np.float32)
    bags[(1,)](table, rows, out, 5, 2, 100, 4, 128, num_warps=2, target="sim:sm_90")
    wanted = (table[rows + 2] + table[rows - 1] + table.reshape(-1)[rows * 100 + 2][:, None]).sum(0)
    assert np.allclose(out, wanted, atol=1e-4)
    loop = chosen_sources[0].partition("for start")[2]
    assert "table_base = table + skipped + column[None, :]\n" in chosen_sources[0]
    assert "gl.load(table_base + row[:, None] * D," in loop
    assert "gl.load(table_base_2 + (row[:, None] - 1) * D," in loop
    assert "gl.load(first + table + row[:, None] * D," in loop  # which is no pointer at first
