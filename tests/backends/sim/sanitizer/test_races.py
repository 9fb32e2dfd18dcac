"""Accesses that nothing orders are reported with both sides; ordered ones are not."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_nvidia import reference
from gluon_sim.errors import RaceError
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


def race(kernel, grid, *args, lines, match, remedy="", **options):
    """Launch, expect a race between two lines that contain `lines`; and none with the check off."""
    for schedule in ("latest", "eager"):
        with using(schedule=schedule, uninitialised=False):
            with pytest.raises(RaceError, match=match) as caught:
                kernel[grid](*args, **options)
        error = caught.value
        seen = {access.span.text.strip() for access in error.accesses}
        assert all(any(line in text for text in seen) for line in lines), seen
        assert remedy in error.remedy
        assert error.span is not None
    with using(races=False, leaks=False, uninitialised=False):
        kernel[grid](*args, **options)
    return error


# ---- copies in flight -----------------------------------------------------------------------


@gluon.jit
def pipelined(a, out, N: gl.constexpr, FIRST: gl.constexpr, PENDING: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
    cp.async_copy_global_to_shared(s.index(0), a + o)
    cp.commit_group()
    for i in range(4):
        cp.async_copy_global_to_shared(s.index((i + FIRST) % 2), a + (i + 1) * N + o)
        cp.commit_group()
        cp.wait_group(PENDING)
        gl.store(out + i * N + o, s.index(i % 2).load(L1))
    cp.wait_group(0)


def test_a_read_before_the_copy_was_waited_for():
    a, out = np.arange(640, dtype=np.int32), np.zeros(512, np.int32)
    pipelined[(1,)](a, out, 128, 1, 1)
    np.testing.assert_array_equal(out, a[:512])
    report = race(
        pipelined, (1,), a, out, 128, 1, 2, lines=("async_copy", "load(L1)"),
        match="asynchronous write", remedy="at most 1 group may be pending",
    )  # fmt: skip
    assert report.program == (0, 0, 0)
    assert {access.queue for access in report.accesses} == {"cp.async", None}


def test_two_copies_into_one_place():
    a, out = np.arange(640, dtype=np.int32), np.zeros(512, np.int32)
    race(
        pipelined, (1,), a, out, 128, 0, 1, lines=("async_copy",),
        match="asynchronous write by .* and the asynchronous write", remedy="Put `cp.wait_group(0)` between line",
    )  # fmt: skip


@gluon.jit
def forgets(a, out, N: gl.constexpr, COMMIT: gl.constexpr, AGAIN: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    cp.async_copy_global_to_shared(s, a + o)
    if COMMIT:
        cp.commit_group()
    if AGAIN:
        gl.store(a + o, o * 0)
    cp.wait_group(0)
    x = s.load(L1)
    gl.store(out + o, x)


def test_a_group_that_was_never_closed():
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    race(
        forgets, (1,), a, out, 128, False, False, lines=("async_copy", "s.load"), match="race",
        remedy="Put `cp.commit_group()` and `cp.wait_group(0)`",
    )  # fmt: skip


def test_a_source_that_is_overwritten_while_it_is_copied():
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    report = race(
        forgets, (1,), a, out, 128, True, True, lines=("async_copy", "gl.store(a"),
        match="of `a`: the", remedy="Put `cp.wait_group(0)` between line",
    )  # fmt: skip
    assert report.place == 0


@gluon.jit
def gathers(a, out, N: gl.constexpr, PENDING: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    cp.async_copy_global_to_shared(s, a + o)
    cp.commit_group()
    cp.wait_group(PENDING)
    gl.store(out + o, s.gather(N - 1 - o, 0))
    cp.wait_group(0)


def test_a_gather_from_a_copy_in_flight():
    if not hasattr(gl.shared_memory_descriptor, "gather"):
        pytest.skip("no gather")
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    try:
        gathers[(1,)](a, out, 128, 0)
    except gluon.errors.CapabilityError:
        pytest.skip("gather on shared memory came with 3.7")
    np.testing.assert_array_equal(out, a[::-1])
    race(gathers, (1,), a, out, 128, 1, lines=("async_copy", "s.gather"), match="race")


# ---- partitions -----------------------------------------------------------------------------


@gluon.jit
def consumer(s, out, ready, g, N: gl.constexpr, WAIT: gl.constexpr, GLOBAL: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    if WAIT:
        mbarrier.wait(ready, 0)
    if GLOBAL:
        gl.store(out + o, gl.load(g + o))
    else:
        gl.store(out + o, s.load(L1))


@gluon.jit
def producer(s, out, ready, g, N: gl.constexpr, WAIT: gl.constexpr, GLOBAL: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    if GLOBAL:
        gl.store(g + o, o)
    else:
        s.store(o)
    mbarrier.arrive(ready)


@gluon.jit
def handed_over(out, g, N: gl.constexpr, WAIT: gl.constexpr, GLOBAL: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, 1)
    gl.warp_specialize(
        [
            (consumer, (s, out, ready, g, N, WAIT, GLOBAL)),
            (producer, (s, out, ready, g, N, WAIT, GLOBAL)),
        ],
        [4],
        [64],
    )
    gl.store(g + gl.arange(0, N, layout=L1), gl.zeros((N,), gl.int32, L1))


@pytest.mark.parametrize("in_global", [False, True])
def test_partitions_without_a_barrier_between_them(in_global):
    out, g = np.zeros(128, np.int32), np.zeros(128, np.int32)
    handed_over[(1,)](out, g, 128, True, in_global)
    np.testing.assert_array_equal(out, np.arange(128))
    lines = ("g + o)", "g + o, o") if in_global else ("s.load", "s.store")
    report = race(
        handed_over, (1,), out, g, 128, False, in_global, lines=lines, match="partition 1",
        remedy="arrive at a barrier after line",
    )  # fmt: skip
    assert {access.task for access in report.accesses} == {
        "the kernel", "partition 1 of the kernel",
    }  # fmt: skip


# ---- programs of the grid -------------------------------------------------------------------


@gluon.jit
def overlapping(a, out, STEP: gl.constexpr, N: gl.constexpr):
    o = gl.program_id(0) * STEP + gl.arange(0, N, layout=L1)
    gl.store(out + o, gl.load(a + o))


@pytest.mark.parametrize("grid", [2, 40])
def test_programs_that_write_one_element(grid):
    a, out = np.arange(8192, dtype=np.int32), np.zeros(8192, np.int32)
    overlapping[(grid,)](a, out, 128, 128)
    report = race(
        overlapping, (grid,), a, out, 96, 128, lines=("gl.store",), match="element 96 of `out`",
        remedy="Nothing orders programs",
    )  # fmt: skip
    assert {access.program for access in report.accesses} == {(0, 0, 0), (1, 0, 0)}


def test_programs_of_different_batches():
    n = 1 << 16
    a, out = np.zeros(16 * n + 1, np.int8), np.zeros(16 * n + 1, np.int8)
    report = race(
        overlapping, (16,), a, out, n - 1, n, lines=("gl.store",), match=f"element {n - 1} of"
    )
    assert {access.program for access in report.accesses} == {(0, 0, 0), (1, 0, 0)}


@gluon.jit
def neighbours(a, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    gl.store(a + o + 1, gl.load(a + o))


def test_a_read_of_bytes_that_another_program_writes():
    a = np.zeros(1025, np.int32)
    report = race(neighbours, (8,), a, 128, lines=("gl.store",), match="read by `gl.load`")
    assert {access.kind for access in report.accesses} == {"read", "write"}


@gluon.jit
def counts(a, out, N: gl.constexpr, ATOMIC: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    if ATOMIC:
        gl.atomic_add(out + o, gl.load(a + o))
    else:
        if gl.program_id(0) == 0:
            gl.store(out + o, gl.load(a + o))
        else:
            gl.atomic_add(out + o, gl.load(a + o))


def test_atomics_do_not_race_with_each_other_but_with_stores():
    a, out = np.ones(128, np.int32), np.zeros(128, np.int32)
    counts[(8,)](a, out, 128, True)
    assert (out == 8).all()
    race(counts, (8,), a, out, 128, False, lines=("gl.store", "atomic_add"), match="atomic update")


@gluon.jit
def last_one_sums(
    a, parts, ticket, out, N: gl.constexpr, SEM: gl.constexpr, SCOPE: gl.constexpr = "gpu"
):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    gl.store(parts + gl.program_id(0), gl.sum(gl.load(a + o), 0))
    count = gl.num_programs(0)
    if gl.atomic_add(ticket, 1, sem=SEM, scope=SCOPE) == count - 1:
        p = gl.arange(0, N, layout=L1)
        gl.store(out, gl.sum(gl.load(parts + p, mask=p < count, other=0), 0))


def test_a_ticket_orders_programs_if_it_releases_and_acquires():
    a = np.arange(1024, dtype=np.int32)
    parts, ticket, out = np.zeros(8, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    last_one_sums[(8,)](a, parts, ticket, out, 128, "acq_rel")
    assert out[0] == a.sum()
    for weak in ("relaxed", "acquire", "release"):
        ticket[:] = 0
        with pytest.raises(RaceError, match="of `parts`"):
            last_one_sums[(8,)](a, parts, ticket, out, 128, weak)


def test_the_scope_of_one_program_orders_no_others():
    a = np.arange(1024, dtype=np.int32)
    for scope in ("gpu", "sys", "cta"):
        parts, ticket, out = np.zeros(8, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
        if scope != "cta":
            last_one_sums[(8,)](a, parts, ticket, out, 128, "acq_rel", scope)
            assert out[0] == a.sum()
            continue
        with pytest.raises(RaceError, match="of `parts`"):
            last_one_sums[(8,)](a, parts, ticket, out, 128, "acq_rel", scope)


@gluon.jit
def chained(data, flags, N: gl.constexpr, SEM: gl.constexpr):
    me = gl.program_id(0)
    o = gl.arange(0, N, layout=L1)
    if me > 0:
        while gl.atomic_cas(flags + me - 1, 1, 1, sem="acquire") == 0:
            pass
    gl.store(data + o, gl.load(data + o) + me)
    gl.thread_barrier()
    gl.atomic_xchg(flags + me, 1, sem=SEM)


def test_a_chain_of_flags_orders_programs():
    data, flags = np.zeros(128, np.int32), np.zeros(6, np.int32)
    chained[(6,)](data, flags, 128, "release")
    assert (data == 15).all()
    flags[:] = 0
    with pytest.raises(RaceError, match="of `data`"):
        chained[(6,)](data, flags, 128, "relaxed")


# ---- proxies --------------------------------------------------------------------------------


def through_its_own_proxy(machine, smem, pointer, mask=None, other=None, *policy, **named):
    def perform():
        machine.store_shared(smem, machine.load_global(pointer, smem.dtype, mask, other))

    machine.issue("cp.async", perform, proxy="async")


FENCE = gl.constexpr(77)


@gluon.jit
def writes_both_ways(a, out, N: gl.constexpr, ORDER: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [2, N], FLAT)
    cp.async_copy_global_to_shared(s.index(1), a + o)
    cp.commit_group()
    s.index(0).store(o)
    if ORDER:
        cp.wait_group(FENCE)
    cp.async_copy_global_to_shared(s.index(0), a + o)
    cp.commit_group()
    cp.wait_group(0)
    gl.store(out + o, s.index(0).load(L1))


def fences_if_told(machine, pending):
    machine.fence() if pending == FENCE.value else machine.wait_groups("cp.async", pending)


def test_an_access_through_the_other_proxy_needs_a_fence(monkeypatch):
    monkeypatch.setattr(reference, "async_copy_global_to_local", through_its_own_proxy)
    monkeypatch.setattr(reference, "async_wait_group", fences_if_told)
    a, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    writes_both_ways[(1,)](a, out, 128, True)
    np.testing.assert_array_equal(out, a)
    race(
        writes_both_ways, (1,), a, out, 128, False, lines=("async_copy", ".store(o)"),
        match="through the async proxy", remedy="Put `gl.nvidia.hopper.fence_async_shared()`",
    )  # fmt: skip
