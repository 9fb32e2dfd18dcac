"""Whole kernels at random: their meaning in NumPy, on the simulator, and that they compile."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_sim.executor import ops
from tests.fuzz import runs, workers
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import answers
from tests.fuzz.program import Program, Statement, generate
from tests.fuzz.statements import BLOCKS, KINDS
from tests.fuzz.workers import program_for

SIMULATED = runs.Ways(compiles=False)
pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


def test_some_kernels_mean_the_same_everywhere(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    assert (
        main(["--count", "2", "--seed", "1000", "--targets", "sm_90,gfx942", "--log", str(log)])
        == 0
    )
    assert capsys.readouterr().out.split() == "2 same 2 of 2 kernels".split()
    assert len(log.read_text().split()) >= 2


@pytest.mark.campaign
def test_many_kernels_mean_the_same_everywhere(tmp_path):
    log = tmp_path / "log.jsonl"
    assert (
        main(["--count", "300", "--targets", "sm_80,sm_90,gfx942,gfx1250", "--log", str(log)]) == 0
    )


def test_kernels_hold_every_kind_of_statement():
    programs = [generate(seed, tma=True) for seed in range(120)]
    kinds = {s.kind for program in programs for s in program.all}
    assert kinds == {*KINDS, *BLOCKS}
    assert any(s.body and inner.body for p in programs for s in p.all for inner in s.body)
    assert len({program.atomic for program in programs}) == 6
    assert generate(3) == generate(3) and generate(3) != generate(4)


def test_missing_features_of_targets_are_left_out():
    for target in ("sm_80", "sm_90", "gfx942", "gfx1250"):
        held = registry().target(target)
        needs = set().union(*(program_for(seed, [held]).needs() for seed in range(40)))
        assert ("tma" in needs) == (target == "sm_90")
        assert ("partitions" in needs) == bool(held.limits.partitions)


def test_every_kind_alone_has_its_meaning():
    held = registry().target("sm_90")
    for name, kind in KINDS.items():
        choice = kind.chooses(random.Random(1), 256)
        program = Program(7, 256, "xor", (Statement(name, 1, 0, 0, choice),))
        assert runs.outcome(program, [held], SIMULATED) == "same", name
    for name in BLOCKS:
        inner = (Statement("binary", 2, 1, 0, "^"), Statement("scan", 3, 2, 0))
        program = Program(7, 256, "add", (Statement(name, 1, 0, 0, "1", inner),))
        assert runs.outcome(program, [held], SIMULATED) == "same", name


def test_kernels_in_processes(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    options = ["--count", "4", "--targets", "sm_90", "--simulate-only", "--log", str(log)]
    assert main([*options, "--jobs", "2", "--seconds", "60"]) == 0
    assert capsys.readouterr().out.split() == "4 same 4 of 4 kernels".split()


@pytest.mark.parametrize(
    "function, argument, outcome",
    [
        pytest.param("os:_exit", 3, workers.LOST, id="takes its process down"),
        pytest.param("time:sleep", 60, workers.HUNG, id="hangs", marks=pytest.mark.campaign),
    ],
)
def test_a_kernel_that_ends_badly_costs_itself_alone(monkeypatch, function, argument, outcome):
    ends = answers(function, [(argument,)], jobs=2, limit=5.0)
    monkeypatch.setattr(workers, "answers", lambda *_: ends)
    assert list(workers.outcomes([argument], [], SIMULATED, 2, None)) == [(argument, outcome)]


def test_the_rest_is_counted_and_earlier_failures_are_reduced(tmp_path, capsys):
    """A run that was stopped before it reduced anything."""
    log = tmp_path / "log.jsonl"
    entry = {"seed": 3, "targets": "sm_90", "outcome": "sim:sm_90: out differs"}
    lost = {"seed": 4, "targets": "sm_90", "outcome": workers.LOST}
    log.write_text(f"{json.dumps(entry)}\n{json.dumps(lost)}\n")
    arguments = ["--count", "9", "--targets", "sm_90", "--simulate-only", "--log", str(log)]
    assert main([*arguments, "--seconds", "0"]) == 1
    output = capsys.readouterr().out
    assert "1  sim:sm_90: out differs  (seeds 3)" in output
    assert "2  of 9 kernels, 7 are left: the same command goes on" in output
    assert (tmp_path / "log-3.py").exists() and not (tmp_path / "log-4.py").exists()


def test_a_run_goes_on_where_it_was_and_a_failure_is_made_small(tmp_path, monkeypatch, capsys):
    """With a simulator that adds wrongly in scans, which a few kernels have."""
    log = tmp_path / "log.jsonl"
    arguments = ["--count", "8", "--targets", "sm_90", "--simulate-only", "--log", str(log)]
    assert main(arguments) == 0
    monkeypatch.setattr(workers, "outcome", lambda *_: pytest.fail("done before"))
    assert main(arguments) == 0
    monkeypatch.undo()
    log.write_text(log.read_text() + '{"seed": 8, "tar')  # stopped in the middle of a line
    assert main(arguments) == 0

    held = [registry().target("sm_90")]
    program = ((s, program_for(s, held)) for s in range(8, 400))
    wrong = next(s for s, p in program if any(x.kind == "gather" for x in p.statements))
    monkeypatch.setitem(ops.OPS, "gather", lambda task, source, index, axis: source)
    capsys.readouterr()
    arguments[arguments.index("--count") + 1] = "1"
    assert main([*arguments, "--seed", str(wrong)]) == 1
    output = capsys.readouterr().out
    assert f"{wrong}: sim:sm_90: out differs; in 1 statements" in output
    source = (tmp_path / f"log-{wrong}.py").read_text()
    assert source.count("gl.gather") == 1 and source.count("gl.sum") == 0
    assert json.loads(log.read_text().splitlines()[-1])["outcome"] == "sim:sm_90: out differs"
    shutil.rmtree(tmp_path)


def test_a_statement_that_lost_its_operand_takes_the_first_tile():
    program = generate(5)
    last = program.all.index(program.statements[-1])
    alone = program.without(range(last))
    (left,) = alone.statements
    assert left == program.statements[-1]
    assert runs.outcome(alone, [registry().target("sm_90")], SIMULATED) == "same"
    assert isinstance(alone.meaning()["out"], np.ndarray)
