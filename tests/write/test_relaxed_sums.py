"""Sums of floats in memory have no order where a kernel writes nothing else."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once

SUMS, STORES, COUNTS, ORDERED, ANSWERED, READ = range(6)


@gluon.jit(layouts="auto")
def scattered(x, places, out, seen, N: gl.constexpr, KIND: gl.constexpr):
    """Add rows by index; by kind with another store, counts, an order, or a use of the sums."""
    row, column = gl.program_id(0), gl.arange(0, N)
    value, place = gl.load(x + row * N + column), gl.load(places + row)
    if KIND == 1:
        gl.store(seen + row * N + column, value)
    if KIND == 2:
        gl.atomic_add(seen + place * N + column, 1)
    elif KIND == 3:
        gl.atomic_add(out + place * N + column, value, sem="acq_rel")
    elif KIND == 4:
        before = gl.atomic_add(out + place * N + column, value)
        gl.static_assert(before.shape[0] == N)
    else:
        value += gl.load(out + place * N + column) * 0 if KIND == 5 else 0
        gl.atomic_add(
            out + place * N + column,
            value,
        )


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
@pytest.mark.parametrize("kind", [SUMS, STORES, COUNTS, ORDERED, ANSWERED, READ])
def test_orders(target, kind, chosen_sources):
    x = np.random.default_rng(0).integers(-4, 4, (8, 32)).astype(np.float32)
    places = np.arange(8, dtype=np.int32) // (1 if kind == READ else 3)
    out, seen = np.zeros((8, 32), np.float32), np.zeros((8, 32), np.int32)
    seen = seen.astype(np.float32) if kind == STORES else seen
    scattered[(8,)](x, places, out, seen, 32, kind, num_warps=1, target=target)
    wanted = np.zeros_like(out)
    np.add.at(wanted, places, x)
    assert np.array_equal(out, wanted) or kind == COUNTS and seen.sum() == 8 * 32
    assert ('value, sem="relaxed"' in chosen_sources[0]) == (kind == SUMS)
