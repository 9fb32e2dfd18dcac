"""Decisions of searches, played through with times that an H200 and its host took, and with made-up ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import gluon_tune as tune
from gluon_tune import session
from gluon_tune.strategies import Optuna, default_trials
from gluon_tune.task import Reference
from gluon_tune.tuned import Store
from tests.tune import tasks
from tests.tune.replay import Costs, Recorded, Replay

pytestmark = pytest.mark.once

# BLOCK_M, BLOCK_N, warps, microseconds of attention (None: not launched), seconds of compiling, spills.
RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
ABOUT = {"kernel": "k", "name": "k", "target": "t", "bucket": "b", "fixed": {}, "options": {}}


class Table:
    """The recorded configurations as a task."""

    def __init__(self):
        self.known = {
            (m, n, warps): Recorded(us and us / 1e6, compiling, {"spills": spills})
            for m, n, warps, us, compiling, spills in RECORDED
        }
        names = ("BLOCK_M", "BLOCK_N", "num_warps")
        values = [sorted({key[index] for key in self.known}) for index in range(3)]
        self.space = tune.space(**dict(zip(names, values)))
        self.default = dict(zip(names, (64, 64, 4)))

    def __call__(self, config):
        return self.known[tuple(config.values())]


def play(monkeypatch, known, space, default, how, seed=0, slots=9, costs=None, **more):
    """A search; the outcome and the engine."""
    task = tune.Task(
        kernel=tasks.scale, space=space, arguments=tasks.arguments, grid=tasks.grid, fixed={}
    )
    monkeypatch.setattr(session.Reference, "of", lambda task: Reference("none", "none"))
    engine = Replay(known, {**ABOUT, "default": default}, slots, costs or Costs(), seed)
    engine.on(monkeypatch)
    with Store(":memory:") as store:
        settings = tune.Settings(search=how, seed=seed, **more)
        (result,) = tune.search(task, settings, engine=engine, store=store)
    return result, engine


def test_a_search_finds_the_best_in_less_than_a_fifth_of_the_time(monkeypatch):
    pytest.importorskip("optuna")
    table, shares = Table(), []
    searched = (table, table.space, table.default)
    everything, _ = play(monkeypatch, *searched, "exhaustive")
    assert len(everything.trials) == everything.total == 80
    best = everything.best.config
    for seed in range(1, 6):
        result, engine = play(monkeypatch, *searched, "optuna", seed)
        assert result.best.config == best == {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 2}
        assert 12 <= result.tried <= 40 and engine.compilations < 50
        shares.append(result.seconds / everything.seconds)
    assert sorted(shares)[2] < 0.17 and max(shares) < 0.2, shares


def bowl(config):
    """The best is A = B = 20."""
    away = math.hypot(config["A"] - 20, config["B"] - 20)
    return Recorded(1e-3 * (1 + away / 10), 0.5, {"spills": 0})


BOWL = tune.space(A=list(range(24)), B=list(range(24)))
START = {"A": 16, "B": 16}


@pytest.mark.parametrize("slots", [2, 16])
def test_time_that_all_would_take_is_time_to_try_more(monkeypatch, slots):
    pytest.importorskip("optuna")
    result, engine = play(monkeypatch, bowl, BOWL, START, "optuna", slots=slots)
    whole = 576 * (0.5 * 1.05 + engine.costs.compiled) / slots
    least = default_trials(576)
    assert 0.12 * whole < result.seconds < 0.2 * whole or result.tried <= 1.5 * least + slots
    assert least <= result.tried <= 576 // 3 and (slots == 16 or result.tried > 2 * least)
    assert result.best.value < (1.03e-3 if slots == 2 else 1.25e-3)


def test_an_endless_compilation_is_not_waited_for(monkeypatch):
    def known(config):
        seconds = bowl(config)
        seconds.compiling = 500.0 if config == {"A": 16, "B": 17} else 0.5
        return seconds

    monkeypatch.setattr(session, "_LEAST", 1e9)  # none is killed
    result, engine = play(monkeypatch, known, BOWL, START, "optuna")
    assert result.seconds < 100 and {"A": 16, "B": 17} not in [t.config for t in result.trials]
    everything = tune.space(A=list(range(16, 19)), B=[16, 17])
    result, engine = play(monkeypatch, known, everything, START, "exhaustive")
    assert (
        result.seconds > 300 and len(result.trials) == 6
    )  # where all are wanted they are waited for


def test_workers_compile_while_the_device_begins(monkeypatch):
    costs = Costs(device=30.0)
    everything = tune.space(A=list(range(10, 26)), B=[16, 17, 18])
    result, engine = play(monkeypatch, bowl, everything, START, "exhaustive", costs=costs)
    assert len(result.trials) == 48 and result.seconds < 32.5
    # With as many trials as somebody wants, half of them wait for what is known then.
    result, engine = play(monkeypatch, bowl, BOWL, START, "optuna", costs=costs, trials=20)
    assert result.tried == 20 and result.seconds > 31


def test_larger_configurations_than_a_failed_one_come_last(monkeypatch):
    pytest.importorskip("optuna")

    def known(config):
        seconds = bowl(config)
        if config["A"] > 17:
            seconds.refused = "LimitError"
        return seconds

    def refused():
        result, _ = play(monkeypatch, known, BOWL, START, "optuna", seed=3)
        assert result.best.value < 1.45e-3  # 17 and 20 are what there is
        return sum(trial.status == "pruned" for trial in result.trials)

    learns = refused()
    monkeypatch.setattr(Optuna, "_too_large", lambda *args: False)
    assert learns < 0.7 * refused()
