"""Batches of a launch on several threads: the same numbers, the same reports, sooner."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.errors import RaceError, SimulatorError, TimeLimitError
from gluon_sim.executor import machine
from gluon_sim.executor.parallel import Workers, cores
from gluon_sim.settings import using

pytestmark = pytest.mark.sampled(2)

L1 = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
BLOCK = 2048
GRID = 512
SIZE = BLOCK * GRID


@pytest.fixture
def threads(monkeypatch):
    """Record the threads of each launch, and if they completed it."""
    seen = []
    run = Workers.run

    def watched(self, *args):
        seen.append((len(self.machines), run(self, *args)))
        return seen[-1][1]

    monkeypatch.setattr(Workers, "run", watched)
    return seen


@gluon.jit
def through_shared(a, out, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.float32, [N], FLAT)
    s.store(gl.load(a + o))
    x = s.load(L1)
    x = x - gl.max(x, 0)
    gl.store(out + o, x / gl.sum(gl.exp(x), 0))


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_threads_change_no_number(workers, threads):
    a = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    alone, together = np.zeros_like(a), np.zeros_like(a)
    with using(workers=1):
        through_shared[(GRID,)](a, alone, BLOCK)
    assert not threads
    with using(workers=workers):
        through_shared[(GRID,)](a, together, BLOCK)
    assert len(threads) == 1 and 1 < threads[0][0] <= workers and threads[0][1]
    np.testing.assert_array_equal(alone, together)


@gluon.jit
def shifts(a, STEP: gl.constexpr, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    gl.store(a + o + STEP, gl.load(a + o) + 1)


@gluon.jit
def writes_twice(out, flags, N: gl.constexpr):
    me = gl.program_id(0)
    o = me * N + gl.arange(0, N, layout=L1)
    gl.store(out + o, o)
    if me > 0:
        if gl.load(flags + me) > 0:
            gl.store(out + o - N, o)


def told(kernel, *args, **settings):
    with using(**settings), pytest.raises(SimulatorError) as caught:
        kernel[(GRID,)](*args)
    return caught.value.as_dict()


def test_a_race_between_threads_is_the_race_of_one_thread(threads):
    for step in (1, BLOCK // 2):
        first, second = np.zeros(SIZE + BLOCK, np.int32), np.zeros(SIZE + BLOCK, np.int32)
        alone = told(shifts, first, step, BLOCK, workers=1)
        for _ in range(3):
            assert told(shifts, second, step, BLOCK, workers=2) == alone
            assert threads.pop() == (2, False)
            np.testing.assert_array_equal(first, second)  # as if there had been no threads
            second[:] = 0
        assert alone["class"] == RaceError.__name__


@pytest.mark.parametrize("late", [False, True])
def test_a_race_of_programs_far_from_each_other(late, threads):
    flags = np.zeros(GRID, np.int32)
    flags[GRID - 1 if late else 256] = 1  # the first of its batch
    out = np.zeros(SIZE, np.int32)
    alone = told(writes_twice, out, flags, BLOCK, workers=1)
    assert told(writes_twice, out, flags, BLOCK, workers=2) == alone
    assert alone["report"] == "race.programs" and alone["program"][0] == np.argmax(flags)


@gluon.jit
def reads_at(a, starts, out, N: gl.constexpr):
    me = gl.program_id(0)
    o = me * N + gl.arange(0, N, layout=L1)
    gl.store(out + o, gl.load(a + o + gl.load(starts + me)))


def test_the_first_of_several_mistakes_is_reported(threads):
    a, out = np.zeros(SIZE, np.int32), np.zeros(SIZE, np.int32)
    starts = np.zeros(GRID, np.int32)
    starts[GRID // 2 + 1 :] = 2 * SIZE  # already the first batch of the second thread
    starts[5] = SIZE
    alone = told(reads_at, a, starts, out, BLOCK, workers=1)
    for _ in range(3):
        assert told(reads_at, a, starts, out, BLOCK, workers=2) == alone
    assert alone["program"] == [5, 0, 0] and threads[0] == (2, False)


@gluon.jit
def counts(out, N: gl.constexpr):
    gl.atomic_add(out + gl.arange(0, N, layout=L1), 1)


@gluon.jit
def asks_how(a, out, HOW: gl.constexpr, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    if HOW == "prints":
        gl.device_print("here", gl.program_id(0), mask=False)
    gl.store(out + o, gl.load(a + o))


def test_results_that_depend_on_an_order_keep_it(threads):
    a, out = np.zeros(SIZE, np.int32), np.zeros(SIZE, np.int32)
    with using(workers=2):
        counts[(GRID,)](out, BLOCK)
        assert (out[:BLOCK] == GRID).all()
        for settings in ({"races": False}, {"schedule": "random"}):
            with using(**settings):
                reads_at[(GRID,)](a, np.zeros(GRID, np.int32), out, BLOCK)
        reads_at[(2,)](a, np.zeros(GRID, np.int32), out, BLOCK)  # too little work
    assert not threads


@gluon.jit
def never_ends(a, out, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    x = gl.load(a + o)
    i = 0
    while i >= 0:
        i = (i + 1) % 100
        x = x ^ i
    gl.store(out + o, x)


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_end_at_the_timeout(workers):
    a, out = np.zeros(SIZE, np.int32), np.zeros(SIZE, np.int32)
    with using(workers=workers, timeout=0.3), pytest.raises(TimeLimitError) as caught:
        never_ends[(GRID,)](a, out, BLOCK)
    assert caught.value.span.file == __file__


def test_as_many_threads_as_cores(monkeypatch, threads):
    monkeypatch.setattr(
        machine.workers_for.__globals__["os"], "sched_getaffinity", lambda _: {1, 4, 6}
    )
    assert cores() == 3
    a, out = np.zeros(SIZE, np.int32), np.zeros(SIZE, np.int32)
    reads_at[(GRID,)](a, np.zeros(GRID, np.int32), out, BLOCK)
    assert threads == [(3, True)]
    monkeypatch.setenv("GLUON_SIM_WORKERS", "1")
    reads_at[(GRID,)](a, np.zeros(GRID, np.int32), out, BLOCK)
    assert len(threads) == 1
