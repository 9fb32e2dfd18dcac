"""The command `gluon demo`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gluon_core.cli import demo
from gluon_core.cli.example import Check, Example
from gluon_core.contract.registry import Registry, registry
from tests.cli.test_cli import gluon

pytestmark = pytest.mark.once


def test_a_part_of_it():
    call = (
        "demo",
        "--only",
        "scalar",
        "--only",
        "double",
        "-t",
        "sm_90",
        "-t",
        "gfx942",
        "-j",
        1,
    )
    rows = json.loads(gluon(*call, "--json").stdout)
    rows = [row for row in rows if row["kind"] != "run"]
    found = {(row["example"], row["target"]): row for row in rows}
    assert len(rows) == len(found) == 6
    assert found["scalar copy", "sim:sm_90"]["result"] == "right"
    assert found["scalar copy", "nvidia:sm_90"]["registers"] > 0
    assert found["scalar copy", "amd:gfx942"]["instruction_mix"]
    assert found["add, double-buffered", "amd:gfx942"]["result"] == "needs nvidia.cp_async"


def test_a_wrong_result_fails(monkeypatch):
    def wrong(work, on_device, processes):
        right = demo.Row("scalar copy", "sim:sm_90", "simulate", "right")
        return [replace(right, result="1 is wrong", failed=True)] + [right] * (
            len(work) + len(on_device) - 1
        )

    monkeypatch.setattr(demo, "_run_all", wrong)
    assert "1 wrong" in gluon("demo", code=1).stdout


def test_each_is_simulated_where_it_can_run(monkeypatch):
    jobs = []
    monkeypatch.setattr(demo, "_run_all", lambda work, *_: jobs.extend(work) or [])
    gluon("demo", code=130)  # none of them was reached
    examples, broken = demo.load_examples()
    chosen = {key: spec for kind, key, spec in jobs if kind == "simulate"}
    assert not broken and set(chosen) == set(examples)
    for key, spec in chosen.items():
        assert not examples[key].lacks(demo.registry().target(spec)), (key, spec)
    assert chosen["memcpy_1d", 0] == "sim:sm_90" and "gfx" in chosen["attention_cdna", 0]


def test_without_plugins_it_says_shortly_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "registry", Registry)
    monkeypatch.setattr(demo, "absent", lambda: {"gluon-sim": "./backends/sim"})
    said = gluon("demo", code=3)
    assert not said.stdout and said.stderr.splitlines() == [
        "no plugin is installed: nothing can be simulated or compiled",
        "install what is missing: pip install ./backends/sim",
    ]
    assert json.loads(gluon("demo", "--json", code=3).stdout) == []


def test_with_a_gpu(monkeypatch):
    monkeypatch.setattr(demo, "device_target", lambda: registry().target("sm_90"))
    monkeypatch.setattr(Example, "check", lambda self, target: Check(0.1))
    monkeypatch.setattr(Example, "rate", lambda self, target: (4.25, "TB/s"))
    call = ("demo", "--only", "memcpy 1-D", "-t", "gfx942", "-j", 1)
    rows = json.loads(gluon(*call, "--json").stdout)
    (run,) = (row for row in rows if row["kind"] == "run")
    assert run["rate"] == 4.25 and run["registers"] > 0 and run["target"] == "nvidia:sm_90"
    out = gluon(*call).stdout
    assert "4.25 TB/s" in out and "no GPU" not in out
    assert "right" in out and "compiled" in out and "none wrong" in out


def test_usage():
    assert "There are" in gluon("demo", "--only", "nothing like it", code=2).stderr
    assert "Did you mean" in gluon("demo", "-t", "sm_91", code=2).stderr
