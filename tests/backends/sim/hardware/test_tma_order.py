"""Copies of the TMA on the simulator: the waits of a kernel, and reports of missing ones."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_sim.errors import (
    BarrierError,
    DeadlockError,
    LeakError,
    RaceError,
)
from gluon_sim.settings import Settings, using
from tests.backends.sim.hardware.boxes import (
    F16_,
    REGISTERS,
    SCHEDULES,
    describe,
    numbers,
    report,
    since_38,
)


@gluon.jit
def load_twice(a, out, HOW: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if HOW == "too few":
        mbarrier.expect(bar, 4096)
    elif HOW == "too many":
        mbarrier.expect(bar, 16384)
    elif HOW != "none":
        mbarrier.expect(bar, 8192)
    tma.async_load(a, [0, 0], bar, s)
    if HOW == "wrong phase":
        mbarrier.wait(bar, 1)
    elif HOW != "no wait":
        mbarrier.wait(bar, 0)
    x = s.load(REGISTERS)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + rows * 64 + columns, x)
    if HOW == "no wait":
        mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)


def loaded():
    return describe(numbers(64, 64), (64, 64)), np.zeros((64, 64), np.float16)


@pytest.mark.parametrize("how", ["no wait", "wrong phase"])
def test_a_buffer_that_is_read_too_early(how):
    load_twice[(1,)](*loaded(), "right")
    chosen = SCHEDULES[:1] if how == "wrong phase" else SCHEDULES  # it hangs once all has come
    reported = report(
        RaceError, load_twice, *loaded(), how, match="race on byte 0", line="load(", schedules=chosen
    )  # fmt: skip
    assert "Put `mbarrier.wait(bar, phase)`" in str(reported)
    wrong_phase = "was for phase 1, which is over; what `tma.async_load` brings belongs to phase 0"
    assert (wrong_phase in str(reported)) == (how == "wrong phase")
    assert {access.op for access in reported.accesses} == {
        "s.load",
        "tma.async_load",
    }
    with using(Settings.without_checks()):
        descriptor, out = loaded()
        load_twice[(1,)](descriptor, out, how)
    assert np.isnan(out.astype(np.float32)).all()


def test_fewer_bytes_expected_than_come():
    reported = report(
        BarrierError, load_twice, *loaded(), "too few",
        match="more bytes came to a barrier", line="tma.async_load(",
        schedules=[s for s in SCHEDULES if s[0] == "latest"],
    )  # fmt: skip
    start = load_twice.fn.__code__.co_firstlineno
    assert (
        "phase 0 of the barrier at byte 0 of `bar` in program (0, 0, 0) "
        f"expects 4096 bytes (line {start + 6}), 8192 have come (line {start + 11})"
        in str(reported)
    )


def test_more_bytes_expected_than_come():
    reported = report(
        DeadlockError, load_twice, *loaded(), "too many", match="0 arrivals and 8192 bytes missing",
        line="mbarrier.wait(bar, 0)",
    )  # fmt: skip
    start = load_twice.fn.__code__.co_firstlineno
    assert f"it expects 16384 bytes (line {start + 8}), 8192 have come (line {start + 11})" in str(
        reported
    )


def test_bytes_that_nobody_expects():
    reported = report(
        DeadlockError, load_twice, *loaded(), "none",
        match="1 arrivals missing, and 8192 bytes came that nobody expects", line="mbarrier.wait(bar, 0)",
    )  # fmt: skip
    assert "async_load" not in str(reported.span.text)
    start = load_twice.fn.__code__.co_firstlineno
    assert f"Nobody expects the bytes that line {start + 11} brings" in str(reported)


@gluon.jit
def two_copies(full, s, a, BYTES: gl.constexpr):
    mbarrier.expect(full, BYTES)
    tma.async_load(a, [0, 0], full, s.index(0))
    tma.async_load(a, [0, 0], full, s.index(1))


@gluon.jit
def reads_both(full, s, out):
    mbarrier.wait(full, 0)
    gl.store(out, gl.sum(gl.sum(s.index(0).load(REGISTERS) + s.index(1).load(REGISTERS), 0), 0))


@gluon.jit
def both(a, out, BYTES: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [2, 64, 64], F16_)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, 1)
    gl.warp_specialize([(reads_both, (full, s, out)), (two_copies, (full, s, a, BYTES))], [1], [24])


def test_a_phase_that_ends_before_the_second_copy_names_the_bytes():
    a, out = describe(np.ones((64, 64), np.float16), (64, 64)), np.zeros(1, np.float16)
    both[(1,)](a, out, 16384)
    assert out[0] == 8192
    reported = report(
        RaceError, both, a, out, 8192, match="the asynchronous write", line="s.index(1)",
        schedules=SCHEDULES[:1],
    )  # fmt: skip
    expects = two_copies.fn.__code__.co_firstlineno + 2
    assert f"Expect the bytes of all copies of a phase, at line {expects}" in str(reported)


@gluon.jit
def write_boxes(b, HOW: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    for i in range(4):
        if HOW != "no wait":
            tma.store_wait(0)
        s.store(gl.full([64, 64], i + 1.0, gl.float16, REGISTERS))
        if HOW != "no fence":
            fence_async_shared()
        tma.async_store(b, [i * 64, 0], s)
    if HOW != "no end":
        tma.store_wait(0)


def written():
    return describe(np.zeros((256, 64), np.float16), (64, 64))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stores_in_a_loop(schedule):
    b = written()
    with using(schedule=schedule[0], seed=schedule[1]):
        write_boxes[(1,)](b, "right")
    np.testing.assert_array_equal(b.base[::64, 0], [1, 2, 3, 4])
    assert (b.base.reshape(4, -1) == b.base[::64, :1]).all()


@pytest.mark.usefixtures("no_implied_fences")
def test_a_fence_that_is_missing():
    reported = report(
        RaceError, write_boxes, written(), "no fence",
        match="Put `fence_async_shared\\(\\)` between", line="tma.async_store(",
    )  # fmt: skip
    assert "through the async proxy" in str(reported)


def test_a_buffer_that_is_written_before_it_was_read():
    reported = report(
        RaceError, write_boxes, written(), "no wait", match="race on byte 0", line="store("
    )
    assert "Put `tma.store_wait(0)` " in str(reported)
    assert {access.op for access in reported.accesses} == {
        "s.store",
        "tma.async_store",
    }
    with using(Settings.without_checks()):
        b = written()
        write_boxes[(1,)](b, "no wait")
    assert (b.base == 4).all()


@gluon.jit
def reuse(b, n, BUFFERS: gl.constexpr, PENDING: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [BUFFERS, 64, 64], F16_)
    for i in range(n):
        if PENDING >= 0:
            tma.store_wait(PENDING)
        s.index(i % BUFFERS).store(gl.full([64, 64], i + 1.0, gl.float16, REGISTERS))
        fence_async_shared()
        tma.async_store(b, [i * 64, 0], s.index(i % BUFFERS))
    tma.store_wait(0)


@pytest.mark.parametrize("buffers, pending", [(1, -1), (1, 1), (2, -1), (2, 3), (3, 3)])
def test_the_remedy_is_right_at_once(buffers, pending):
    b = describe(np.zeros((8 * 64, 64), np.float16), (64, 64))
    right = buffers - 1
    for schedule, seed in SCHEDULES:
        with using(schedule=schedule, seed=seed), pytest.raises(RaceError) as error:
            reuse[(1,)](b, 8, buffers, pending)
        assert f"`tma.store_wait({right})`" in str(error.value), schedule
    reuse[(1,)](b, 8, buffers, right)


def test_a_buffer_that_goes_before_it_was_read():
    report(
        LeakError,
        write_boxes,
        written(),
        "no end",
        match="nobody waited for it",
        line="tma.async_store(",
    )


@gluon.jit
def alternate(b, n, PENDING: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [2, 64, 64], F16_)
    for i in range(n):
        tma.store_wait(PENDING)
        s.index(i % 2).store(gl.full([64, 64], i + 1.0, gl.float16, REGISTERS))
        fence_async_shared()
        tma.async_store(b, [i * 64, 0], s.index(i % 2))
    tma.store_wait(0)


def test_groups_of_stores():
    b = describe(np.zeros((6 * 64, 64), np.float16), (64, 64))
    alternate[(1,)](b, 6, 1)
    np.testing.assert_array_equal(b.base[::64, 0], [1, 2, 3, 4, 5, 6])
    report(RaceError, alternate, b, 6, 2, match="race on byte", line="store(")


def test_many_stores_are_distinguished_within_bounds():
    b = describe(np.zeros((200 * 64, 64), np.float16), (64, 64))
    alternate[(1,)](b, 200, 1)
    np.testing.assert_array_equal(b.base[::64, 0], np.arange(1, 201))


@gluon.jit
def read_back(b, p, out, READ_ONLY: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    s.store(gl.full([64, 64], 5, gl.float16, REGISTERS))
    fence_async_shared()
    tma.async_store(b, [0, 0], s)
    tma.store_wait(0, read_only=READ_ONLY)
    s.store(gl.full([64, 64], 6, gl.float16, REGISTERS))
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + rows * 64 + columns, gl.load(p + rows * 64 + columns))


@since_38
def test_writes_of_a_store_are_there_after_the_longer_wait():
    b, out = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    for schedule, seed in SCHEDULES:
        with using(schedule=schedule, seed=seed):
            read_back[(1,)](describe(b, (64, 64)), b, out, False)
        assert (out == 5).all()


def test_a_store_may_have_read_before_it_writes():
    b, out = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    for schedule in SCHEDULES:
        with using(schedule=schedule[0], seed=schedule[1]), pytest.raises(RaceError) as caught:
            read_back[(1,)](describe(b, (64, 64)), b, out, True)
        kinds = {access.op for access in caught.value.accesses}
        assert kinds == {"gl.load", "tma.async_store"}
    with (
        using(schedule="eager"),
        pytest.raises(RaceError, match="not enough that its source was read"),
    ):
        read_back[(1,)](describe(b, (64, 64)), b, out, True)
    with using(Settings.without_checks()):
        b[...] = 0
        read_back[(1,)](describe(b, (64, 64)), b, out, True)
    assert (out == 0).all() and (b == 5).all()


@gluon.jit
def same_place(b):
    s = gl.allocate_shared_memory(gl.float16, [2, 64, 64], F16_)
    s.index(0).store(gl.full([64, 64], 1, gl.float16, REGISTERS))
    s.index(1).store(gl.full([64, 64], 2, gl.float16, REGISTERS))
    fence_async_shared()
    tma.async_store(b, [0, 0], s.index(0))
    tma.async_store(b, [0, 0], s.index(1))
    tma.store_wait(0)


def test_two_stores_to_one_place():
    report(
        RaceError,
        same_place,
        written(),
        match="race on element 0",
        line="async_store(",
        schedules=SCHEDULES[:2],
    )


def test_programs_that_write_one_place():
    with pytest.raises(RaceError, match="programs of a grid"):
        write_boxes[(2,)](written(), "right")


@gluon.jit
def produce(a, s, full, empty, n):
    for i in range(n):
        mbarrier.wait(empty.index(i % 2), (i // 2 + 1) % 2)
        mbarrier.expect(full.index(i % 2), a.nbytes_per_cta)
        tma.async_load(a, [i * 64, 0], full.index(i % 2), s.index(i % 2))


@gluon.jit
def consume(b, s, t, full, empty, n, EARLY: gl.constexpr):
    for i in range(n):
        mbarrier.wait(full.index(i % 2), i // 2 % 2)
        if EARLY:
            mbarrier.arrive(empty.index(i % 2))
        x = s.index(i % 2).load(REGISTERS)
        x = x + x
        if not EARLY:
            mbarrier.arrive(empty.index(i % 2))
        tma.store_wait(0)
        t.store(x)
        fence_async_shared()
        tma.async_store(b, [i * 64, 0], t)
    tma.store_wait(0)


@gluon.jit
def pipeline(a, b, n, EARLY: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [2, 64, 64], F16_)
    t = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    full, empty = mbarrier.allocate_mbarrier(batch=2), mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), 1)
        mbarrier.init(empty.index(i), 1)
    gl.warp_specialize(
        [(consume, (b, s, t, full, empty, n, EARLY)), (produce, (a, s, full, empty, n))], [4], [24]
    )
    for i in gl.static_range(2):
        mbarrier.invalidate(full.index(i))
        mbarrier.invalidate(empty.index(i))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_of_partitions(schedule):
    a, b = numbers(7 * 64, 64), np.zeros((7 * 64, 64), np.float16)
    with using(schedule=schedule[0], seed=schedule[1]):
        pipeline[(1,)](describe(a, (64, 64)), describe(b, (64, 64)), 7, False)
    np.testing.assert_array_equal(b, a + a)


@gluon.jit
def hurry(a, s, full, empty, n, WAIT: gl.constexpr):
    for i in range(n):
        if WAIT:
            mbarrier.wait(empty, (i + 1) % 2)
        mbarrier.expect(full, a.nbytes_per_cta)
        tma.async_load(a, [i * 64, 0], full, s)


@gluon.jit
def take(s, full, empty, out, n, WAIT: gl.constexpr):
    acc = gl.zeros([64, 64], gl.float32, REGISTERS)
    for i in range(n):
        if WAIT:
            mbarrier.wait(full, i % 2)
        acc += s.load(REGISTERS).to(gl.float32)
        mbarrier.arrive(empty)
    gl.store(out, gl.sum(gl.sum(acc, axis=1), axis=0))


@gluon.jit
def hurried(a, out, n, WAIT: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    full, empty = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(full, 1)
    mbarrier.init(empty, 1)
    gl.warp_specialize(
        [(take, (s, full, empty, out, n, True)), (hurry, (a, s, full, empty, n, WAIT))], [4], [24]
    )


def test_an_arrival_too_many_names_the_wait_that_is_missing():
    a, out = describe(numbers(4 * 64, 64), (64, 64)), np.zeros(1, np.float32)
    hurried[(1,)](a, out, 4, True)
    with pytest.raises(BarrierError, match="more arrivals at a barrier") as caught:
        hurried[(1,)](a, out, 4, False)
    arrives = take.fn.__code__.co_firstlineno + 7
    text = str(caught.value)
    assert f"Nobody waits for the barrier `empty`, at which line {arrives} arrives" in text
    assert f"wait for it before line {caught.value.span.line}" in text


def test_a_buffer_given_back_before_it_was_read():
    a, b = numbers(7 * 64, 64), np.zeros((7 * 64, 64), np.float16)
    reported = report(
        RaceError, pipeline, describe(a, (64, 64)), describe(b, (64, 64)), 7, True,
        match="race on byte", line="load(",
    )  # fmt: skip
    assert {access.op for access in reported.accesses} == {
        "s.index(i % 2).load",
        "tma.async_load",
    }
