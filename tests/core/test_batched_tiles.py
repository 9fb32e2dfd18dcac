"""Tiles of fewer dimensions than their tensor: one matrix of a batch, whose rows end where those of the matrix do."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ShapeError

pytestmark = pytest.mark.once

TARGETS = ["sim:sm_80", "sim:sm_90", "sim:sm_100", "sim:gfx942", "sim:gfx1250"]
ROWS, COLUMNS = 24, 40  # of a matrix; tiles of 32 x 32 leave both


@gluon.jit(layouts="auto")
def doubled(x, y, rows, columns):
    """Copy each tile by registers, and by a pipeline."""
    of_x = gl.portable.descriptor(x, [3, rows, columns], [rows * columns, columns, 1], [32, 32])
    of_y = gl.portable.descriptor(y, [3, rows, columns], [rows * columns, columns, 1], [32, 32])
    matrix, column = gl.program_id(0), gl.program_id(1) * 32
    ring = gl.portable.pipeline([of_x], 1)
    ring.fetch(0, [[matrix, 0, column]])
    buffer = ring.wait(0, pending=0)
    value = gl.portable.load(of_x, [matrix, 0, column]) + buffer[0].load()
    gl.portable.store(of_y, [matrix, 0, column], value)
    ring.close()


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_ends_with_its_matrix(target):
    x = np.random.default_rng(0).standard_normal((3, ROWS, COLUMNS)).astype(np.float16)
    y = np.full_like(x, 7)
    doubled[(3, 2)](x, y, ROWS, COLUMNS, target=target)
    assert np.array_equal(y, x + x)


@gluon.jit(layouts="auto")
def row_sums(x, out, rows):
    """Write the sums of all rows of a tile, with those behind the matrix."""
    tiles = gl.portable.descriptor(x, [3, rows, 32], [rows * 32, 32, 1], [32, 32])
    total = gl.sum(gl.portable.load(tiles, [gl.program_id(0), 0, 0]), 1)
    gl.store(out + gl.program_id(0) * 32 + gl.arange(0, 32), total)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_behind_a_matrix_are_zero(target):
    x, out = np.ones((3, ROWS, 32), np.float32), np.full((3, 32), 7, np.float32)
    row_sums[(3,)](x, out, ROWS, target=target)
    assert np.array_equal(out, np.where(np.arange(32) < ROWS, 32, 0) * np.ones((3, 1)))


@gluon.jit(layouts="auto")
def wider(x):
    gl.portable.descriptor(x, [8], [1], [8, 8])


def test_a_tile_has_no_more_dimensions_than_its_tensor():
    with pytest.raises(ShapeError, match="the tile no more dimensions"):
        wider[(1,)](np.zeros(64, np.float16), target="sim:sm_90")
