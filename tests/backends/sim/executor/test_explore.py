"""Schedules explored systematically: errors that only some show; none is forgotten."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest

import gluon_core as gluon
from gluon_cli.output import UsageError
from gluon_cli.run import Runs, run_file
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record, recording
from gluon_report.example import Arrays
from gluon_sim import launcher
from gluon_sim.errors import BarrierError, RaceError, SimulatorError
from gluon_sim.executor.explore import Exploration
from gluon_sim.executor.reduction import Node, Walk
from gluon_sim.settings import using
from tests.backends.sim.hardware.boxes import F16_, REGISTERS, describe, numbers
from tests.kernels import cases

pytestmark = pytest.mark.sampled(2)

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- kernels that fail under some schedules only ----------------------------------------------


@gluon.jit
def crossed(a, out, RIGHT: gl.constexpr):
    """Two copies at one barrier: the bytes of the second may complete the phase of the first."""
    s = gl.allocate_shared_memory(gl.float16, [2, 64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 8192)
    tma.async_load(a, [0, 0], bar, s.index(0))
    if RIGHT:
        mbarrier.wait(bar, 0)
    tma.async_load(a, [0, 0], bar, s.index(1))
    if not RIGHT:
        mbarrier.wait(bar, 0)
    x = s.index(0).load(REGISTERS)
    mbarrier.expect(bar, 8192)
    mbarrier.wait(bar, 1)
    x += s.index(1).load(REGISTERS)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + rows * 64 + columns, x)
    mbarrier.invalidate(bar)


@gluon.jit
def too_early(a, out, RIGHT: gl.constexpr):
    """The copy belongs to the second phase, but may land in the first."""
    s = gl.allocate_shared_memory(gl.float16, [64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    if RIGHT:
        mbarrier.arrive(bar)
        mbarrier.wait(bar, 0)
        mbarrier.expect(bar, 8192)
        tma.async_load(a, [0, 0], bar, s)
    else:
        tma.async_load(a, [0, 0], bar, s)
        mbarrier.arrive(bar)
        mbarrier.wait(bar, 0)
        mbarrier.expect(bar, 8192)
    mbarrier.wait(bar, 1)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + rows * 64 + columns, s.load(REGISTERS))
    mbarrier.invalidate(bar)


@gluon.jit
def too_late(a, out, RIGHT: gl.constexpr):
    """The second copy is announced while the first may still be on its way."""
    s = gl.allocate_shared_memory(gl.float16, [2, 64, 64], F16_)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 8192)
    tma.async_load(a, [0, 0], bar, s.index(0))
    if RIGHT:
        mbarrier.wait(bar, 0)
    mbarrier.expect(bar, 8192)
    tma.async_load(a, [0, 0], bar, s.index(1))
    mbarrier.wait(bar, 1)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    gl.store(out + rows * 64 + columns, s.index(1).load(REGISTERS))
    mbarrier.invalidate(bar)


@gluon.jit
def answer(go, bar):
    mbarrier.wait(go, 0)
    mbarrier.arrive(bar)


@gluon.jit
def ask(go, bar, RIGHT: gl.constexpr):
    mbarrier.arrive(go)
    if not RIGHT:
        mbarrier.arrive(bar)
    mbarrier.wait(bar, 0)


@gluon.jit
def overtaken(RIGHT: gl.constexpr):
    """The partition may complete a second phase before the first has been waited for."""
    go = mbarrier.allocate_mbarrier()
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(go, 1)
    mbarrier.init(bar, 1)
    gl.warp_specialize([(ask, (go, bar, RIGHT)), (answer, (go, bar))], [4], [24])


@gluon.jit
def last_one_adds(parts, ticket, out, PROGRAMS: gl.constexpr, RIGHT: gl.constexpr):
    """The program that comes last reads what the others wrote; it may be any of them."""
    program = gl.program_id(0)
    gl.store(parts + program, program + 1)
    if gl.atomic_add(ticket, 1) == PROGRAMS - 1:
        total = 0
        for i in range(PROGRAMS):
            if RIGHT:
                total += gl.load(parts + i)
            else:
                total += gl.load(parts + program - PROGRAMS + 1 + i)
        gl.store(out, total)


@gluon.jit
def tickets(ticket, out):
    gl.store(out + gl.atomic_add(ticket, 1), gl.program_id(0))


def boxes():
    return describe(numbers(64, 64), (64, 64)), np.zeros((64, 64), np.float16)


def parts():
    return np.zeros(3, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32), 3


# For each: how it is launched, its error, and which of the usual schedules find it.
CASES = {
    "crossed": (crossed, (1,), boxes, RaceError, ()),
    "too early": (too_early, (1,), boxes, BarrierError, ("eager",)),
    "too late": (too_late, (1,), boxes, BarrierError, ("latest",)),
    "overtaken": (overtaken, (1,), tuple, BarrierError, ("latest", "eager")),
    "last one adds": (last_one_adds, (3,), parts, SimulatorError, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_only_some_schedules_fail(name):
    kernel, grid, arguments, error, found_by = CASES[name]
    for schedule in ("latest", "eager"):
        if schedule in found_by:
            with using(schedule=schedule), pytest.raises(error):
                kernel[grid](*arguments(), False)
        else:
            kernel[grid](*arguments(), False, schedule=schedule)
    with using(schedule="explore"), pytest.raises(error) as caught:
        kernel[grid](*arguments(), False)
    assert caught.value.order
    kept = f"{kernel.fn.__name__}.schedule.json"
    assert f"--schedule {kept}" in str(caught.value)
    with using(replay=kept), pytest.raises(error) as again:
        kernel[grid](*arguments(), False)
    assert again.value.message == caught.value.message
    assert again.value.order == caught.value.order


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_are_right_under_all(name):
    kernel, grid, arguments, _, _ = CASES[name]
    with using(schedule="explore"), recording() as record:
        kernel[grid](*arguments(), True)
    (launch,) = record.launches
    assert launch.walked.all and launch.walked.runs == launch.walked.least
    assert launch.walked.runs == (6 if name == "last one adds" else 1)


def test_random_schedules_find_it_by_luck():
    hits = 0
    for seed in range(20):
        try:
            crossed[(1,)](*boxes(), False, schedule="random", seed=seed)
        except RaceError:
            hits += 1
    assert 0 < hits < 10


def test_results_that_depend_on_the_schedule_are_reported():
    ticket, out = np.zeros(1, np.int32), np.zeros(3, np.int32)
    with using(schedule="explore"), recording() as record:
        tickets[(3,)](ticket, out)
    (launch,) = record.launches
    assert (launch.walked.runs, launch.walked.all, launch.walked.differ) == (6, True, ("out",))
    assert out.tolist() == [0, 1, 2] and ticket[0] == 3  # the result of the usual schedule


def test_omissions_are_reported():
    ticket, out = np.zeros(1, np.int32), np.zeros(5, np.int32)
    with using(schedule="explore", most=7), recording() as record:
        tickets[(5,)](ticket, out)
    (launch,) = record.launches
    assert launch.walked.runs == 7 < launch.walked.least <= 120
    assert not launch.walked.all
    assert str(launch.walked).startswith(f"7 of at least {launch.walked.least} schedules")


def test_a_failing_schedule_is_made_short():
    with using(schedule="explore"), pytest.raises(RaceError):
        crossed[(1,)](*boxes(), False)
    kept = json.loads(open("crossed.schedule.json").read())
    assert len(kept["steps"]) <= 2
    assert "lands" in [event for _, _, event in kept["timeline"]]


def test_a_schedule_of_another_launch():
    with using(schedule="explore"), pytest.raises(RaceError):
        crossed[(1,)](*boxes(), True)
        crossed[(1,)](*boxes(), False)
    with using(replay="crossed.schedule.json"):
        with pytest.raises(RaceError):
            for right in (True, False):
                crossed[(1,)](*boxes(), right)
    with using(replay="crossed.schedule.json"):
        crossed[(1,)](*boxes(), False)  # the first launch is not the one it was kept for


def test_a_schedule_that_cannot_be_read(tmp_path):
    with (
        using(replay="nowhere.json"),
        pytest.raises(gluon.errors.ArgumentError, match="unknown schedule"),
    ):
        crossed[(1,)](*boxes(), True)
    (tmp_path / "other.json").write_text('{"version": 99}')
    with using(replay="other.json"), pytest.raises(gluon.errors.ArgumentError, match="version 99"):
        crossed[(1,)](*boxes(), True)


@pytest.mark.parametrize("example", ["add_tma", "matmul_cooperative_hopper", "add_double_buffered"])
def test_examples_have_one_schedule(example):
    target = registry().target("sim:sm_90")
    one = cases.load_cases()[example, 0]
    record = Record()
    with using(schedule="explore"), recording(record):
        one.launch(one.arguments(Arrays(target), False), one.configure(target), target=target)
    assert record.launches and all(l.walked.all for l in record.launches)
    assert all(l.walked.runs == 1 for l in record.launches)


# ---- against all interleavings ----------------------------------------------------------------


@gluon.jit
def act(a, s, b0, b1, OPS: gl.constexpr):
    for i in gl.static_range(len(OPS)):
        bar = b0 if OPS[i] % 2 == 0 else b1
        if OPS[i] // 2 == 0:
            mbarrier.arrive(bar)
        elif OPS[i] // 2 == 1:
            cp.mbarrier_arrive(bar, increment_count=False)
        else:
            mbarrier.wait(bar, OPS[i] // 2 - 2)


@gluon.jit
def acts(a, A: gl.constexpr, B: gl.constexpr, COUNT: gl.constexpr):
    s = gl.allocate_shared_memory(gl.int32, [128], FLAT)
    b0 = mbarrier.allocate_mbarrier()
    b1 = mbarrier.allocate_mbarrier()
    mbarrier.init(b0, COUNT)
    mbarrier.init(b1, 1)
    gl.warp_specialize([(act, (a, s, b0, b1, A)), (act, (a, s, b0, b1, B))], [4], [24])


class Everything(Walk):
    """Every task that can run next runs next, one run each."""

    def decide(self, names):
        name = super().decide(names)
        self._tree.path[self._step - 1].wanted = set(names)
        return name

    @staticmethod
    def _next(path, names):
        return Node(names, {})


class Outcomes(Exploration):
    """Goes on after errors, and collects how runs end."""

    kind = Walk
    ends: set = set()
    runs = 0

    def run(self):
        trees, focus = {}, None
        Outcomes.ends, Outcomes.runs = set(), 0
        while True:
            walk = self.kind(trees, focus, not trees)
            walk._first = Outcomes.runs == 0
            self._memory.restore(self._before)
            machine = self._make(walk)
            walk.resume(None)
            try:
                machine.run(self._arguments)
                end = b"".join(a.data.tobytes() for a in self._memory._all)
            except SimulatorError as error:
                end = error.report
            except Exception as error:
                end = type(error).__name__
            machine.release()
            Outcomes.runs += 1
            if end != "Redundant":
                Outcomes.ends.add(end)
            tree, walk._first = walk._tree, False
            if self.kind is Walk:
                walk.finish()
            walk._tree = None
            focus = next(iter(trees))
            trees[focus] = tree or trees[focus]
            if not trees[focus].left:
                break
            trees[focus].advance()
            assert Outcomes.runs < 20_000
        return launcher.Walked(1, 1, True)


def ends(monkeypatch, kind, kernel, grid, *arguments):
    monkeypatch.setattr(Outcomes, "kind", kind)
    monkeypatch.setattr(launcher, "Exploration", Outcomes)
    with using(schedule="explore"):
        kernel[grid](*arguments)
    return Outcomes.ends, Outcomes.runs


def some_program(seed):
    draw = random.Random(seed)
    ops = [tuple(draw.randrange(8) for _ in range(draw.randint(1, 3))) for _ in range(2)]
    return (*ops, draw.choice([1, 1, 2]))


def compare(monkeypatch, seed):
    """(how runs end under all interleavings, runs that the walk took, all interleavings)"""
    ops = some_program(seed)
    a = np.zeros(128, np.int32)
    less, runs = ends(monkeypatch, Walk, acts, (1,), a, *ops)
    if all(isinstance(end, str) for end in less):
        return less, runs, runs  # the usual schedule fails, and says all
    more, all_runs = ends(monkeypatch, Everything, acts, (1,), a, *ops)
    assert less == more, (seed, ops, less ^ more)
    return more, runs, all_runs


# Two that some schedules make fail, and two that none does.
@pytest.mark.parametrize("seed, schedules", [(763, 3), (804, 3), (140, 3), (2, 1)])
def test_nothing_is_forgotten(monkeypatch, seed, schedules):
    outcomes, runs, all_runs = compare(monkeypatch, seed)
    assert runs == schedules < all_runs
    assert any(isinstance(end, str) for end in outcomes) == (seed in (763, 804))


def test_a_wait_that_could_have_passed_two_phases_before(monkeypatch):
    outcomes, runs = ends(monkeypatch, Walk, acts, (1,), np.zeros(128, np.int32), (0, 0), (6,), 1)
    assert len(outcomes) == 1 and runs == 2


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, 400, 20))
def test_nothing_is_forgotten_in_many(monkeypatch, first):
    for seed in range(first, first + 20):
        outcomes, runs, all_runs = compare(monkeypatch, seed)
        reports = [end for end in outcomes if isinstance(end, str)]
        if all_runs > runs:
            print(f"seed {seed}: {reports or 'right'}, {runs} runs instead of {all_runs}")


def test_orders_of_atomics_are_all_there(monkeypatch):
    args = np.zeros(1, np.int32), np.zeros(3, np.int32)
    less, runs = ends(monkeypatch, Walk, tickets, (3,), *args)
    assert len(less) == 6 and runs < 20


# ---- the command line --------------------------------------------------------------------------

FILE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def tickets(ticket, out):
    gl.store(out + gl.atomic_add(ticket, 1), gl.program_id(0))

@gluon.jit
def last(ticket, out):
    if gl.atomic_add(ticket, 1) == 2:
        gl.store(out + gl.program_id(0) - 2, 1)

if __name__ == "__main__":
    import sys
    kernel = last if "wrong" in sys.argv else tickets
    out = np.zeros(3, np.int32)
    kernel[(3,)](np.zeros(1, np.int32), out)
    if "judged" in sys.argv:
        assert out[0] != 2, out
"""


@pytest.fixture
def gluon_run(tmp_path, monkeypatch):
    (tmp_path / "file.py").write_text(FILE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))

    def run(*arguments, **runs):
        return run_file("file.py", "sim:sm_90", arguments, runs=Runs(**runs))

    return run


def test_the_command_explores_and_replays(gluon_run, capsys):
    assert gluon_run(explore=True) == 0
    out = capsys.readouterr().out
    assert "no mistake under all schedules of each launch on sim:sm_90" in out
    assert "tickets on sim:sm_90: 1 launch at file.py:" in out
    assert "all 6 schedules, after which out did not always hold the same" in out
    with pytest.raises(gluon.errors.GluonError) as caught:
        gluon_run("wrong", explore=True)
    assert "in this order:" in str(caught.value)
    with pytest.raises(type(caught.value)):
        gluon_run("wrong", schedule="last.schedule.json")


def test_the_file_judges_other_results(gluon_run, capsys):
    with pytest.raises(AssertionError, match=r"\[2 "):
        gluon_run("judged", explore=True)
    assert "under another schedule" in capsys.readouterr().err
    with pytest.raises(AssertionError, match=r"\[2 "):
        gluon_run("judged", schedule="tickets.schedule.json")


def test_options_that_exclude_each_other(tmp_path):
    (tmp_path / "file.py").write_text(FILE)
    file = str(tmp_path / "file.py")
    for runs, match in (
        (Runs(within=3.0), "belongs to --explore"),
        (Runs(explore=True, check=True), "Leave --check out"),
        (Runs(explore=True, schedule="eager"), "Leave --schedule out"),
    ):
        with pytest.raises(UsageError, match=match):
            run_file(file, "sim:sm_90", [], runs=runs)


def test_omissions_are_reported_by_the_command(tmp_path, capsys, monkeypatch):
    (tmp_path / "file.py").write_text(FILE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    code = run_file(
        str(tmp_path / "file.py"), "sim:sm_90", [], runs=Runs(explore=True, most=2), json=True
    )
    document = json.loads(capsys.readouterr().out)
    (launch,) = document["launches"]
    assert code == 0 and launch["walked"]["runs"] == 2 < launch["walked"]["least"]
    assert f"under 2 of at least {launch['walked']['least']} schedules" in document["evidence"][0]
