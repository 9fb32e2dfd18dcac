"""Copies in flight land when the schedule says so; results of a correct kernel never change."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_sim.errors import LeakError, OutOfBoundsError
from gluon_sim.settings import Settings, using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
UNCHECKED = Settings.without_checks()


@gluon.jit
def waits_as_told(a, out, N: gl.constexpr, PENDING: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    s.store(o * 0 - 1)
    cp.async_copy_global_to_shared(s, a + o)
    cp.commit_group()
    cp.wait_group(PENDING)
    gl.store(out + o, s.load(L1))
    cp.wait_group(0)


def result(pending, **settings):
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    with using(UNCHECKED, **settings):
        waits_as_told[(1,)](a, out, 128, pending)
    return out


def test_a_copy_lands_when_its_group_is_waited_for():
    assert (result(1) == -1).all()
    assert (result(0) == np.arange(128)).all()


def test_an_eager_copy_lands_at_once():
    assert (result(1, schedule="eager") == np.arange(128)).all()


def test_a_random_schedule_depends_on_its_seed_alone():
    seen = {}
    for seed in range(16):
        seen[seed] = [bool((result(1, schedule="random", seed=seed) == -1).all()) for _ in "ab"]
    assert all(first == second for first, second in seen.values())
    assert len({first for first, _ in seen.values()}) == 2


def test_the_environment_chooses_the_schedule(monkeypatch):
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    monkeypatch.setenv("GLUON_SIM_CHECKS", "0")
    waits_as_told[(1,)](a, out, 128, 1)
    assert (out == -1).all()
    monkeypatch.setenv("GLUON_SIM_SCHEDULE", "eager")
    waits_as_told[(1,)](a, out, 128, 1)
    assert (out == a).all()
    monkeypatch.setenv("GLUON_SIM_SCHEDULE", "sooner")
    with pytest.raises(ArgumentError, match="latest, eager, random"):
        waits_as_told[(1,)](a, out, 128, 1)


def test_a_launch_chooses_the_schedule_by_options():
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    with using(UNCHECKED):
        waits_as_told[(1,)](a, out, 128, 1, schedule="eager")
        assert (out == a).all()
        waits_as_told[(1,)](a, out, 128, 1)
        assert (out == -1).all()
        with pytest.raises(ArgumentError, match="schedule"):
            waits_as_told[(1,)](a, out, 128, 1, schedule="sooner")


@gluon.jit
def through_a_barrier(a, out, N: gl.constexpr, NOINC: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 128 if NOINC else 1)
    for i in range(4):
        cp.async_copy_global_to_shared(s.index(i % 2), a + i * N + o)
        cp.mbarrier_arrive(bar, increment_count=not NOINC)
        if not NOINC:
            mbarrier.arrive(bar)
        mbarrier.wait(bar, i % 2)
        gl.store(out + i * N + o, s.index(i % 2).load(L1))
    mbarrier.invalidate(bar)


@pytest.mark.parametrize("noinc", [False, True])
@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_a_barrier_tracks_copies(schedule, noinc):
    a, out = np.arange(512, dtype=np.int32), np.zeros(512, np.int32)
    with using(schedule=schedule, seed=3):
        through_a_barrier[(1,)](a, out, 128, noinc)
    np.testing.assert_array_equal(out, a)


@gluon.jit
def leaves_a_copy(a, n, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    cp.async_copy_global_to_shared(s, a + o, mask=o < n)
    cp.commit_group()


def test_a_copy_that_nobody_waits_for():
    a = np.arange(128, dtype=np.int32)
    with using(tolerated="error"), pytest.raises(LeakError, match="nobody waited") as caught:
        leaves_a_copy[(1,)](a, 128, 128)
    assert "async_copy_global_to_shared" in caught.value.span.text
    with using(leaks=False):
        leaves_a_copy[(1,)](a, 128, 128)
    leaves_a_copy[(1,)](a, 0, 128)  # brings nothing


def test_a_late_copy_fails_at_the_line_that_issued_it():
    with pytest.raises(OutOfBoundsError) as caught:
        waits_as_told[(1,)](np.zeros(100, np.int32), np.zeros(128, np.int32), 128, 0)
    assert "async_copy_global_to_shared" in caught.value.span.text


@gluon.jit
def in_some_programs(a, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
    first = gl.load(a + gl.program_id(0))
    s.index(0).store(o * 0)
    cp.async_copy_global_to_shared(s.index(1), a + o)
    cp.commit_group()
    if first > 1:
        cp.async_copy_global_to_shared(s.index(0), a + o)
        cp.commit_group()
        cp.wait_group(1)
    else:
        cp.wait_group(0)
    x = s.index(1).load(L1)
    cp.wait_group(0)
    gl.store(out + gl.program_id(0) * N + o, x + s.index(0).load(L1))


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_groups_are_counted_for_each_program(schedule):
    a, out = np.arange(128, dtype=np.int32), np.zeros((4, 128), np.int32)
    with using(schedule=schedule):
        in_some_programs[(4,)](a, out, 128)
    np.testing.assert_array_equal(out, [a, a, 2 * a, 2 * a])
