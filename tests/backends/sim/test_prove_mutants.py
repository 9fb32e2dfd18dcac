"""Mutants of kernels in use: what the simulator reports is never proved."""

import pytest

from gluon_sim.errors import SimulatorError
from gluon_sim.settings import using
from tests.backends.sim.test_mutations import CASES, mutants

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")

REPORTS = ("race.shared", "race.registers", "deadlock", "barrier.")
KINDS = [
    "add, TMA",
    "add, TMA, in roles",
    "three partitions",
    "copies tied to barriers",
    "matmul, in roles",
    "add, sm_80",
    "matmul, gfx950",
    "matmul, wgmma",
]


@pytest.fixture
def judge(monkeypatch):
    """The verdict on a case, without looking for the mistake again."""
    said = []
    monkeypatch.setattr("gluon_sim.prove.verdict.again", lambda *args: (None, "not looked for"))
    monkeypatch.setattr(
        "gluon_sim.launcher.note", lambda *args, proved=None, **named: said.append(proved)
    )

    def of(made):
        said.clear()
        with using(prove="*", within=20):
            made.run()
        return next((one for one in said if one is not None), None)

    return of


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("no_implied_fences")
@pytest.mark.parametrize("case", KINDS)
def test_what_is_reported_is_not_proved(case, judge):
    made = CASES[case]()
    counts = dict.fromkeys(("proved", "found", "cannot say"), 0)
    for mutant in mutants(made.compiled.asm["program"].program):
        mutant.apply()
        try:
            end = made.run()
            verdict = judge(made)
        finally:
            mutant.undo()
        wrong = isinstance(end, SimulatorError) and (end.report or "").startswith(REPORTS)
        assert verdict is not None, mutant.name
        if wrong:
            where = f"{mutant.name}, line {mutant.op.loc.line}"
            assert verdict.verdict != "proved", (where, end)
            found = "not looked for" in " ".join(verdict.lines)
            counts["found" if found else "cannot say"] += 1
    print(f"\n{case}: {counts}, as it is: {judge(made).verdict}")
