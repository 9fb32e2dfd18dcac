"""Whole kernels at random: what they mean in NumPy, on the simulator, and that they compile."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from gluon_core.contract.registry import registry
from gluon_core.testing.fuzz import runs
from gluon_core.testing.fuzz.__main__ import main
from gluon_core.testing.fuzz.program import Statement, generate
from gluon_sim.run import ops

pytestmark = pytest.mark.once


def test_some_kernels_mean_the_same_everywhere(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    assert (
        main(["--count", "2", "--seed", "1000", "--targets", "sm_90,gfx942", "--log", str(log)])
        == 0
    )
    assert capsys.readouterr().out.split() == ["2", "same"]
    assert len(log.read_text().split()) >= 2


@pytest.mark.campaign
def test_many_kernels_mean_the_same_everywhere(tmp_path):
    log = tmp_path / "log.jsonl"
    assert (
        main(["--count", "300", "--targets", "sm_80,sm_90,gfx942,gfx1250", "--log", str(log)]) == 0
    )


def test_kernels_hold_every_kind_of_statement():
    kinds = {s.kind for seed in range(60) for s in generate(seed).statements}
    assert {
        "shared",
        "copy",
        "reduce",
        "atomic",
        "mma",
        "roles",
        "loop",
        "branch",
        "while",
    } <= kinds
    assert generate(3) == generate(3) and generate(3) != generate(4)


def test_a_run_goes_on_where_it_was_and_a_failure_is_made_small(tmp_path, monkeypatch, capsys):
    """With a simulator that adds wrongly in scans, which a few kernels have."""
    log = tmp_path / "log.jsonl"
    given = ["--count", "8", "--targets", "sm_90", "--simulate-only", "--log", str(log)]
    assert main(given) == 0
    monkeypatch.setattr(runs, "outcome", lambda *_: pytest.fail("done before"))
    assert main(given) == 0
    monkeypatch.undo()
    log.write_text(log.read_text() + '{"seed": 8, "tar')  # stopped in the middle of a line
    assert main(given) == 0

    wrong = next(s for s in range(8, 60) if any(x.kind == "gather" for x in generate(s).statements))
    monkeypatch.setitem(ops.OPS, "gather", lambda task, source, index, axis: source)
    capsys.readouterr()
    given[given.index("--count") + 1] = "1"
    assert main([*given, "--seed", str(wrong)]) == 1
    said = capsys.readouterr().out
    assert f"{wrong}: sim:sm_90: out differs; in 1 statements" in said
    source = (tmp_path / f"log-{wrong}.py").read_text()
    assert source.count("gl.gather") == 1 and source.count("gl.sum") == 0
    assert json.loads(log.read_text().splitlines()[-1])["outcome"] == "sim:sm_90: out differs"
    shutil.rmtree(tmp_path)


def test_a_statement_that_lost_its_operand_takes_the_first_tile():
    program = generate(5)
    alone = program.without(range(len(program.statements) - 1))
    (last,) = alone.statements
    assert isinstance(last, Statement)
    assert runs.outcome(alone, [registry().target("sm_90")], False) == "same"
    assert isinstance(alone.meaning()["out"], np.ndarray)
