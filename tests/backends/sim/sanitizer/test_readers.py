"""A write comes after every read and atomic before it, not only after the last of them."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_sim.errors import RaceError
from gluon_sim.sanitizer import earlier

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def readers_then_a_writer(
    data, flags, out, READERS: gl.constexpr, KNOWN: gl.constexpr, ATOMIC: gl.constexpr
):
    me = gl.program_id(0)
    o = gl.arange(0, 128, layout=L1)
    if me < READERS:
        if ATOMIC:
            gl.atomic_add(data + o, 1, sem="relaxed")
        else:
            gl.store(out + me * 128 + o, gl.load(data + o))
        gl.thread_barrier()
        gl.atomic_xchg(flags + me, 1, sem="release")
    else:
        for i in gl.static_range(READERS):
            if KNOWN == "all" or KNOWN == i:
                while gl.atomic_cas(flags + i, 1, 1, sem="acquire") == 0:
                    pass
        gl.store(data + o, o)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_writer_that_waited_for_one_reader_only(atomic):
    def run(known, readers=3):
        data, flags = np.zeros(128, np.int32), np.zeros(4, np.int32)
        out = np.zeros(4 * 128, np.int32)
        readers_then_a_writer[(readers + 1,)](data, flags, out, readers, known, atomic)
        return data

    np.testing.assert_array_equal(run("all"), np.arange(128))
    for known in range(3):
        with pytest.raises(RaceError, match="of `data`") as caught:
            run(known)
        first, now = caught.value.accesses
        assert now.kind == "write" and now.program == (3, 0, 0)
        assert first.kind == ("atomic update" if atomic else "read")
        assert first.program is None or first.program[0] != known
    np.testing.assert_array_equal(run(0, readers=1), np.arange(128))


@gluon.jit
def last_one_writes(data, ticket, out, WEAK: gl.constexpr, SHIFT: gl.constexpr):
    me, count = gl.program_id(0), gl.num_programs(0)
    o = gl.arange(0, 128, layout=L1)
    gl.store(out + me * 128 + o, gl.load(data + me * SHIFT + o))
    gl.thread_barrier()
    if me == WEAK:
        taken = gl.atomic_add(ticket, 1, sem="relaxed")
    else:
        taken = gl.atomic_add(ticket, 1, sem="acq_rel")
    if taken == count - 1:
        for i in range(count):
            gl.store(data + i * SHIFT + o, o)
            gl.thread_barrier()


@pytest.mark.parametrize("shift", [0, 64, 128])
def test_many_readers_of_one_batch(shift):
    def run(weak, programs=8):
        data, ticket = np.zeros(2048, np.int32), np.zeros(1, np.int32)
        last_one_writes[(programs,)](data, ticket, np.zeros(128 * programs, np.int32), weak, shift)

    run(-1)
    for weak in (0, 3, 6):
        with pytest.raises(RaceError, match="of `data`") as caught:
            run(weak)
        first, _ = caught.value.accesses
        assert first.program in (None, (weak, 0, 0))


@gluon.jit
def reads_and_tells(data, out, bar, SLOT: gl.constexpr):
    o = gl.arange(0, 128, layout=L1)
    gl.store(out + SLOT * 128 + o, gl.load(data + o))
    mbarrier.arrive(bar)


@gluon.jit
def waits_and_writes(data, first, second, WAIT: gl.constexpr):
    o = gl.arange(0, 128, layout=L1)
    if WAIT != 1:
        mbarrier.wait(first, 0)
    if WAIT != 0:
        mbarrier.wait(second, 0)
    gl.store(data + o, o)


@gluon.jit
def reading_partitions(data, out, WAIT: gl.constexpr):
    first, second = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(first, 1)
    mbarrier.init(second, 1)
    gl.warp_specialize(
        [
            (waits_and_writes, (data, first, second, WAIT)),
            (reads_and_tells, (data, out, first, 0)),
            (reads_and_tells, (data, out, second, 1)),
        ],
        [4, 4],
        [64, 64],
    )


@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_partitions_that_read_one_element(schedule):
    for wait in (0, 1):
        with pytest.raises(RaceError, match="of `data`"):
            reading_partitions[(1,)](
                np.zeros(128, np.int32), np.zeros(256, np.int32), wait, schedule=schedule
            )
    data = np.zeros(128, np.int32)
    reading_partitions[(1,)](data, np.zeros(256, np.int32), 2, schedule=schedule)
    np.testing.assert_array_equal(data, np.arange(128))


@gluon.jit
def counts(bins, values, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    gl.atomic_add(bins + gl.load(values + o), 1, sem="relaxed")


def test_memory_of_launches_is_bounded(monkeypatch):
    collected = []
    make = earlier.Earlier.__init__
    monkeypatch.setattr(
        earlier.Earlier, "__init__", lambda self: (make(self), collected.append(self))[0]
    )
    monkeypatch.setattr(earlier, "LIMIT", 1000)
    values = np.random.default_rng(0).integers(0, 512, 128 * 256).astype(np.int32)
    bins = np.zeros(512, np.int32)
    counts[(256,)](bins, values, 128)
    np.testing.assert_array_equal(bins, np.bincount(values, minlength=512))
    assert 1 < max(e.count for e in collected) <= 1000
    assert all(len(e.program) <= 1024 for e in collected)


def test_elements_accessed_alike_cost_one_node(monkeypatch):
    collected = []
    make = earlier.Earlier.__init__
    monkeypatch.setattr(
        earlier.Earlier, "__init__", lambda self: (make(self), collected.append(self))[0]
    )
    data, flags = np.zeros(128, np.int32), np.zeros(4, np.int32)
    readers_then_a_writer[(4,)](data, flags, np.zeros(512, np.int32), 3, "all", False)
    assert max(e.count for e in collected) <= 8
