"""`gluon tune` through its front door."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gluon_bundle import Bundle
from gluon_cli.app import app
from gluon_tune import command as cli
from gluon_tune.engine import Local
from gluon_tune.tuned import Store

pytestmark = [pytest.mark.once, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests" / "tune" / "tasks.py"
COUNT = ("-t", "hopper", "--objective", "registers", "-j", "1")


@pytest.fixture(scope="module")
def processes():
    engine = Local(1)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def kept(monkeypatch, processes):
    """Commands share their processes: starting them takes longer than what they do."""
    monkeypatch.setattr(processes, "close", lambda: None)
    monkeypatch.setattr(cli, "Local", lambda workers: processes)


def gluon(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_from_the_command_line(tmp_path):
    store, page, bundle = tmp_path / "s.db", tmp_path / "r.html", tmp_path / "b.glb"
    spec = f"{TASKS}:SCALE"
    files = ("--html", page, "--bundle", bundle, "--export", tmp_path / "t.py")
    done = gluon("tune", spec, *COUNT, "--store", store, "--space", "VECTOR=1,4", *files)
    # The space on the command line does not name all of the task's, which falls to the defaults.
    assert "best: VECTOR=" in done.stdout and "2 of 2 configurations" in done.stdout
    assert "effect of each parameter" in done.stdout and "frontier" in done.stdout
    assert "about 0 s left" in done.stderr and f"kept in {store}" in done.stderr
    assert "<svg" in page.read_text() and "n=1024" in page.read_text()
    (form,) = Bundle.open(bundle).kernels["scale"]["forms"]
    assert form["target"] == "nvidia:sm_90" and form["launch"]["num_warps"] == 2
    names: dict = {}
    exec((tmp_path / "t.py").read_text(), names)
    ((place, config),) = names["SCALE"].items()
    assert place == ("nvidia:sm_90", "", "x=*fp32, y=*fp32, n=1024") and config["BLOCK"] == 256
    # For machines, and from what is known.
    document = json.loads(
        gluon("tune", spec, *COUNT, "--store", store, "--space", "VECTOR=1,4", "--json").stdout
    )
    assert document[0]["best"]["config"] == {n: config[n] for n in ("num_warps", "VECTOR")}
    assert document[0]["statuses"] == {"ok": 2}
    # The best is what it was; what is counted does not vary.
    same = gluon("tune", spec, *COUNT, "--store", store, "--space", "VECTOR=1,4", "--check")
    assert "as before" in same.stdout
    with Store(store) as opened:
        ((key, best), *_) = opened.trials()
        opened.add(key, replace(best, value=best.value / 2, low=best.low / 2, high=best.high / 2))
    slower = gluon(
        "tune", spec, *COUNT, "--store", store, "--space", "VECTOR=1,4", "--check", code=1
    )
    assert "slower" in slower.stdout
    # Stores of other machines, without a file to tune.
    other = tmp_path / "o.db"
    gluon("tune", "--store", other, "--merge", store, "--export", tmp_path / "o.json")
    assert len(json.loads((tmp_path / "o.json").read_text())["trials"]) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments, code, message",
    [
        ((), 2, "names no file to tune"),
        (("none.py",), 2, "cannot be read"),
        ((TASKS,), 2, "has several tasks. Name one: FILE:SCALE"),
        ((f"{TASKS}:SCAL",), 2, "Did you mean 'SCALE'"),
        (
            (ROOT / "tests" / "kernels" / "cases" / "softmax.py", "-t", "hopper"),
            2,
            "--space BLOCK=128,256",
        ),
        ((f"{TASKS}:SCALE", "--space", "VECTOR"), 2, "must be NAME=VALUE"),
        ((f"{TASKS}:SCALE", "--space", "x=1,2"), 2, "x: scale takes it as an argument"),
        ((f"{TASKS}:SCALE", "--objective", "speed"), 2, "objective: not an objective"),
        ((f"{TASKS}:SCALE", "--dask", "a", "--ray", "b"), 2, "choose one of"),
        ((f"{TASKS}:SCALE", "--resource", "GPU=1"), 2, "needs --dask or --ray"),
        ((f"{TASKS}:SCALE", "-t", "hoper", "--objective", "registers"), 2, "Did you mean 'hopper'"),
        (("--merge", "none.db"), 2, "no such file"),
    ],
)
def test_values_of_no_use(tmp_path, arguments, code, message):
    done = gluon("tune", *arguments, "--store", tmp_path / "s.db", code=code)
    assert message in done.stderr.replace("\n", " "), done.stderr


def test_nothing_to_check_is_no_success(tmp_path):
    done = gluon("tune", f"{TASKS}:SCALE", *COUNT, "--store", tmp_path / "s.db", "--check", code=3)
    assert "nothing to check" in done.stderr


def test_no_configuration_works(tmp_path):
    done = gluon(
        "tune",
        f"{TASKS}:SCALE",
        *COUNT,
        "--store",
        tmp_path / "s.db",
        "--space",
        "BLOCK=100",
        code=1,
    )
    assert "1 failed" in done.stdout and "Error" in done.stdout
