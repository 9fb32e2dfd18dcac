"""`kernel[grid](..., config="tuned")`: its lookup, its fallbacks, and its time."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from gluon_bundle.form import identity_of
from gluon_core.errors import ArgumentError, NotTunedError, TuneStoreVersionError
from gluon_runtime.rules import ABSENT
from gluon_tune.export import table_source
from gluon_tune.tuned import Key, Store, Trial, versions
from tests.tune import tasks

pytestmark = pytest.mark.once

SIM = "sim:hopper"


def key_of(n, target="nvidia:sm_90", device="", kernel=tasks.scale, fixed="{}", objective="time"):
    bucket = f"x=*fp32, y=*fp32, n={n}"
    return Key(identity_of(kernel), target, device, bucket, fixed, versions(), objective)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TUNE_STORE", str(tmp_path / "s.db"))
    tasks.scale.forget()
    with Store() as opened:
        opened.add(key_of(1024), Trial({"BLOCK": 256, "VECTOR": 2, "num_warps": 4}, "ok", 2.0))
        opened.add(key_of(1024), Trial({"BLOCK": 512, "VECTOR": 4, "num_warps": 4}, "ok", 1.0))
        opened.add(key_of(1024), Trial({"BLOCK": 128, "VECTOR": 1, "num_warps": 4}, "bad", 0.1))
        yield opened
    tasks.scale.forget()


def launch(n, *constants, **options):
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    options = {"target": SIM, "config": "tuned", **options}
    grid = lambda meta: (-(-meta["n"] // meta["BLOCK"]),)  # noqa: E731
    kernel = tasks.scale[grid](x, y, n, *constants, **options)
    assert (y == 2 * x).all()
    names = [kernel.src.fn.arg_names[path[0]] for path in kernel.src.constants]
    values = dict(zip(names, kernel.src.constants.values()))
    return values["BLOCK"], values["VECTOR"], kernel.metadata.num_warps


def test_the_best_that_works_is_launched(store):
    assert launch(1000) == (512, 4, 4)
    assert launch(600) == (512, 4, 4)  # of the same bucket
    # The store may change: a process that has looked keeps its answer until you clear it.
    store.add(key_of(1024), Trial({"BLOCK": 128, "VECTOR": 1, "num_warps": 4}, "ok", 0.5))
    assert launch(1000) == (512, 4, 4)
    tasks.scale.forget()
    assert launch(1000) == (128, 1, 4)


def test_measured_times_go_before_counted_ones(store):
    counted = Trial({"BLOCK": 128, "VECTOR": 1, "num_warps": 4}, "ok", 1e-9)
    store.add(key_of(1024, objective="registers"), counted)
    assert launch(1000) == (512, 4, 4)


def test_falls_back_to_the_default(store):
    assert launch(3000, 128, 4, num_warps=1) == (128, 4, 1)
    assert launch(1000, 128, 4, num_warps=1) == (512, 4, 4)
    assert launch(3000, BLOCK=128, VECTOR=1) == (128, 1, 4)


def test_or_to_the_nearest(store):
    store.add(key_of(2**20), Trial({"BLOCK": 128, "VECTOR": 1, "num_warps": 4}, "ok", 1.0))
    assert launch(3000, config="tuned:nearest") == (512, 4, 4)
    assert launch(2**17, config="tuned:nearest") == (128, 1, 4)


def test_releases_are_part_of_the_key(store):
    old = replace(key_of(4096), versions="gluon-core 0.0.1, triton 3.0.0")
    store.add(old, Trial({"BLOCK": 128, "VECTOR": 1, "num_warps": 4}, "ok", 1.0))
    with pytest.raises(NotTunedError):
        launch(3000)
    assert launch(3000, config="tuned:nearest") == (128, 1, 4)


def test_or_names_the_missing_entry(store):
    with pytest.raises(NotTunedError) as caught:
        launch(3000)
    message = str(caught.value)
    assert "no configuration of scale is known" in message and "n=4096" in message
    assert (
        "nvidia:sm_90" in message
        and "BLOCK, VECTOR" in message
        and "config='tuned:nearest'" in message
    )
    with pytest.raises(NotTunedError):
        launch(1000, target="sim:gfx942")
    with pytest.raises(ArgumentError, match="Did you mean 'tuned'"):
        launch(1000, config="tunde")


def test_constants_that_were_not_searched_must_be_the_same(store):
    config = {"VECTOR": 1, "num_warps": 4}
    store.add(key_of(4096, fixed='{"BLOCK": 128}'), Trial(config, "ok", 1.0))
    assert launch(3000) == (128, 1, 4)
    assert launch(3000, BLOCK=128) == (128, 1, 4)
    assert launch(3000, BLOCK=256, VECTOR=2) == (256, 2, 4)  # nothing is known for 256


def test_without_a_store_or_with_another_release(store, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TUNE_STORE", str(tmp_path / "none.db"))
    assert launch(1000, 128, 4, num_warps=1) == (128, 4, 1)
    assert not (tmp_path / "none.db").exists()
    tasks.scale.forget()
    monkeypatch.setenv("GLUON_TUNE_STORE", str(store.path))
    store._base.execute("pragma user_version=9")
    with pytest.raises(TuneStoreVersionError, match="format 9"):
        launch(1000)


def test_a_table_in_source(store, monkeypatch):
    names: dict = {}
    exec(table_source(store.trials()), names)
    monkeypatch.setenv("GLUON_TUNE_STORE", "/nowhere/s.db")
    (table,) = (value for name, value in names.items() if not name.startswith("__"))
    assert launch(1000, config=table) == (512, 4, 4)
    with pytest.raises(NotTunedError, match="a table without it"):
        launch(3000, config=table)
    with pytest.raises(ArgumentError, match="not a table of configurations"):
        launch(1000, config={"BLOCK": 4})


def test_warmup_and_prepare_look_it_up_too(store):
    x, y = np.zeros(1000, np.float32), np.ones(1000, np.float32)
    compiled = tasks.scale.warmup(x, y, 1000, target=SIM, config="tuned")
    assert 512 in compiled.src.constants.values()
    handle = tasks.scale.prepare(x, y, 1000, grid=(2,), target=SIM, config="tuned")
    handle(x, y, 1000, 512, 4)
    assert (y == 0).all()


def test_missing_arguments_are_still_reported():
    x = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match=r"scale\(\) missing 1 required .* 'VECTOR'"):
        tasks.scale[1](x, x, 8, 128, target=SIM)
    with pytest.raises(TypeError, match=r"scale\(\) missing 2 required .* 'BLOCK', 'VECTOR'"):
        tasks.scale[1](x, x, 8, target=SIM)
    with pytest.raises(TypeError, match=r"scale\(\) missing 1 required .* 'n'"):
        tasks.scale[1](x, x, BLOCK=1, VECTOR=1, target=SIM)


def test_it_takes_microseconds(store):
    x = np.zeros(1000, np.float32)
    values = (x, x, 1000, ABSENT, ABSENT)
    look, options = tasks.scale.dispatcher.lookup, {"config": "tuned", "target": SIM}
    look(values, options)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(200):
            look(values, options)
        best = min(best, (time.perf_counter() - began) / 200)
    assert best < 100e-6, f"{best * 1e6:.1f} us"
    assert json.loads(key_of(1).fixed) == {}
