"""The order in which programs visit the tiles of a result."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry

pytestmark = pytest.mark.sampled(2)


@gluon.jit
def visit(out, m, n, GROUP: gl.constexpr):
    tiles = gl.portable.swizzled_tiles([m, n], [4, 2], GROUP)
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        gl.store(out + 2 * tile, row)
        gl.store(out + 2 * tile + 1, column)


@pytest.mark.once
@pytest.mark.parametrize("m, n, group", [(1, 1, 8), (20, 6, 2), (21, 7, 3), (4, 40, 8), (40, 2, 8)])
@pytest.mark.parametrize("spec", ["sim:sm_90", "sim:gfx942"])
def test_swizzled_tiles_visit_each_tile_once(m, n, group, spec):
    tiles_m, tiles_n = -(-m // 4), -(-n // 2)
    out = np.full((tiles_m * tiles_n + 1, 2), -1, np.int32)
    visit[(3,)](out, m, n, group, target=registry().target(spec))
    assert (out[-1] == -1).all()
    visits = [tuple(position) for position in out[:-1].tolist()]
    assert set(visits) == {(4 * i, 2 * j) for i in range(tiles_m) for j in range(tiles_n)}
    # The first `group` rows of tiles come before any other.
    first = visits[: min(group, tiles_m) * tiles_n]
    assert {row for row, _ in first} == {4 * i for i in range(min(group, tiles_m))}


@gluon.jit
def visit_from(out, m, n, first, GROUP: gl.constexpr):
    tiles = gl.portable.swizzled_tiles([m, n], [4, 2], GROUP, first_row=first)
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        gl.store(out + 2 * tile, row)
        gl.store(out + 2 * tile + 1, column)


@pytest.mark.once
@pytest.mark.parametrize("m, n, first", [(20, 6, 8), (21, 7, 20), (4, 40, 0)])
def test_the_order_begins_at_another_row(m, n, first):
    count = -(-m // 4) * -(-n // 2)
    plain, moved = np.zeros((count, 2), np.int32), np.zeros((count, 2), np.int32)
    visit[(2,)](plain, m, n, 2, target=registry().target("sim:sm_90"))
    visit_from[(2,)](moved, m, n, first, 2, target=registry().target("sim:sm_90"))
    rows = -(-m // 4) * 4
    assert moved.tolist() == [[(row + first) % rows, column] for row, column in plain.tolist()]
