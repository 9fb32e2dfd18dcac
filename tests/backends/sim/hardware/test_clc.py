"""Cluster launch control: programs take over others; each runs once, whoever runs it."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import clc, fence_async_shared, mbarrier
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import DeadlockError, RaceError
from gluon_sim.settings import using

pytestmark = pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@pytest.fixture(autouse=True)
def _blackwell(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_100")


@gluon.jit
def work(counts, owners, x, y, z, NX: gl.constexpr, NY: gl.constexpr):
    tile = x + NX * (y + NY * z)
    gl.atomic_add(counts + tile, 1)
    gl.store(owners + tile, gl.program_id(0))


@gluon.jit
def persistent(
    counts,
    owners,
    NX: gl.constexpr,
    NY: gl.constexpr,
    WAIT: gl.constexpr = True,
    EXPECT: gl.constexpr = True,
):
    answer = gl.allocate_shared_memory(gl.int64, [2], FLAT)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    x, y, z = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    phase = 0
    more = True
    while more:
        if EXPECT:
            mbarrier.expect(bar, 16)
        else:
            mbarrier.arrive(bar)
        clc.try_cancel(answer, bar)
        work(counts, owners, x, y, z, NX, NY)
        if WAIT:
            mbarrier.wait(bar, phase)
        got = clc.load_result(answer)
        more = got.is_canceled()
        x, y, z = got.program_id(0), got.program_id(1), got.program_id(2)
        phase ^= 1
        fence_async_shared()
    mbarrier.invalidate(bar)


def run(grid=(5, 3, 2), **settings):
    counts, owners = np.zeros(grid[::-1], np.int32), np.full(grid[::-1], -1, np.int32)
    with using(**settings):
        persistent[grid](counts, owners, grid[0], grid[1])
    return counts, owners


@pytest.mark.once
@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_each_program_runs_once(schedule):
    counts, owners = run(schedule=schedule, seed=5)
    assert (counts == 1).all()
    assert len(np.unique(owners)) <= 5


def test_programs_are_really_taken_over():
    _, owners = run(grid=(16, 1, 1))
    own = np.arange(16) == owners.ravel()
    assert 0 < own.sum() < 16


def test_a_small_grid_has_nothing_to_take():
    counts, owners = run(grid=(2, 1, 1))
    assert (counts == 1).all() and (owners.ravel() == [0, 1]).all()


def test_the_wait_is_needed():
    with pytest.raises(RaceError, match=r"Put `mbarrier.wait\(bar, phase\)`"):
        persistent[(4,)](np.zeros(4, np.int32), np.zeros(4, np.int32), 4, 1, WAIT=False)


@gluon.jit
def once(out, EXPECT: gl.constexpr, FENCE: gl.constexpr):
    answer = gl.allocate_shared_memory(gl.int64, [2], FLAT)
    answer.store(gl.full([2], 7, gl.int64, gl.BlockedLayout([1], [32], [4], [0])))
    if FENCE:
        fence_async_shared()
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    clc.try_cancel(answer, bar)
    mbarrier.expect(bar, EXPECT)
    mbarrier.wait(bar, 0)
    got = clc.load_result(answer)
    if got.is_canceled():
        gl.store(out + got.program_id(0), gl.program_id(0) + 1)
    else:
        gl.store(out + gl.program_id(0), -1)
    mbarrier.invalidate(bar)


@pytest.mark.once
def test_the_answer_is_sixteen_bytes():
    out = np.zeros(1, np.int32)
    once[(1,)](out, 16, True)
    assert out[0] == -1
    with pytest.raises(DeadlockError, match="phase 0"):
        once[(1,)](out, 32, True)


@pytest.mark.once
@pytest.mark.usefixtures("no_implied_fences")
def test_the_answer_comes_through_the_other_proxy():
    with pytest.raises(RaceError, match="fence"):
        once[(1,)](np.zeros(1, np.int32), 16, False)


def test_an_unclaimed_program_runs_itself():
    out = np.zeros(9, np.int32)
    with using(races=False):
        once[(9,)](out, 16, True)
    # A program that took another over wrote for that one, others for themselves.
    assert (out > 0).sum() == (out == 0).sum() > 0
    assert (out[:4] <= 0).all()
