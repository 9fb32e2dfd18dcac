"""Threads that hold the same element: a race with a load matters where its value is used."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_emu.errors import OrderError
from gluon_emu.settings import using

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::UserWarning")]
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
SCHEDULES = [("latest", 0), ("random", 0), ("random", 1)]


@gluon.jit
def in_place(x, y, USE: gl.constexpr):
    """Four warps hold the 32 elements; the first of them stores."""
    i = gl.arange(0, 32, LINE)
    values = gl.load(x + i)
    if USE == "after a barrier":
        gl.barrier()
    gl.store(x + i, values * 2)
    if USE == "summed":
        gl.store(y, gl.sum(values, 0))
    elif USE == "in shared memory" or USE == "after a barrier":
        copy = gl.allocate_shared_memory(gl.int32, [32], FLAT, values)
        gl.store(y + i, copy.load(LINE))


@gluon.jit
def ticket(x, y, BARRIER: gl.constexpr):
    """One thread counts up; all write the count that they have loaded."""
    i = gl.arange(0, 128, LINE)
    value = gl.load(x)
    if BARRIER:
        gl.barrier()
    gl.store(x, value + 1)
    gl.store(y + i, value + i)


@gluon.jit
def rounds(x, n):
    i = gl.arange(0, 32, LINE)
    for _ in range(n):
        gl.store(x + i, gl.load(x + i) + 1)


def checked(kernel, *arguments):
    for schedule, seed in SCHEDULES:
        with using(search=True, schedule=schedule, seed=seed, timeout=60.0):
            kernel[(1,)](*arguments, target="emu:sm_90")


@pytest.mark.parametrize("use", ["", "summed", "after a barrier"])
def test_values_that_no_other_thread_uses(use):
    x, y = np.ones(32, np.int32), np.zeros(32, np.int32)
    checked(in_place, x, y, use)
    assert (x == 2 ** len(SCHEDULES)).all()
    if use:
        assert y[0] == (32 if use == "summed" else 1) * 2 ** (len(SCHEDULES) - 1)


def test_each_round_loads_the_value_of_its_own_thread():
    x = np.zeros(32, np.int32)
    checked(rounds, x, 3)
    assert (x == 9).all()


@pytest.mark.parametrize(
    "kernel, use", [(in_place, "in shared memory"), (ticket, False)], ids=["shared", "ticket"]
)
def test_values_that_other_threads_use(kernel, use):
    for schedule, seed in SCHEDULES:
        x, y = np.zeros(32, np.int32), np.zeros(128, np.int32)
        with using(search=True, schedule=schedule, seed=seed), pytest.raises(OrderError) as caught:
            kernel[(1,)](x, y, use, target="emu:sm_90")
        assert "of x: this" in str(caught.value)
    x, y = np.zeros(32, np.int32), np.zeros(128, np.int32)
    checked(kernel, x, y, "after a barrier" if use else True)


@gluon.jit
def under_a_lock(x, lock):
    while gl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    gl.store(x, gl.load(x, volatile=True) + 1)
    gl.barrier()
    gl.atomic_xchg(lock, 0, sem="release")


def test_a_volatile_load_of_a_value_that_one_thread_uses():
    x, lock = np.zeros(1, np.int32), np.zeros(1, np.int32)
    for schedule, seed in SCHEDULES:
        with using(search=True, schedule=schedule, seed=seed, timeout=60.0):
            under_a_lock[(3,)](x, lock, target="emu:sm_90")
    assert x[0] == 3 * len(SCHEDULES)
