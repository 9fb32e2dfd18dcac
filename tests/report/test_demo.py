"""The command `gluon demo`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from gluon_core.registry.load import Registry, registry
from gluon_report import demo
from gluon_report.example import Check, Example
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
    by_target = {(row["example"], row["target"]): row for row in rows}
    assert len(rows) == len(by_target) == 6
    assert by_target["scalar copy", "sim:sm_90"]["result"] == "passed"
    assert by_target["scalar copy", "nvidia:sm_90"]["registers"] > 0
    assert by_target["scalar copy", "amd:gfx942"]["instruction_mix"]
    skipped = by_target["add, double-buffered", "amd:gfx942"]
    assert skipped["result"] == "skipped" and "no nvidia.cp_async" in skipped["reason"]


def in_this_process(results=lambda row: row):
    """Return an `_in_processes` that runs nothing: every job passes, and `results` changes its row."""

    def run(work, processes, done):
        examples, _ = demo.load_examples()
        for job in work:
            row = demo.Row(examples[job[1]].name, job[2], job[0], "passed", registers=7)
            done(job, results(row))

    return run


def test_a_wrong_result_fails(monkeypatch):
    def wrong(row):
        failed = row.example == "matmul" and row.kind == "simulate"
        return replace(row, result="failed", reason="1 is wrong") if failed else row

    monkeypatch.setattr(demo, "_in_processes", in_this_process(wrong))
    out = gluon("demo", code=1).stdout
    assert "1 failed" in out and re.search(r"^matmul  .*FAILED  +7 ", out, re.MULTILINE)
    assert "FAILED on sim:sm_90: 1 is wrong" in out


def test_zero_evidence_is_unavailable(monkeypatch):
    def skips(row):
        return replace(row, result="skipped", reason="sm_80 has no unit")

    monkeypatch.setattr(demo, "_in_processes", in_this_process(skips))
    monkeypatch.setattr(demo, "device_target", lambda: None)
    out = gluon("demo", code=3).stdout
    assert "0 passed, 0 failed, 66 skipped" in out


def test_few_by_default_and_all_on_request(monkeypatch):
    monkeypatch.setattr(demo, "_in_processes", in_this_process())
    examples, _ = demo.load_examples()
    few = gluon("demo").stdout
    assert len(few.splitlines()) <= 60 and max(map(len, few.splitlines())) <= 100
    assert f"`gluon demo --all` takes all {len(examples)} examples." in few
    rows = json.loads(gluon("demo", "--all", "--json").stdout)
    assert {row["example"] for row in rows} == {example.name for example in examples.values()}
    shown = {row["example"] for row in json.loads(gluon("demo", "--json").stdout)}
    assert 8 <= len(shown) <= 12 and "attention" in shown


def test_a_line_is_printed_when_its_example_is_done(monkeypatch, capsys):
    def run(work, processes, done):
        printed = []
        for number, job in enumerate(work):
            in_this_process()([job], processes, done)
            printed.append(capsys.readouterr().out.count("memcpy 1-D"))
        assert printed == [0] * 5 + [1] + [0] * (len(work) - 6), printed

    monkeypatch.setattr(demo, "_in_processes", run)
    assert demo.show(None, None, False, None, False) == 0


def test_each_is_simulated_where_it_can_run(monkeypatch):
    jobs = []
    monkeypatch.setattr(demo, "_in_processes", lambda work, *_: jobs.extend(work))
    gluon("demo", "--all", code=130)  # none of them was reached
    examples, broken = demo.load_examples()
    chosen = {key: spec for kind, key, spec in jobs if kind == "simulate"}
    assert not broken and set(chosen) == set(examples)
    for key, spec in chosen.items():
        assert not examples[key].lacks(demo.registry().target(spec)), (key, spec)
    assert chosen["memcpy_1d", 0] == "sim:sm_90" and "gfx" in chosen["attention_cdna", 0]


def test_without_plugins_it_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(demo, "registry", Registry)
    monkeypatch.setattr(demo, "absent", lambda: {"gluon-sim": "./backends/sim"})
    said = gluon("demo", code=3)
    assert not said.stdout and said.stderr.splitlines() == [
        "no plugin is installed: nothing can be simulated or compiled",
        "install the missing packages: pip install ./backends/sim",
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
    assert "4.25 TB/s" in out and "no GPU" not in out and "on sm_90" in out
    assert "1 run on the GPU" in out and "0 failed" in out


def test_usage():
    assert "There are" in gluon("demo", "--only", "nothing like it", code=2).stderr
    assert "Did you mean" in gluon("demo", "-t", "sm_91", code=2).stderr
