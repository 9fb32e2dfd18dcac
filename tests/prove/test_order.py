"""One schedule for all, where that may be: phases of barriers with an order, and without one."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gluon_core as gluon
import gluon_prove.verdict
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_prove.order import Depends, Phases
from gluon_sim.errors import SimulatorError
from tests.prove.proofs import judged

pytestmark = pytest.mark.once
pytest.importorskip("z3", reason="gluon-core[prove] is not installed")

L = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def reads(buffer, bar, out):
    mbarrier.wait(bar.index(0), 0)
    gl.store(out + gl.arange(0, 128, layout=L), buffer.load(L))


@gluon.jit
def writes(buffer, bar):
    buffer.store(gl.full([128], 1, gl.int32, layout=L))
    mbarrier.arrive(bar.index(0), count=1)


@gluon.jit
def arrives(bar, ORDERED: gl.constexpr, STEPS: gl.constexpr):
    for _ in gl.static_range(STEPS):
        mbarrier.arrive(bar.index(1), count=1)
    if ORDERED:
        mbarrier.wait(bar.index(0), 0)
    mbarrier.arrive(bar.index(0), count=1)


@gluon.jit
def two_arrive(out, STEPS: gl.constexpr, ORDERED: gl.constexpr = False):
    """At a barrier for one arrival; where nothing orders the two, the second may be the first."""
    buffer = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    bar = mbarrier.allocate_mbarrier(batch=2)
    mbarrier.init(bar.index(0), count=1)
    mbarrier.init(bar.index(1), count=10)
    gl.warp_specialize(
        [(reads, (buffer, bar, out)), (writes, (buffer, bar)), (arrives, (bar, ORDERED, STEPS))],
        [4, 4],
        [24, 24],
    )


def test_an_arrival_that_may_come_in_an_earlier_phase_is_not_left_where_it_came():
    out = np.zeros(128, np.int32)
    verdict, error = judged(two_arrive, (1,), out, 0, target="sim:sm_90")
    assert verdict.verdict == "counterexample", verdict
    assert error.report in ("race.shared", "deadlock.tasks", "barrier.missed")


def test_a_phase_that_may_end_before_a_wait_is_passed_is_found():
    """The second arrival comes after the first phase, but not after the reader saw its end."""
    out = np.zeros(128, np.int32)
    verdict, error = judged(two_arrive, (1,), out, 0, True, target="sim:sm_90")
    assert verdict.verdict == "counterexample", verdict
    assert error.report == "barrier.missed"  # a deadlock in other schedules


def test_knowledge_of_completed_phases():
    phases = Phases().reset(0, 0, False).learn(0b110, 0b001)
    phases.asked(0, "last", 1)
    with pytest.raises(Depends):
        phases.asked(0, "last", 3)
    waits = phases.did(0, "wait", 2)
    with pytest.raises(Depends):
        waits.ended(0, 1 << 8, 1 << 9)
    ended = waits.learn(1 << 8, 1 << 2).ended(0, 1 << 8, 1 << 9)
    with pytest.raises(Depends):
        ended.asked(0, "last", 1)
    ended.asked(0, "before", 1)  # that of the making
    with pytest.raises(Depends):
        phases.did(0, "arrival", 2).settled(0, 1)
    phases.did(0, "arrival", 2).learn(1 << 1, 1 << 2).settled(0, 1)
    ended.learn(1 << 1, 1 << 9).asked(0, "last", 1)
    assert not any(known.known >> 8 & 1 for known in ended.forget(1 << 8).all)
    assert [k.kind for k in ended.reset(0, 3, True).all] == [
        "made",
        "last",
    ]  # and nothing of before


def test_without_the_questions_the_one_schedule_says_too_much(monkeypatch):
    """The arrival that nothing orders comes late there."""
    out = np.zeros(128, np.int32)
    verdict, _ = judged(two_arrive, (1,), out, 8, target="sim:sm_90")
    assert verdict.verdict == "counterexample", verdict
    ended = Phases.ended

    def asks_nobody(self, *args):
        return ended(Phases(tuple(k for k in self.all if k.kind != "wait")), *args)

    monkeypatch.setattr(Phases, "asked", lambda self, slot, question, bit: None)
    monkeypatch.setattr(Phases, "ended", asks_nobody)
    verdict, _ = judged(two_arrive, (1,), out, 9, target="sim:sm_90")  # judged once for each launch
    assert verdict.verdict == "proved", verdict


def test_the_time_is_over_at_any_step():
    out = np.zeros(128, np.int32)
    verdict, _ = judged(two_arrive, (1,), out, 7, within=1e-9, target="sim:sm_90")
    assert verdict.verdict == "cannot say" and "the time is over" in verdict.lines[0], verdict
    assert "--within SECONDS" in verdict.lines[1]


def test_the_time_is_that_of_a_processor(monkeypatch):
    """A machine that does other work meanwhile has the same verdict."""
    lower = gluon_prove.verdict.lower
    monkeypatch.setattr("gluon_prove.verdict.lower", lambda *args: time.sleep(0.8) or lower(*args))
    out = np.zeros(128, np.int32)
    verdict, _ = judged(two_arrive, (1,), out, 12, within=0.8, target="sim:sm_90")
    assert verdict.verdict == "counterexample", verdict


@pytest.mark.parametrize(
    "report, wanted", [("race.shared", "counterexample"), ("race.global", "cannot say")]
)
def test_values_of_global_memory_are_no_counterexample(report, wanted, monkeypatch):
    """With other arguments arrays may meet there."""

    def fail(self):
        raise SimulatorError("found", report=report)

    monkeypatch.setattr("gluon_prove.replay._Again.run", fail)
    steps = 5 if report == "race.shared" else 6  # a launch is judged once
    verdict, _ = judged(two_arrive, (1,), np.zeros(128, np.int32), steps, target="sim:sm_90")
    assert verdict.verdict == wanted, verdict
