"""The stores that a release by an atomic covers: its own thread's, and those it has acquired."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import RaceError

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L64 = gl.constexpr(gl.BlockedLayout([1], [64], [4], [0]))

# Where the compiler lets the threads wait for each other, no release is of one thread alone.
BARRIERS = ATOMIC_BARRIERS.held_by(TRITON_VERSION)
older = pytest.mark.skipif(BARRIERS, reason="the compiler puts a barrier before each release")


@gluon.jit
def handed_on(
    data, flags, out, N: gl.constexpr, HOW: gl.constexpr, layout: gl.constexpr, SEM: gl.constexpr
):
    """Program 0 fills `data`, program 1 waits for its flag and copies it."""
    o = gl.arange(0, N, layout=layout)
    if gl.program_id(0) == 0:
        if HOW == "scalar":
            for i in range(N):
                gl.store(data + i, i)
        elif HOW == "first thread":
            gl.store(data + o, o, mask=o < 1)
        else:
            gl.store(data + o, o)
        if HOW == "barrier":
            gl.thread_barrier()
        gl.atomic_xchg(flags, 1, sem=SEM)
    else:
        while gl.atomic_cas(flags, 1, 1, sem="acquire") == 0:
            pass
        gl.store(out + o, gl.load(data + o))


def hand_on(how, n=128, layout=L1, sem="release", target=None):
    data, flags, out = np.zeros(n, np.int32), np.zeros(1, np.int32), np.zeros(n, np.int32)
    more = {"target": target} if target else {}
    handed_on[(2,)](data, flags, out, n, how, layout, sem, **more)
    np.testing.assert_array_equal(out, np.arange(n) if how != "first thread" else 0 * out)


@pytest.mark.parametrize("how", ["barrier", "scalar", "first thread"])
@pytest.mark.parametrize("sem", ["release", "acq_rel"])
def test_a_release_after_a_barrier_or_by_the_thread_itself(how, sem):
    hand_on(how, sem=sem)


@pytest.mark.parametrize("sem", ["release", "acq_rel"])
def test_a_release_by_one_thread_of_the_stores_of_others(sem):
    if BARRIERS:
        hand_on("nothing", sem=sem)
        return
    with pytest.raises(RaceError, match="element 1 of `data`") as error:
        hand_on("nothing", sem=sem)
    assert error.value.report == "race.programs"
    line = error.value.accesses[0].span.line
    assert f"gl.barrier() between line {line} and the atomic that releases" in error.value.remedy


def test_a_relaxed_one_orders_nothing_with_a_barrier_either():
    with pytest.raises(RaceError, match="element 0 of `data`") as error:
        hand_on("barrier", sem="relaxed")
    assert "between line" not in error.value.remedy


@older
def test_a_wave_in_lockstep_is_one_thread():
    with pytest.raises(RaceError, match="element 64 of `data`"):
        hand_on("nothing", 256, L64, target="sim:gfx942")
    hand_on("barrier", 256, L64, target="sim:gfx942")


@gluon.jit
def counted(data, ticket, N: gl.constexpr, BARRIER: gl.constexpr, USED: gl.constexpr):
    """Overwrite in the last program, or in one that guesses so, the data that all others have read."""
    o = gl.arange(0, N, layout=L1)
    gl.device_assert(gl.load(data + o) == 0)
    if BARRIER:
        gl.thread_barrier()
    count = gl.num_programs(0)
    if USED:
        if gl.atomic_add(ticket, 1) == count - 1:
            gl.store(data + o, 1)
    else:
        gl.atomic_add(ticket, 1)
        if gl.program_id(0) == count - 1:
            gl.store(data + o, 1)


@pytest.mark.parametrize("programs", [2, 40])
def test_readers_release_too(programs):
    data = np.zeros(128, np.int32)
    counted[(programs,)](data, np.zeros(1, np.int32), 128, True, True)
    assert (data == 1).all()
    data[:] = 0
    if BARRIERS:
        counted[(programs,)](data, np.zeros(1, np.int32), 128, False, True)
    else:
        with pytest.raises(RaceError, match="of `data`") as error:
            counted[(programs,)](data, np.zeros(1, np.int32), 128, False, True)
        assert "gl.barrier()" in error.value.remedy


def test_an_acquire_whose_result_nobody_reads_orders_nothing():
    with pytest.raises(RaceError, match="of `data`"):
        counted[(4,)](np.zeros(128, np.int32), np.zeros(1, np.int32), 128, True, False)


# ---- partitions -------------------------------------------------------------------------------


@gluon.jit
def fills(data, bar, N: gl.constexpr, BARRIER: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    gl.store(data + o, o)
    if BARRIER:
        mbarrier.arrive(bar)


@gluon.jit
def tells(flags, bar, BARRIER: gl.constexpr):
    if BARRIER:
        mbarrier.wait(bar, 0)
    gl.thread_barrier()
    gl.atomic_xchg(flags, 1, sem="release")


@gluon.jit
def waits(flags, bar, BARRIER: gl.constexpr):
    while gl.atomic_cas(flags, 1, 1, sem="acquire") == 0:
        pass
    if BARRIER:
        mbarrier.arrive(bar)


@gluon.jit
def copies(data, out, bar, N: gl.constexpr, BARRIER: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    if BARRIER:
        mbarrier.wait(bar, 0)
    gl.store(out + o, gl.load(data + o))


@gluon.jit
def in_roles(data, flags, out, N: gl.constexpr, FILLED: gl.constexpr, SEEN: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if gl.program_id(0) == 0:
        gl.warp_specialize(
            [(tells, (flags, bar, FILLED)), (fills, (data, bar, N, FILLED))], [4], [64]
        )
    else:
        gl.warp_specialize(
            [(waits, (flags, bar, SEEN)), (copies, (data, out, bar, N, SEEN))], [4], [64]
        )


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("seen", [True, False])
def test_releases_and_acquires_are_of_the_partitions_that_take_part(filled, seen):
    data, flags, out = np.zeros(128, np.int32), np.zeros(1, np.int32), np.zeros(128, np.int32)
    if filled and seen:
        in_roles[(2,)](data, flags, out, 128, filled, seen)
        np.testing.assert_array_equal(out, np.arange(128))
        return
    with pytest.raises(RaceError, match="of `data`") as error:
        in_roles[(2,)](data, flags, out, 128, filled, seen)
    assert error.value.report == "race.programs"
    if seen:  # else the copy may come before anything is acquired
        assert "count for the partition that makes them" in error.value.remedy


@gluon.jit
def after_roles(data, flags, out, N: gl.constexpr):
    """The program sees the stores of partitions once they are over."""
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if gl.program_id(0) == 0:
        gl.warp_specialize(
            [(fills, (data + N, bar, N, False)), (fills, (data, bar, N, False))], [4], [64]
        )
        gl.atomic_xchg(flags, 1, sem="release")
    else:
        while gl.atomic_cas(flags, 1, 1, sem="acquire") == 0:
            pass
        gl.warp_specialize(
            [
                (copies, (data + N, out + N, bar, N, False)),
                (copies, (data, out, bar, N, False)),
            ],
            [4],
            [64],
        )


def test_releases_and_acquires_outside_of_partitions():
    data, flags, out = np.zeros(256, np.int32), np.zeros(1, np.int32), np.zeros(256, np.int32)
    after_roles[(2,)](data, flags, out, 128)
    np.testing.assert_array_equal(out, np.arange(256) % 128)


@gluon.jit
def hands(data, flags, out, N: gl.constexpr):
    """Each program adds to the value of the one before it."""
    me = gl.program_id(0)
    o = gl.arange(0, N, layout=L1)
    if me > 0:
        while gl.atomic_cas(flags + me - 1, 1, 1, sem="acquire") == 0:
            pass
    gl.store(data + me * N + o, gl.load(data + o) + me)
    gl.thread_barrier()
    gl.atomic_xchg(flags + me, 1, sem="release")
    if me == gl.num_programs(0) - 1:
        for i in range(gl.num_programs(0)):
            gl.store(out + i * N + o, gl.load(data + i * N + o))


def test_acquired_accesses_are_released_with_the_rest():
    data, flags, out = np.zeros(640, np.int32), np.zeros(5, np.int32), np.zeros(640, np.int32)
    hands[(5,)](data, flags, out, 128)
    np.testing.assert_array_equal(out, np.repeat(np.arange(5), 128))
