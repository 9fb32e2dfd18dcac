"""Spaces that can be searched, and the errors of others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gluon_tune as tune
from gluon_core.errors import TuneError, TuneSpaceError
from gluon_core.registry.load import registry
from gluon_tune.estimate import estimate
from gluon_tune.statistics import interval, losers
from gluon_tune.strategies import Optuna, strategy_of
from gluon_tune.tuned.lookup import bucket_of, call_of
from tests.tune import tasks

pytestmark = pytest.mark.once


def test_a_space_is_all_combinations_that_go_together():
    configs = list(tune.space(A=[1, 2, 3], B=[1, 2], when=lambda A, B: A >= B))
    assert configs == [
        {"A": 1, "B": 1},
        {"A": 2, "B": 1},
        {"A": 2, "B": 2},
        {"A": 3, "B": 1},
        {"A": 3, "B": 2},
    ]
    space = tune.space(A=[1, 2, 3], B=[1, 2], when=lambda A: A > 1)
    assert {"A": 2, "B": 1} in space and {"A": 1, "B": 1} not in space
    assert {"A": 2} not in space and {"A": 9, "B": 1} not in space


@pytest.mark.parametrize(
    "values, message",
    [
        ({}, "without names"),
        ({"A": []}, "A: no values"),
        ({"A": "abc"}, "A: not a list of values"),
        ({"A": [1, 1]}, "twice"),
        ({"A": [object()]}, "kept as JSON"),
    ],
)
def test_values_that_are_no_space(values, message):
    with pytest.raises(TuneSpaceError, match=message):
        tune.space(**values)


def test_the_configurations_of_an_autotuner_are_a_space():
    triton = pytest.importorskip("triton")
    configs = [
        triton.Config({"BLOCK": b, "VECTOR": 1}, num_warps=w) for b, w in [(128, 4), (64, 2)]
    ]
    kernel = triton.autotune(configs, key=["n"], do_bench=lambda call, quantiles: [0.0])(
        tasks.scale
    )
    configurations = list(tune.configs_of(kernel))
    assert [(c["BLOCK"], c["num_warps"]) for c in configurations] == [(128, 4), (64, 2)]
    task = tune.Task(kernel=kernel, arguments=tasks.arguments, grid=tasks.grid)
    assert task.name == "scale" and task.searched.size == 2
    with pytest.raises(TuneSpaceError, match="not decorated with triton.autotune"):
        tune.configs_of(tasks.scale)


def test_arguments_of_the_kernel_are_not_searched():
    with pytest.raises(TuneSpaceError, match="n: scale takes it as an argument"):
        tune.Task(
            kernel=tasks.scale, space=tune.space(n=[1]), arguments=tasks.arguments, grid=tasks.grid
        )
    with pytest.raises(TuneError, match="together"):
        tune.Task(
            kernel=tasks.scale,
            space=tune.space(BLOCK=[1]),
            arguments=tasks.arguments,
            grid=tasks.grid,
            output="y",
        )


def valley(config):
    return 1 + abs(config["A"] - 13) + 3 * abs(config["B"] - 5) + (config["C"] != "x")


SPACE = tune.space(
    A=list(range(20)), B=list(range(10)), C=["x", "y", "z"], when=lambda A, B: A != B
)


def run(strategy, count):
    options = {}
    for _ in range(count):
        config = strategy.ask()
        if config is None:
            break
        assert config in SPACE and tuple(config.values()) not in options
        options[tuple(config.values())] = valley(config)
        strategy.tell(config, valley(config) if config["A"] != 7 else None)
    return options


def test_optuna_beats_chance():
    pytest.importorskip("optuna", reason="optuna is not installed")
    best = {"optuna": [], "random": []}
    for seed in range(6):
        for name, name_best in best.items():
            strategy, trials, total = strategy_of(name, SPACE, None, seed, 40)
            assert (trials, total) == (40, 570)
            name_best.append(min(run(strategy, trials).values()))
    assert 1.3 * sum(best["optuna"]) < sum(best["random"]) and max(best["optuna"]) <= 2


def test_a_search_begins_with_the_default_and_ends_with_the_space():
    pytest.importorskip("optuna", reason="optuna is not installed")
    small = tune.space(A=[1, 2, 3], B=[4, 5])
    strategy = Optuna(small, list(small), {"A": 2, "B": 5}, 0)
    strategy.tell({"A": 1, "B": 4}, 3.0)  # from an earlier search
    configs = []
    while (config := strategy.ask()) is not None:
        configs.append(tuple(config.values()))
        strategy.tell(config, float(sum(config.values())))
    assert configs[0] == (2, 5) and len(set(configs)) == len(configs) == 5 and (1, 4) not in configs


def test_all_are_tried_where_they_are_few():
    strategy, trials, total = strategy_of("auto", tasks.SCALE.searched, None, 0, None)
    assert trials == total == len(list(tasks.SCALE.searched)) and strategy.ask() is not None
    with pytest.raises(TuneSpaceError, match="no configuration belongs"):
        strategy_of("auto", tune.space(A=[1], when=lambda A: False), None, 0, None)
    with pytest.raises(TuneError, match="Did you mean 'random'"):
        strategy_of("radnom", SPACE, None, 0, None)


def test_intervals_and_losers():
    value, low, high = interval([1.0, 1.1, 0.9, 1.0])
    assert value == 1.0 and 0.85 < low < 0.95 and 1.05 < high < 1.15
    assert interval([1.0]) == (1.0, 0.0, float("inf"))
    samples = {0: [1.0, 1.01, 0.99], 1: [1.005, 0.995, 1.0], 2: [1.1, 1.101, 1.099], 3: [2.0, 2.0]}
    assert sorted(losers(samples)) == [2, 3]
    assert losers({0: [5.0]}) == []


@pytest.mark.parametrize(
    "dtype, error, tolerance, fine",
    [
        (np.float32, 5e-6, None, True),
        (np.float32, 5e-5, None, False),
        (np.float16, 2e-3, None, True),
        (np.float64, 5e-6, None, False),
        (np.int32, 1, None, False),
        (np.float32, 5e-6, 0.0, False),
        (np.float32, 5e-3, 1e-2, True),
    ],
)
def test_the_tolerance_of_a_result(dtype, error, tolerance, fine):
    task = dataclasses.replace(tasks.SCALE, tolerance=tolerance)
    right = np.ones(8, dtype)
    message = task.difference({"y": (right + np.asarray(error)).astype(dtype)}, right)
    assert (message is None) == fine
    if not fine:
        name = np.dtype(dtype).name
        source = f" (the default for {name})" if tolerance is None else ""
        assert "8 of 8 elements of y are wrong: the largest error is" in message
        assert (
            f"tolerance={0 if dtype == np.int32 or tolerance == 0 else _allowed(name):g}{source}"
            in message
        )


def _allowed(name):
    return {"float32": 1e-5, "float64": 1e-12}[name]


def test_an_estimate_distinguishes_vector_widths_and_occupancies():
    peaks = registry().target("hopper").architecture.peaks
    counted = {"seconds": 1e-6, "programs": 4096, "loads": 4096, "requests": 4096 * 16}
    code = {"occupancy": 64, "num_warps": 4}
    usual = estimate(counted, code, peaks)
    assert estimate({**counted, "requests": 4096 * 64}, code, peaks) > usual  # narrow vectors
    assert estimate(counted, {**code, "occupancy": 8}, peaks) > usual
    assert estimate(counted, code, {}) == counted["seconds"]


def test_the_headline_has_the_call_s_own_sizes():
    parameters = tasks.scale.dispatcher.parameters
    values = [np.zeros(400, np.float32), np.zeros(400, np.float32), 400, None, None]
    assert "n=512" in bucket_of(parameters, values)
    assert "n=400" in call_of(parameters, values)
