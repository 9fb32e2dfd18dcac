"""Threads of one program that meet in global memory need a barrier between them."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.testing import triton_at_least
from gluon_sim.errors import RaceError, SimulatorWarning
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
WIDE = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def turns(x, out, N: gl.constexpr, BARRIER: gl.constexpr, TWICE: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(x + o, o)
    if BARRIER:
        gl.thread_barrier()
    y = gl.load(x + (N - 1 - o if TWICE else o))
    gl.store(out + o, y)


def reported(kernel, *args, grid=1):
    with pytest.raises(RaceError) as caught:
        kernel[(grid,)](*args)
    assert caught.value.report == "race.threads" and caught.value.span.file == __file__
    return caught.value


def test_a_load_of_the_value_that_another_thread_stored():
    x, out = np.zeros(128, np.int32), np.zeros(128, np.int32)
    error = reported(turns, x, out, 128, False, True)
    assert "different threads" in str(error) and "gl.barrier()" in error.remedy
    assert [a.kind for a in error.accesses] == ["write", "read"]
    turns[(1,)](x, out, 128, True, True)
    np.testing.assert_array_equal(out, np.arange(128)[::-1])
    turns[(1,)](x, out, 128, False, False)
    with using(races=False):
        turns[(1,)](x, out, 128, False, True)


@gluon.jit
def reverses_in_place(x, N: gl.constexpr, BARRIER: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    base = x + gl.program_id(0) * N
    y = gl.load(base + (N - 1 - o))
    if BARRIER:
        gl.thread_barrier()
    gl.store(base + o, y)


@pytest.mark.parametrize("grid", [1, 40])
def test_a_store_where_another_thread_still_loads(grid):
    x = np.arange(128 * grid, dtype=np.int32)
    error = reported(reverses_in_place, x.copy(), 128, False, grid=grid)
    assert [a.kind for a in error.accesses] == ["read", "write"]
    y = x.copy()
    reverses_in_place[(grid,)](y, 128, True)
    np.testing.assert_array_equal(y.reshape(grid, 128), x.reshape(grid, 128)[:, ::-1])


@gluon.jit
def in_two_layouts(x, N: gl.constexpr, HOW: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    w = gl.arange(0, N, layout=WIDE)
    gl.store(x + o, gl.load(x + o) + o)
    if HOW == "shared":
        s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
        s.store(o)
        gl.store(x + w, s.load(WIDE))
    elif HOW == "converted":
        gl.store(x + w, gl.convert_layout(o, WIDE))
    else:
        gl.store(x + w, w)


def test_two_stores_by_different_threads():
    x = np.zeros(512, np.int32)
    error = reported(in_two_layouts, x, 512, "directly")
    assert [a.kind for a in error.accesses] == ["write", "write"]
    # Ops through shared memory hold barriers of the compiler's.
    in_two_layouts[(1,)](x, 512, "shared")
    in_two_layouts[(1,)](x, 512, "converted")


@gluon.jit
def increments(x, ROUNDS: gl.constexpr, BARRIER: gl.constexpr):
    for _ in range(ROUNDS):
        gl.store(x, gl.load(x) + 1)
        if BARRIER:
            gl.thread_barrier()


def test_threads_that_hold_the_same_may_each_go_on_with_their_own():
    for barrier in (False, True):
        x = np.zeros(1, np.int32)
        increments[(1,)](x, 3, barrier)
        assert x[0] == 3


@gluon.jit
def scales_in_place(x, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    for _ in range(3):
        gl.store(x + o, gl.load(x + o) * 2, mask=o < 1000)


def test_a_thread_may_go_on_with_its_own():
    x = np.ones(1024, np.int32)
    scales_in_place[(8,)](x, 128)
    assert (x[:1000] == 8).all() and (x[1000:] == 1).all()


def test_two_names_for_one_array():
    x = np.zeros(128, np.int32)
    reported(reverses_through, x, x, 128)


@gluon.jit
def reverses_through(x, y, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(y + o, gl.load(x + (N - 1 - o)))


@gluon.jit
def turned_in_place(x):
    o = gl.arange(0, 128, layout=L1)
    gl.store(x + 127 - o, gl.load(x + o))


def test_a_race_within_one_line_asks_for_two():
    error = reported(turned_in_place, np.zeros(128, np.int32))
    assert error.remedy.startswith("Put gl.barrier() between the two, each in a line of its own")


@gluon.jit
def counts_and_tells(x, out, N: gl.constexpr, BARRIER: gl.constexpr):
    """One thread stores the next count; the others write the one that they have loaded."""
    o = gl.arange(0, N, layout=L1)
    count = gl.load(x)
    if BARRIER:
        gl.barrier()
    gl.store(x, count + 1)
    gl.store(out + o, count + o)


@gluon.jit
def a_row_for_all(x, out, ROWS: gl.constexpr, BARRIER: gl.constexpr):
    tall: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [0, 1])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, tall))
    columns = gl.arange(0, 2, gl.SliceLayout(0, tall))
    row = gl.load(x + columns)
    if BARRIER:
        gl.barrier()
    gl.store(x + columns, row + 1)
    gl.store(out + rows[:, None] * 2 + columns[None, :], gl.expand_dims(row, 0) + rows[:, None])


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx1250"])
@pytest.mark.parametrize("kernel", [counts_and_tells, a_row_for_all])
def test_values_that_all_threads_have_loaded(kernel, target):
    x, out = np.zeros(2, np.int32), np.zeros(256, np.int32)
    with pytest.raises(RaceError) as caught:
        kernel[(1,)](x, out, 128, False, target=target)
    assert caught.value.report == "race.threads"
    x[:], out[:] = 0, 0
    kernel[(1,)](x, out, 128, True, target=target)
    assert x[0] == 1 and out[-1] == (0 if kernel is counts_and_tells else 127)


@gluon.jit
def in_place(x, N: gl.constexpr):
    """Warps that hold the same element, of which one stores."""
    o = gl.arange(0, N, layout=L1)
    gl.store(x + o, gl.load(x + o) * 2)


def test_values_that_the_storing_thread_alone_uses():
    x = np.ones(32, np.int32)
    in_place[(1,)](x, 32)
    assert (x == 2).all()


@gluon.jit
def first_of_its_kind(count, out, BARRIER: gl.constexpr, ATOMIC: gl.constexpr):
    """The first program stores, the others add: each warp decides by the count that it has loaded."""
    i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    value = i + 1
    seen = gl.load(count)
    if BARRIER:
        gl.barrier()
    if seen == 0:
        if ATOMIC:
            gl.atomic_xchg(count, 1)
        else:
            gl.store(count, 1)
    else:
        value += gl.load(out + i)
    gl.store(out + i, value)


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("barrier", [True, False])
def test_a_loaded_value_that_decides_about_stores_of_others(barrier, atomic):
    count, out = np.zeros(1, np.int32), np.zeros(128, np.int32)
    if barrier or (atomic and triton_at_least(3, 9)):  # which puts a barrier before the atomic
        first_of_its_kind[(1,)](count, out, barrier, atomic, target="sim:sm_90")
        assert (out == np.arange(128) + 1).all()
        return
    with pytest.raises(RaceError, match="no barrier orders") as caught, using(checks=True):
        first_of_its_kind[(1,)](count, out, barrier, atomic, target="sim:sm_90")
    assert caught.value.report == "race.threads"
    count[:] = 0
    with pytest.warns(SimulatorWarning, match="no barrier orders"):
        first_of_its_kind[(1,)](count, out, barrier, atomic, target="sim:sm_90")


@gluon.jit
def marks(flag, out):
    """The value decides about an effect of one thread alone, which is the one that stores."""
    if gl.load(flag) == 0:
        gl.store(flag, 1)
        gl.store(out, 2)


def test_a_loaded_value_that_decides_about_a_store_of_its_thread():
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    marks[(1,)](flag, out, target="sim:sm_90")
    assert out[0] == 2


@gluon.jit
def copied_in_place(x, y, BARRIER: gl.constexpr, SCALAR: gl.constexpr):
    """Four warps hold what one of them stores, and each puts its copy into shared memory."""
    i = gl.arange(0, 32, L1)
    values = gl.full([32], gl.load(x), gl.int32, L1) if SCALAR else gl.load(x + i)
    if BARRIER:
        gl.barrier()
    if SCALAR:
        gl.store(x, 7)
    else:
        gl.store(x + i, values * 2)
    copy = gl.allocate_shared_memory(gl.int32, [32], FLAT, values)
    gl.store(y + i, copy.load(L1))


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("barrier", [False, True])
def test_copies_that_go_into_shared_memory(barrier, scalar):
    x, y = np.ones(32, np.int32), np.zeros(32, np.int32)
    if barrier:
        copied_in_place[(1,)](x, y, True, scalar, target="sim:sm_90")
        assert (y == 1).all()
        return
    with pytest.raises(RaceError, match="no barrier orders"):
        copied_in_place[(1,)](x, y, False, scalar, target="sim:sm_90")
