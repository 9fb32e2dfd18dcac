"""The order in which programs of attention on Hopper take their tiles: each once, and all get equal work."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.demo import examples_package
from gluon_core.contract.registry import registry

tiles = importlib.import_module(f"{examples_package().__name__}.attention_tiles")
rounds, work_at = tiles.rounds, tiles.work_at


@gluon.jit
def visit(out, heads, length, SETTINGS: gl.constexpr):
    sizes = (heads, length)
    for round in range(rounds(sizes, SETTINGS)):
        row, head, count = work_at(round, sizes, SETTINGS)
        if head < heads:
            place = out + (head * length + row) * 2
            gl.atomic_add(place, count)
            gl.atomic_add(place + 1, gl.program_id(0) + 1)


@pytest.mark.once
@pytest.mark.parametrize(
    "heads, length, block, group, programs, most",
    [(32, 64, (2, 2), 8, 13, 1.02), (32, 63, (3, 2), 8, 13, 1.06), (7, 20, (3, 2), 3, 5, 1.2)],
)
def test_programs_get_equal_work(heads, length, block, group, programs, most):
    out = np.zeros((heads, length, 2), np.int32)
    target = registry().target("sim:sm_90")
    visit[(programs,)](out, heads, length, (*block, True, group), target=target)
    counts, owners = out[:, :: block[0], 0], out[:, :: block[0], 1] - 1
    ends = np.minimum(np.arange(1, counts.shape[1] + 1) * block[0], length)
    np.testing.assert_array_equal(counts, np.tile(-(-ends // block[1]), (heads, 1)))
    assert out.sum() == counts.sum() + (owners + 1).sum()  # nothing at other rows
    work = np.bincount(owners.ravel(), counts.ravel(), minlength=programs)
    assert work.max() <= most * work.mean(), work
