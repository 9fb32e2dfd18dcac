"""Whatever a kernel does with its barriers, a launch ends: with a result or with a report."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_nvidia import reference
from gluon_sim.errors import BarrierError, DeadlockError, TimeLimitError
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
SCHEDULES = [("latest", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]


def report(error, kernel, *args, match, line, grid=(1,)):
    """The error of a launch, the same under every schedule, at the line that contains `line`."""
    for schedule, seed in SCHEDULES:
        with using(schedule=schedule, seed=seed), pytest.raises(error, match=match) as caught:
            kernel[grid](*args)
        assert line in caught.value.span.text
    return caught.value


@gluon.jit
def waiter(first, second, out, PHASE: gl.constexpr):
    mbarrier.wait(first, PHASE)
    mbarrier.arrive(second)


@gluon.jit
def answerer(first, second, out, PHASE: gl.constexpr):
    mbarrier.wait(second, 0)
    mbarrier.arrive(first)


@gluon.jit
def bystander(out):
    gl.store(out, 1)


@gluon.jit
def wait_for_each_other(out, PHASE: gl.constexpr):
    first, second = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(first, 1)
    mbarrier.init(second, 1)
    gl.warp_specialize(
        [
            (waiter, (first, second, out, PHASE)),
            (answerer, (first, second, out, PHASE)),
            (bystander, (out,)),
        ],
        [4, 4],
        [64, 64],
    )


def test_a_circle_of_waits():
    out = np.zeros(1, np.int32)
    reported = report(
        DeadlockError, wait_for_each_other, out, 0, match="nothing can happen any more",
        line="mbarrier.wait(first",
    )  # fmt: skip
    text = str(reported)
    assert "1 arrivals and 0 bytes missing" in text and "nobody has arrived yet" in text
    assert [scene.task for scene in reported.waiting] == ["the kernel", "partition 1 of the kernel"]
    first, second = reported.waiting
    assert first.phase == second.phase == 0 and first.pending == second.pending == 1
    lines = {scene.task: scene.candidates for scene in reported.waiting}
    start = answerer.fn.__code__.co_firstlineno
    assert lines["the kernel"] == (start + 3,)
    assert lines["partition 1 of the kernel"] == (start - 3,)
    assert reported.ended == ("partition 2 of the kernel",)


def test_a_wait_for_the_phase_before_passes():
    wait_for_each_other[(1,)](np.zeros(1, np.int32), 1)


@gluon.jit
def produces(full, empty, s, a, N: gl.constexpr, ROUNDS: gl.constexpr, FLIP: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    for i in range(ROUNDS):
        mbarrier.wait(empty, (i + FLIP) % 2)
        s.store(gl.load(a + i * N + o))
        mbarrier.arrive(full)


@gluon.jit
def consumes(full, empty, s, out, N: gl.constexpr, ROUNDS: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    for i in range(ROUNDS):
        mbarrier.wait(full, i % 2)
        gl.store(out + i * N + o, s.load(L1))
        mbarrier.arrive(empty)


@gluon.jit
def pipeline(a, out, N: gl.constexpr, SENT: gl.constexpr, READ: gl.constexpr, FLIP: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    full, empty = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(full, 1)
    mbarrier.init(empty, 1)
    gl.warp_specialize(
        [
            (consumes, (full, empty, s, out, N, READ)),
            (produces, (full, empty, s, a, N, SENT, FLIP)),
        ],
        [4],
        [64],
    )
    mbarrier.invalidate(full)
    mbarrier.invalidate(empty)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_runs_to_its_end(schedule):
    a, out = np.arange(5 * 128, dtype=np.int32), np.zeros(5 * 128, np.int32)
    with using(schedule=schedule[0], seed=schedule[1]):
        pipeline[(1,)](a, out, 128, 5, 5, 1)
    np.testing.assert_array_equal(out, a)


def test_a_partition_left_behind():
    a, out = np.arange(5 * 128, dtype=np.int32), np.zeros(5 * 128, np.int32)
    reported = report(
        DeadlockError, pipeline, a, out, 128, 4, 5, 1, match="partition 1 of the kernel ended before",
        line="mbarrier.wait(full",
    )  # fmt: skip
    (scene,) = reported.waiting
    assert scene.task == "the kernel" and scene.pending == 1
    assert scene.arrived == (produces.fn.__code__.co_firstlineno + 6,)


def test_the_wrong_phase():
    a, out = np.arange(5 * 128, dtype=np.int32), np.zeros(5 * 128, np.int32)
    reported = report(
        DeadlockError, pipeline, a, out, 128, 5, 5, 0, match="phase 0", line="mbarrier.wait("
    )
    assert len(reported.waiting) == 2
    assert "The one that begins waits for phase 1, the one before the first" in str(reported)


@gluon.jit
def runs_ahead(full, s, a, N: gl.constexpr, ROUNDS: gl.constexpr):
    for i in range(ROUNDS):
        s.store(gl.load(a + i * N + gl.arange(0, N, layout=L1)))
        mbarrier.arrive(full)


@gluon.jit
def unheld(a, out, N: gl.constexpr, ROUNDS: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    full, empty = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(full, 1)
    mbarrier.init(empty, 1)
    gl.warp_specialize(
        [(consumes, (full, empty, s, out, N, ROUNDS)), (runs_ahead, (full, s, a, N, ROUNDS))],
        [4],
        [64],
    )


def test_a_task_that_runs_ahead_gets_the_missing_wait():
    a, out = np.arange(4 * 128, dtype=np.int32), np.zeros(4 * 128, np.int32)
    with using(schedule="latest"), pytest.raises(DeadlockError) as caught:
        unheld[(1,)](a, out, 128, 4)
    frees = consumes.fn.__code__.co_firstlineno + 6
    ahead = runs_ahead.fn.__code__.co_firstlineno + 4
    text = f"at which line {frees} arrives: wait for it before line {ahead}."
    assert "Nobody waits for the barrier" in str(caught.value) and text in str(caught.value)


# ---- the protocol of one barrier ------------------------------------------------------------


@gluon.jit
def steps(HOW: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    if HOW != "never initialized":
        mbarrier.init(bar, 2)
    if HOW == "initialized twice":
        mbarrier.init(bar, 2)
    mbarrier.arrive(bar)
    if HOW == "too many arrivals":
        mbarrier.arrive(bar)
        mbarrier.arrive(bar)
        mbarrier.arrive(bar)
    if HOW == "wait after the end":
        mbarrier.invalidate(bar)
        mbarrier.wait(bar, 0)
    if HOW == "invalidated twice":
        mbarrier.invalidate(bar)
        mbarrier.invalidate(bar)
    if HOW == "right":
        mbarrier.arrive(bar)
        mbarrier.wait(bar, 0)
        mbarrier.invalidate(bar)
        mbarrier.init(bar, 1)


@pytest.mark.parametrize(
    "how, match, line",
    [
        ("never initialized", "arrive on a barrier that is not initialized", "arrive(bar)"),
        ("initialized twice", "in use is initialized again", "init(bar, 2)"),
        ("wait after the end", "wait on a barrier that was invalidated", "wait(bar, 0)"),
        ("invalidated twice", "invalidate on a barrier that was invalidated", "invalidate(bar)"),
    ],
)
def test_a_barrier_used_against_its_protocol(how, match, line):
    steps[(1,)]("right")
    report(BarrierError, steps, how, match=match, line=line)
    with using(barriers=False):
        if how == "wait after the end":
            with pytest.raises(DeadlockError):
                steps[(1,)](how)
        else:
            steps[(1,)](how)


@gluon.jit
def arrives(bar, COUNT: gl.constexpr):
    for _ in range(COUNT):
        mbarrier.arrive(bar)


def arrives_twice(machine, barrier, count, *rest, **named):
    machine.barrier_arrive(barrier, 2)


@gluon.jit
def counted(COUNT: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, COUNT)
    mbarrier.arrive(bar)


def test_more_arrivals_than_a_phase_takes(monkeypatch):
    monkeypatch.setattr(reference, "mbarrier_arrive", arrives_twice)
    counted[(1,)](2)
    reported = report(
        BarrierError, counted, 1, match="more arrivals at a barrier than its phase expects",
        line="mbarrier.arrive(bar)",
    )  # fmt: skip
    assert reported.expected == "at most 1" and reported.got == 2
    with using(barriers=False):
        counted[(1,)](1)


def completes(machine, barrier, count, *rest, **named):
    machine.barrier_expect(barrier, 64)
    machine.barrier_complete(barrier, 48)
    machine.barrier_arrive(barrier, 1)
    if count == 1:
        machine.barrier_complete(barrier, 32)


@gluon.jit
def sized(out):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.arrive(bar)


def test_more_bytes_than_a_phase_expects(monkeypatch):
    monkeypatch.setattr(reference, "mbarrier_arrive", completes)
    reported = report(
        BarrierError, sized, np.zeros(1, np.int32), match="more bytes came to a barrier",
        line="mbarrier.arrive(bar)",
    )  # fmt: skip
    assert reported.got == 32 and reported.expected == "16 more"
    with using(barriers=False):
        sized[(1,)](np.zeros(1, np.int32))


def completes_too_early(machine, barrier, count, *rest, **named):
    machine.barrier_complete(barrier, 48)
    machine.barrier_expect(barrier, 40)
    machine.barrier_arrive(barrier, 1)


def test_bytes_that_nobody_expects_by_the_last_arrival(monkeypatch):
    monkeypatch.setattr(reference, "mbarrier_arrive", completes_too_early)
    reported = report(
        BarrierError, sized_otherwise, np.zeros(1, np.int32), match="more bytes came to a barrier",
        line="mbarrier.arrive(bar)",
    )  # fmt: skip
    assert reported.got == 8


@gluon.jit
def sized_otherwise(out):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.arrive(bar)


@gluon.jit
def rounds(END: gl.constexpr, DATA: gl.constexpr):
    for i in range(3):
        bar = mbarrier.allocate_mbarrier()
        mbarrier.init(bar, 1)
        mbarrier.arrive(bar)
        mbarrier.wait(bar, 0)
        if DATA:
            bar.store(gl.zeros((1,), gl.int64, L1))
        if END:
            mbarrier.invalidate(bar)


def test_memory_of_a_barrier_in_use_is_used_again():
    rounds[(1,)](True, False)
    report(BarrierError, rounds, False, False, match="memory of a barrier", line="mbarrier.init(")
    report(BarrierError, rounds, True, True, match="data is written over", line="bar.store(")
    with using(barriers=False):
        rounds[(1,)](False, True)


@gluon.jit
def nobody_signals(a, out, N: gl.constexpr):
    o = gl.arange(0, N, layout=L1)
    s = gl.allocate_shared_memory(gl.int32, [N], FLAT)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    cp.async_copy_global_to_shared(s, a + o)
    mbarrier.wait(bar, 0)
    gl.store(out + o, s.load(L1))


def test_a_copy_that_was_never_tied_to_the_barrier():
    a = np.zeros(128, np.int32)
    report(
        DeadlockError, nobody_signals, a, np.zeros_like(a), 128, match="nobody has arrived",
        line="mbarrier.wait(bar",
    )  # fmt: skip


# ---- time -----------------------------------------------------------------------------------


@gluon.jit
def forever(out, N: gl.constexpr):
    i = 0
    while i >= 0:
        i = (i + 1) % N
    gl.store(out, i)


def test_a_launch_ends_at_its_timeout(monkeypatch):
    started = time.monotonic()
    monkeypatch.setenv("GLUON_SIM_TIMEOUT", "0.3")
    with pytest.raises(TimeLimitError, match="not over after 0.3 seconds") as caught:
        forever[(1,)](np.zeros(1, np.int32), 1000)
    assert time.monotonic() - started < 20
    assert caught.value.span.line > forever.fn.__code__.co_firstlineno
