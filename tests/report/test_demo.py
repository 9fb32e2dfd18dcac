"""The command `gluon demo`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from gluon_core.registry.load import Registry, registry
from gluon_report import demo
from tests.cli.test_cli import gluon

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


def test_a_part_of_it():
    call = (
        "demo",
        "--only",
        "vector",
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
    assert by_target["basics/vector_add", "sim:sm_90"]["result"] == "passed"
    assert by_target["basics/vector_add", "nvidia:sm_90"]["registers"] > 0
    assert by_target["basics/vector_add", "amd:gfx942"]["instruction_mix"]
    skipped = by_target["patterns/double_buffer", "amd:gfx942"]
    assert skipped["result"] == "skipped" and "no nvidia.cp_async" in skipped["reason"]


def in_this_process(results=lambda row: row):
    """Return an `_in_processes` that runs nothing: every job passes, and `results` changes its row."""

    def run(work, processes, done):
        for job in work:
            row = demo.Row(job[1], job[2] or "sim:sm_90", job[0], "passed", registers=7)
            done(job, results(row))

    return run


def test_a_wrong_result_fails(monkeypatch):
    def wrong(row):
        failed = row.example == "gemm/portable" and row.kind == "simulate"
        return replace(row, result="failed", reason="1 is wrong") if failed else row

    monkeypatch.setattr(demo, "_in_processes", in_this_process(wrong))
    out = gluon("demo", code=1).stdout
    assert "1 failed" in out and re.search(r"^gemm/portable  .*FAILED  +7 ", out, re.MULTILINE)
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
    package = demo.examples_package()
    names = {*package.SHOWN, *package.MORE}
    few = gluon("demo").stdout
    assert len(few.splitlines()) <= 60 and max(map(len, few.splitlines())) <= 100
    assert f"`gluon demo --all` takes all {len(names)} examples." in few
    rows = json.loads(gluon("demo", "--all", "--json").stdout)
    assert {row["example"] for row in rows} == names
    shown = {row["example"] for row in json.loads(gluon("demo", "--json").stdout)}
    assert 8 <= len(shown) <= 12 and "attention/forward" in shown


def test_a_line_is_printed_when_its_example_is_done(monkeypatch, capsys):
    def run(work, processes, done):
        printed = []
        for number, job in enumerate(work):
            in_this_process()([job], processes, done)
            printed.append(capsys.readouterr().out.count("basics/vector_add"))
        assert printed == [0] * 5 + [1] + [0] * (len(work) - 6), printed

    monkeypatch.setattr(demo, "_in_processes", run)
    assert demo.show(None, None, False, None, False) == 0


def test_instructions_are_counted_for_json_alone(monkeypatch):
    def run(work, processes, done):
        counted.update(job[3] for job in work)

    monkeypatch.setattr(demo, "_in_processes", run)
    for json_wanted in (False, True):
        counted = set()
        demo.show(None, ["vector"], False, None, json_wanted)
        assert counted == {json_wanted}


def test_registers_are_known_without_counting():
    row = demo.run_one("compile", "basics/vector_add", "nvidia:sm_90", counted=False)
    full = demo.run_one("compile", "basics/vector_add", "nvidia:sm_90")
    assert (row.registers, row.spills, row.instruction_count) == (full.registers, 0, None)
    assert full.registers > 0 and full.instruction_count > 10


@pytest.mark.parametrize(
    "name, target", [("basics/vector_add", "sim:sm_90"), ("amd/buffer_copy", "sim:gfx908")]
)
def test_each_is_simulated_where_it_can_run(name, target):
    row = demo.run_one("simulate", name, "")
    assert (row.result, row.target) == ("passed", target), row


def test_an_example_that_fails_has_a_reason(tmp_path, monkeypatch):
    (tmp_path / "off.py").write_text("assert 1 == 2, 'one of 7 elements is wrong'")
    monkeypatch.setattr(demo, "file_of", lambda name: tmp_path / "off.py")
    row = demo.run_one("simulate", "off", "")
    assert row.result == "failed" and row.reason == "AssertionError: one of 7 elements is wrong"


def test_without_plugins_it_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(demo, "registry", Registry)
    monkeypatch.setattr(demo, "absent", lambda: {"gluon-sim": "./backends/sim"})
    result = gluon("demo", code=3)
    assert not result.stdout and result.stderr.splitlines() == [
        "no plugin is installed: nothing can be simulated or compiled",
        "install the missing packages: pip install ./backends/sim",
    ]
    assert json.loads(gluon("demo", "--json", code=3).stdout) == []


def test_with_a_gpu(monkeypatch):
    monkeypatch.setattr(demo, "device_target", lambda: registry().target("sm_90"))
    monkeypatch.setattr(demo, "_run_file", lambda name, target: None)
    call = ("demo", "--only", "vector_add", "-t", "gfx942", "-j", 1)
    rows = json.loads(gluon(*call, "--json").stdout)
    (run,) = (row for row in rows if row["kind"] == "run")
    assert run["result"] == "passed" and run["target"] == "nvidia:sm_90"
    out = gluon(*call).stdout
    assert "no GPU" not in out and "on sm_90" in out
    assert "1 run on the GPU" in out and "0 failed" in out


def test_usage():
    assert "There are" in gluon("demo", "--only", "nothing like it", code=2).stderr
    assert "Did you mean" in gluon("demo", "-t", "sm_91", code=2).stderr
