"""Searches from begin to end, on a machine without a GPU: nothing is measured, all else is as ever."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gluon_tune as tune
from gluon_core.errors import TuneError, TuneStoreError, TuneWorkerError
from gluon_tune import bench, session, work
from gluon_tune.check import check
from gluon_tune.engine import Local
from gluon_tune.isolated import Ended, Failed
from gluon_tune.report import effects, frontier, page
from tests import warm
from tests.tune import tasks

pytestmark = [pytest.mark.once, pytest.mark.timeout(240), pytest.mark.sampled(3)]

ROOT = Path(__file__).parents[2]
COUNT = tune.Settings(target="hopper", objective="registers")


@pytest.fixture(scope="module")
def engine():
    local = Local(1)
    yield local
    local.close()


@pytest.fixture
def store(tmp_path):
    with tune.Store(tmp_path / "s.db") as opened:
        yield opened


def statuses(outcome):
    return {trial.config["BLOCK"]: (trial.status, trial.reason) for trial in outcome.trials}


class TestWithoutADevice:
    def test_finds_the_best_and_resumes(self, store, engine):
        events = []
        (result,) = tune.search(
            tasks.SCALE, COUNT, store=store, engine=engine, progress=events.append
        )
        assert result.total == len(result.trials) == result.tried == len(events)
        assert result.best.value == min(trial.value for trial in result.trials)
        assert result.start.config == {"BLOCK": 256, "VECTOR": 4, "num_warps": 2}
        assert result.key.bucket == "x=*fp32, y=*fp32, n=1024" and result.key.device == ""
        assert [event.done for event in events] == list(range(1, result.total + 1))
        assert events[-1].left == 0 and events[0].left > 0
        assert {"registers", "spills", "occupancy", "conflicts"} <= set(result.best.detail)
        # A known configuration is not tried again, a new one is.
        events.clear()
        (again,) = tune.search(
            tasks.SCALE, COUNT, store=store, engine=engine, progress=events.append
        )
        assert events == [] and again.best == result.best

    def test_the_simulator_counts(self, store, engine):
        settings = tune.Settings(target="hopper", objective="roofline", trials=3, search="random")
        (result,) = tune.search(tasks.SCALE, settings, store=store, engine=engine)
        assert [trial.status for trial in result.trials] == ["ok"] * 3
        assert result.best.detail["bound"] in ("global", "vector", "shared")
        # A wrong result is no candidate, however little the simulator counts of it.
        (wrong,) = tune.search(tasks.WRONG, settings, store=store, engine=engine)
        assert wrong.best is None and wrong.trials[0].status == "bad"
        reason = wrong.trials[0].reason
        assert "elements of y are wrong: the largest error is" in reason
        assert "tolerance=1e-05 (the default for float32)" in reason

    def test_the_model_predicts_without_compiling(self, store, engine):
        settings = tune.Settings(target="hopper", objective="predicted", trials=3, search="random")
        (result,) = tune.search(tasks.SCALE, settings, store=store, engine=engine)
        assert [trial.status for trial in result.trials] == ["ok"] * 3
        assert 1e-6 < result.best.value < 20e-6 and "registers" not in result.best.detail
        assert result.best.value == min(trial.value for trial in result.trials)
        gfx = tune.Settings(target="gfx1201", objective="predicted", trials=1, search="random")
        (unknown,) = tune.search(tasks.SCALE, gfx, store=store, engine=engine)
        assert unknown.best is None and "no model of time" in unknown.trials[0].reason

    def test_there_is_nothing_to_measure_on(self, store, engine, monkeypatch):
        MadeUpMachine(monkeypatch, engine, lambda config: 1.0, devices=0)
        with pytest.raises(TuneWorkerError, match="no nvidia:sm_90 to measure on.*roofline"):
            tune.search(tasks.SCALE, tune.Settings(target="hopper"), store=store, engine=engine)
        if tune.device_target() is None:
            assert bench.device_count(bench.target_of("hopper")) == 0

    def test_no_such_objective(self, store, engine):
        with pytest.raises(TuneError, match="Did you mean 'registers'"):
            tune.search(tasks.SCALE, tune.Settings(objective="register"), store=store)


def test_a_hang_or_crash_costs_one_configuration(store, engine):
    settings = tune.Settings(target="hopper", objective="registers", compile_limit=4)
    began = time.monotonic()
    (result,) = tune.search(tasks.TROUBLED, settings, store=store, engine=engine)
    assert time.monotonic() - began < 50
    outcomes = statuses(result)
    assert outcomes[128][0] == "ok"
    assert outcomes[256] == ("bad", "took more than 4 s and was killed")
    assert outcomes[512][0] == "bad" and "SIGSEGV" in outcomes[512][1]
    assert outcomes[100][0] == "failed" and "Error" in outcomes[100][1]
    # It is remembered: the next search is over at once.
    began = time.monotonic()
    tune.search(tasks.TROUBLED, settings, store=store, engine=engine)
    assert time.monotonic() - began < 4


SEARCHES = """
import sys
import gluon_core as gluon
from gluon_core import language as gl, tune

@gluon.jit
def put(x, BLOCK: gl.constexpr):
    gl.store(x + gl.arange(0, BLOCK, layout=gl.BlockedLayout([1], [32], [4], [0])), 1.0)

TASK = tune.Task(
    kernel=put,
    space=tune.space(BLOCK=[128, 256]),
    arguments=lambda new: {"x": new.empty(256)},
    grid=lambda args, config: (1,),
)
if GUARD:
    found = tune.search(TASK, tune.Settings(target="hopper", objective="registers"))
    print("found", found[0].best.config["BLOCK"])
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("guard, works", [('__name__ == "__main__"', True), ("True", False)])
def test_a_script_that_searches_wants_a_guard(tmp_path, guard, works):
    """Else it would search in each of its workers, which read it, and in theirs."""
    file = tmp_path / "searches.py"
    file.write_text(SEARCHES.replace("GUARD", guard))
    environment = {**os.environ, "GLUON_TUNE_STORE": str(tmp_path / "s.db")}
    done = warm.run([file], env=environment, timeout=100)
    if works:
        assert done.returncode == 0 and "found" in done.stdout, done.stderr
    else:
        assert done.returncode == 1 and "TuneError" in done.stderr
        assert "searches when it is read" in done.stderr
        assert 'if __name__ == "__main__":' in done.stderr


def test_conflicts_of_the_layouts_keep_a_configuration_from_being_measured(store, engine):
    (result,) = tune.search(tasks.CONFLICTS, COUNT, store=store, engine=engine)
    by_padding = {trial.config["PAD"]: trial for trial in result.trials}
    assert by_padding[1].status == "pruned" and "takes 8 passes" in by_padding[1].reason
    assert by_padding[32].status == "ok" and by_padding[32].detail["conflicts"] == 0


def test_pruning_has_a_reason():
    detail = {"num_warps": 8, "occupancy": 8, "spills": 0, "conflicts": 6}
    limits = tune.Settings().limits()
    assert work.pruned(detail, limits) == ""
    assert work.pruned({**detail, "occupancy": 4}, limits) == "8 warps do not fit where 4 do"
    assert work.pruned({**detail, "spills": 65}, limits) == "spills 65"
    assert "takes 8 passes" in work.pruned({**detail, "conflicts": 7}, limits)
    # The default is never too much.
    poor = {**detail, "spills": 65, "conflicts": 7}
    assert work.pruned(poor, limits, poor) == ""
    assert work.pruned({**poor, "spills": 66}, limits, poor) == "spills 66"


PROGRAM = """
import os, sys
import gluon_tune as tune
from tests import warm
from tests.tune import tasks
from gluon_tune.engine import Local
with tune.Store(sys.argv[1]) as store:
    def report(trial):
        print(trial.done, flush=True)
    settings = tune.Settings(target="hopper", objective="registers")
    (best,) = tune.search(tasks.SCALE, settings, store=store, engine=Local(1), progress=report)
    print("interrupted" if best.interrupted else "ended", len(best.trials), flush=True)
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.campaign)]
)
def test_an_end_in_the_middle_keeps_results(tmp_path, engine, how):
    # A job in the background ignores Ctrl-C unless it installs a handler.
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", hear + PROGRAM, str(tmp_path / "s.db")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
    process.send_signal(how)
    rest = process.communicate(timeout=60)[0]
    assert ("interrupted" in rest) == (how == signal.SIGINT)
    with tune.Store(tmp_path / "s.db") as store:
        kept = {repr(trial.config) for _, trial in store.trials()}
        assert 2 <= len(kept) < len(list(tasks.SCALE.searched))
        events = []
        (result,) = tune.search(
            tasks.SCALE, COUNT, store=store, engine=engine, progress=events.append
        )
        assert not kept & {repr(event.trial.config) for event in events}
        assert len(result.trials) == result.total and not result.interrupted


@pytest.mark.campaign  # what the store's own test says, with searches around it
def test_two_searches_on_one_store(tmp_path):
    outcomes = {}

    def run(seed):
        with tune.Store(tmp_path / "s.db") as store:
            settings = tune.Settings(target="hopper", objective="registers", seed=seed)
            (outcomes[seed],) = tune.search(tasks.SCALE, settings, store=store, engine=Local(1))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    values = [{repr(t.config): t.value for t in outcome.trials} for outcome in outcomes.values()]
    assert values[0] == values[1] and len(values[0]) == outcomes[0].total


# -- measuring, on a device that is made up ------------------------------------------------------


class MadeUp:
    """Takes the place of a process with a device: `times` per configuration, in seconds."""

    def __init__(self, times):
        self.times, self.started, self.calls = times, 1, []
        self.prepared = set()
        self.there = 1

    def call(self, method, *arguments, limit=0.0):
        if method == "facts":
            return {"clock_rate": 1}
        if method == "devices":
            return self.there
        number = arguments[0] if method == "sample" else arguments[2]
        self.calls.append((method, number))
        how = self.times[number]
        if method == "prepare":
            if how == "wrong":
                raise Failed("WrongResultError", "3 of 9 elements of y are wrong", True)
            self.prepared.add(number)
            return 1e-3
        assert number in self.prepared, "its process does not know it"
        if how in ("fault", "hang"):
            self.close()
            if how == "hang":
                raise Ended("took more than 10 s and was killed", hung=True)
            raise Failed("AcceleratorError", "CUDA error: an illegal memory access", False)
        return [how * (1 + 0.001 * (len(self.calls) % 3))] * arguments[1]

    def close(self):
        self.prepared.clear()
        self.started += 1


def test_measured_in_turns_and_losers_stop_early(monkeypatch):
    device = MadeUp([1e-3, 1.2e-3, "fault", 5e-3, "hang", 1.002e-3, "wrong"])
    monkeypatch.setattr(work, "_isolated", lambda *args: device)
    configs = [{"at": position} for position in range(7)]
    results, facts = work.measure(None, None, {}, configs, 6, 1, 10.0)
    assert [r["status"] for r in results] == ["ok", "ok", "bad", "ok", "bad", "ok", "bad"]
    assert "illegal memory access" in results[2]["reason"] and "killed" in results[4]["reason"]
    assert facts["clock_rate"] == 1
    assert results[0]["low"] <= results[0]["value"] <= results[0]["high"]
    samples = [number for method, number in device.calls if method == "sample"]
    assert samples.count(0) == samples.count(5) == 6  # nobody can tell them apart
    assert samples.count(3) == samples.count(1) == 2  # they have lost
    assert samples.count(2) == samples.count(4) == 1  # remembered as bad
    assert samples[:2] == [0, 1] and samples.index(5) < 6  # in turns


@pytest.mark.parametrize("how", ["fault", "hang"])
def test_a_device_that_disappears_makes_no_configuration_bad(monkeypatch, how):
    device = MadeUp([1e-3, how, 2e-3])
    device.there = 0
    monkeypatch.setattr(work, "_isolated", lambda *args: device)
    with pytest.raises(TuneWorkerError, match="the device is gone.*(illegal|killed).*kept"):
        work.measure(None, None, {}, [{"at": index} for index in range(3)], 6, 1, 10.0)
    assert pickle.loads(pickle.dumps(TuneWorkerError("a", got="b"))).args  # it comes from a cluster


def test_results_before_a_lost_device_are_kept(store, engine, monkeypatch):
    machine = MadeUpMachine(monkeypatch, engine, lambda config: 1.0)
    measure = machine.measure

    def until_it_is_gone(*args):
        if machine.batches:
            raise TuneWorkerError("the device is gone")
        return measure(*args)

    monkeypatch.setattr(work, "measure", until_it_is_gone)
    settings = tune.Settings(target="hopper")
    with pytest.raises(TuneWorkerError, match="gone"):
        tune.search(tasks.SCALE, settings, store=store, engine=engine)
    kept = [trial.status for _, trial in store.trials()]
    assert kept == ["ok"] * len(machine.batches[0])
    monkeypatch.setattr(work, "measure", measure)
    (result,) = tune.search(tasks.SCALE, settings, store=store, engine=engine)
    assert len(result.trials) == result.total and result.best is not None


def test_a_full_disk_ends_a_search_and_keeps_its_results(store, engine, monkeypatch):
    machine = MadeUpMachine(monkeypatch, engine, lambda config: 1.0)
    pages = store._base.execute("pragma page_count").fetchone()[0]
    store._base.execute(f"pragma max_page_count={pages + 1}")
    detail = {"num_warps": 1, "occupancy": 1, "spills": 0, "conflicts": 0, "bound": 0.0}
    answer = {"status": "compiled", "reason": "", "versions": work.versions()}
    large = lambda *args: {**answer, "detail": {**detail, "note": "x" * 1500}}  # noqa: E731
    monkeypatch.setattr(work, "compile_one", large)
    with pytest.raises(TuneStoreError, match="full.*Make room.*kept"):
        tune.search(tasks.SCALE, tune.Settings(target="hopper"), store=store, engine=engine)
    assert 0 < len(store.trials()) < len(list(tasks.SCALE.searched)) and machine.batches


class MadeUpMachine:
    """Compiles nothing, and measures given times: `times` by block size, `slower` with each batch."""

    def __init__(self, monkeypatch, engine, times, bound=0.0, slower=0.0, devices=1):
        self.times, self.bound, self.slower = times, bound, slower
        self.batches = []
        work_item = (tune.task.Reference.of(tasks.SCALE), "hopper", {}, False)
        known = engine.compile(work.about, *work_item).result()
        about = {**known, "devices": devices, "device": "Made Up"}
        monkeypatch.setattr(work, "about", lambda *args: about)
        monkeypatch.setattr(work, "compile_one", self.compile_one)
        monkeypatch.setattr(work, "measure", self.measure)
        monkeypatch.setattr(session, "_BATCH", 2)

    def compile_one(self, reference, target, shape, config, objective, limits):
        detail = {"num_warps": 1, "occupancy": 1, "spills": 0, "conflicts": 0}
        detail["bound"] = self.bound if config["BLOCK"] == 512 else 0.0
        return {"status": "compiled", "reason": "", "detail": detail, "versions": work.versions()}

    def measure(self, reference, target, shape, configs, rounds, devices, limit):
        factor = 1 + self.slower * len(self.batches)
        self.batches.append(configs)
        times = [factor * self.times(config) for config in configs]
        results = [
            {"status": "ok", "reason": "", "value": v, "low": 0.99 * v, "high": 1.01 * v}
            for v in times
        ]
        return results, {"versions": work.versions()}


def test_a_bound_above_the_best_is_not_measured(store, engine, monkeypatch):
    machine = MadeUpMachine(
        monkeypatch, engine, lambda c: {128: 2.0, 256: 1.0}[c["BLOCK"]], bound=9.0
    )
    settings = tune.Settings(target="hopper")
    (result,) = tune.search(tasks.SCALE, settings, store=store, engine=engine)
    assert result.best.config["BLOCK"] == 256 and result.key.device == "Made Up"
    beaten = [t for t in result.trials if t.config["BLOCK"] == 512]
    assert {t.status for t in beaten} == {"pruned"} and "peaks" in beaten[0].reason
    assert 512 not in {config["BLOCK"] for batch in machine.batches for config in batch}


def test_a_search_that_samples_neither_counts_nor_waits_for_pruned_trials(
    store, engine, monkeypatch
):
    patience = []

    def compile_one(reference, target, shape, config, objective, limits):
        patience.append(limits["patience"])
        spills = 1000 if config["VECTOR"] == 8 else 0
        detail = {"num_warps": 1, "occupancy": 1, "spills": spills, "conflicts": 0}
        if config["VECTOR"] == 4 and config != tasks.WIDE.default:
            return {"status": "pruned", "reason": "", "detail": {}, "versions": work.versions()}
        detail["compile_seconds"] = 3.0 if config == tasks.WIDE.default else 1.0
        answer = {"status": "ok", "reason": "", "value": float(config["BLOCK"])}
        return {**answer, "detail": detail, "versions": work.versions()}

    monkeypatch.setattr(work, "compile_one", compile_one)
    monkeypatch.setattr(session, "_SHARE", 0.0)  # no more than it tries at least
    settings = tune.Settings(target="hopper", objective="registers", search="random")
    (result,) = tune.search(tasks.WIDE, settings, store=store, engine=engine)
    pruned = [trial for trial in result.trials if trial.status == "pruned"]
    cheap = sum(not trial.detail for trial in pruned)
    assert len(pruned) > cheap > 0  # what spills took as long as any other
    assert result.tried == len(result.trials) == 20 + cheap
    assert patience[0] is None and patience[-1] == 12.0  # the default took three seconds
    everything = tune.Settings(target="hopper", objective="registers", search="exhaustive")
    patience.clear()
    (result,) = tune.search(tasks.WIDE, everything, store=store, engine=engine)
    assert result.tried == 100 and set(patience) == {None}


def test_a_compilation_that_takes_far_longer_than_others_is_given_up():
    work_item = (tune.task.Reference.of(tasks.TROUBLED), "hopper", {}, {"BLOCK": 256}, "registers")
    limits = {**COUNT.limits(), "patience": 0.5}
    answer = work.compile_one(*work_item, limits)
    assert answer["status"] == "pruned" and "after 0.5 s" in answer["reason"]


def test_a_device_that_slows_down_fools_nobody(store, engine, monkeypatch):
    order = list(tasks.SCALE.searched)

    def times(config):  # the default is slow and the first, the best is among the last
        return 2.0 - 0.1 * order.index(config)

    machine = MadeUpMachine(monkeypatch, engine, times, slower=0.25)
    settings = tune.Settings(target="hopper")
    (result,) = tune.search(tasks.SCALE, settings, store=store, engine=engine)
    assert len(machine.batches) > 3
    assert [order.index(t.config) for t in result.trials] == sorted(range(len(order)), reverse=True)
    now = 1 + 0.25 * (len(machine.batches) - 1)
    for trial in result.trials:  # all of them as the device is at the end
        assert trial.value == pytest.approx(now * times(trial.config))
        assert trial.low == pytest.approx(0.99 * trial.value)


def test_workers_of_another_build_are_reported(store, engine, monkeypatch):
    answer = {"status": "failed", "reason": "", "detail": {}, "versions": "another"}
    monkeypatch.setattr(work, "compile_one", lambda *args: answer)
    with pytest.raises(TuneWorkerError, match="different releases; expected gluon-core.*another"):
        tune.search(tasks.SCALE, COUNT, store=store, engine=engine)


@pytest.mark.gpu
def test_on_a_device(store, engine):
    pytest.importorskip("torch")
    if tune.device_target() is None:
        pytest.skip("there is no GPU")
    for attempt in range(3):  # others on the device may make either measurement slow
        settings = tune.Settings(objective="time", again=attempt > 0)
        (result,) = tune.search(tasks.SCALE, settings, store=store, engine=engine)
        assert result.best is not None, [(trial.status, trial.reason) for trial in result.trials]
        assert result.key.device and result.best.detail["final"]
        assert result.best.low <= result.best.value <= result.best.high
        (checked,) = check(tasks.SCALE, settings, store=store, engine=engine, tolerance=1.0)
        if not checked.slower:
            break
    assert not checked.slower, checked


@pytest.mark.gpu
def test_a_hang_or_fault_on_a_device_costs_one_configuration(store, engine):
    if tune.device_target() is None:
        pytest.skip("there is no GPU")
    settings = tune.Settings(run_limit=2.0)
    (result,) = tune.search(tasks.MISBEHAVES, settings, store=store, engine=engine)
    outcomes = {trial.config["HOW"]: (trial.status, trial.reason) for trial in result.trials}
    assert outcomes[0][0] == "ok" and outcomes[1][0] == "bad", outcomes
    assert outcomes[2][0] in ("bad", "failed"), outcomes  # on the emulator a fault ends no process
    assert "was killed" in outcomes[1][1]
    words = "illegal", "fault", "AccessError"  # of GPUs, and of the emulator
    assert any(word in outcomes[2][1] for word in words), outcomes[2]
    (after,) = tune.search(tasks.SCALE, tune.Settings(trials=1), store=store, engine=engine)
    assert after.best is not None  # the device works on


# -- reports -------------------------------------------------------------------------------------


def test_the_report_shows_the_effect_of_each_parameter():
    trials = [
        tune.Trial({"A": a, "B": b}, "ok", float(v), timestamp=float(moment), name="<f>")
        for moment, (a, b, v) in enumerate([(1, 1, 4), (2, 1, 2), (1, 2, 8), (2, 2, 3), (3, 1, 1)])
    ]
    trials.append(tune.Trial({"A": 9, "B": 9}, "bad", reason="<hung>", timestamp=9.0))
    assert [(n, t.value) for n, t in frontier(trials)] == [(1, 4.0), (2, 2.0), (5, 1.0)]
    assert effects(trials)["A"] == {3: (1, 1.0, 1.0), 2: (2, 2.0, 3.0), 1: (2, 4.0, 8.0)}
    key = tune.Key("k", "nvidia:sm_90", "H200", "x=*fp32", "{}", "v", "registers")
    ordered = sorted(trials, key=lambda t: (t.status != "ok", t.value or 0.0))
    text = page("gluon tune <f>", [tune.Outcome(key, {}, ordered)])
    assert "<b>A=3, B=1</b>" in text and "&lt;hung&gt;" in text and "<hung>" not in text
    assert "<polyline" in text and "http" not in text and "<script" not in text
