"""Litmus tests of PTX's memory model: the verdicts, and what malformed tests are answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_emu.litmus.form import LitmusError
from gluon_emu.litmus.parse import parse
from gluon_emu.litmus.search import Limits, decide

pytestmark = pytest.mark.once

TESTS = sorted((Path(__file__).parent / "litmus").glob("*.litmus"))
MP = """PTX MP
{ x = 0; y = 0; }
 P0@cta 0,gpu 0        | P1@cta 1,gpu 0 ;
 st.weak [x], 1        | ld.acquire.gpu r1, [y] ;
 st.release.gpu [y], 1 | ld.weak r2, [x] ;
~exists (P1:r1 = 1 /\\ P1:r2 = 0)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_chapter_decides(path: Path) -> None:
    outcome = decide(parse(str(path), path.read_text()))
    assert outcome.holds is True
    assert outcome.executions > 0 and not outcome.undecided
    assert "PTX ISA" in path.read_text()


def test_there_are_both_kinds_of_tests() -> None:
    texts = [path.read_text() for path in TESTS]
    allowed = sum("\nexists" in text for text in texts)
    assert allowed >= 60 and len(texts) - allowed >= 60


def _holds(text: str, **limits: int) -> object:
    return decide(parse("t.litmus", text), Limits(**limits)).holds


def test_each_quantifier_fails_where_it_should() -> None:
    assert _holds(MP.replace("release.gpu", "relaxed.gpu")) is False
    assert _holds(MP.replace("~exists", "exists")) is False
    assert _holds(MP.replace("~exists", "forall")) is False
    assert _holds(MP.replace("~exists (P1:r1 = 1 /\\", "exists (P1:r1 = 0 /\\")) is True


def test_registers_of_the_scope_tree_and_of_the_header_agree() -> None:
    tree = (
        MP.replace("@cta 0,gpu 0", "")
        .replace("@cta 1,gpu 0", "")
        .replace("gpu [", "cta [")
        .replace("gpu r1", "cta r1")
    )
    apart = "ScopeTree (gpu (cta P0) (cta P1))\n~exists"
    together = "ScopeTree (gpu (cta P0 P1))\n~exists"
    assert _holds(tree.replace("~exists", apart)) is False
    assert _holds(tree.replace("~exists", together)) is True


def test_a_search_that_ends_early_says_nothing() -> None:
    outcome = decide(parse("t.litmus", MP), Limits(most=2))
    assert outcome.holds is None and "2 candidates" in str(outcome.undecided)


def test_a_test_in_which_nothing_ends_says_nothing() -> None:
    waits = "PTX W\n{ x = 0; }\n P0 ;\n L: ld.relaxed.gpu r1, [x] ;\n setp.eq.s32 p, r1, 0 ;\n @p bra L ;\n~exists (P0:r1 = 1)\n"
    outcome = decide(parse("t.litmus", waits))
    assert outcome.holds is None and "bound on loops" in str(outcome.undecided)
    alone = "PTX B\n{ x = 0; }\n P0 ;\n bar.sync 1, 64 ;\n ld.weak r1, [x] ;\n~exists (P0:r1 = 1)\n"
    outcome = decide(parse("t.litmus", alone))
    assert outcome.holds is None and "barrier waits for good" in str(outcome.undecided)


def test_a_race_is_reported_where_accesses_are_not_ordered() -> None:
    racing = decide(parse("t.litmus", MP.replace("ld.acquire.gpu", "ld.weak")))
    assert racing.race is not None
    ordered = "PTX B\n{ x = 0; }\n P0@cta 0 | P1@cta 0 ;\n st.weak [x], 1 | bar.sync 0 ;\n bar.sync 0 | ld.weak r1, [x] ;\nforall (P1:r1 = 1)\n"
    assert decide(parse("t.litmus", ordered)).race is None


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "words"),
    [
        ("PTX MP", "X86 MP", 1, 0, "no litmus test of PTX"),
        ("PTX MP", "PTX", 1, 3, "no name"),
        ("st.weak [x], 1 ", "st.wek [x], 1  ", 4, 3, "no such modifier"),
        ("st.weak [x], 1 ", "sta.weak [x], 1", 4, 1, "no such instruction"),
        ("st.weak [x], 1 ", "st.weak [x]    ", 4, 1, "takes 2 operands"),
        ("st.weak [x], 1 ", "st.weak [x, 1  ", 4, 1, "takes 2 operands"),
        ("st.weak [x], 1 ", "st.relaxed [x], 1", 4, 3, "needs a scope"),
        ("st.weak [x], 1 ", "st.weak.gpu [x], 1", 4, 8, "has no scope"),
        ("st.weak [x], 1 ", "st.acquire.gpu [x], 1", 4, 3, "cannot be .acquire"),
        ("P1@cta 1", "P0@cta 1", 3, 25, "second thread P0"),
        ("P1@cta 1", "P1@ctb 1", 3, 28, "no scope"),
        ("x = 0;", "x = zero;", 2, 6, "no initial value"),
        ("P1:r1 = 1", "P1:r9 = 1", 6, 9, "never writes the register r9"),
        ("P1:r1 = 1", "P7:r1 = 1", 6, 9, "no thread P7"),
        ("P1:r1 = 1", "z = 1", 6, 9, "no such location"),
        ("P1:r1 = 1", "P1:r1 1", 6, 9, "no value of the final state"),
        ("= 0)", "= 0", 6, 31, "unexpected end"),
        ("~exists", "exist", 6, 0, "no such instruction"),
        ("st.weak [x], 1 ", "@p bra NOWHERE ", 4, 1, "has no label"),
        ("st.weak [x], 1 ", "fence.acq_rel  ", 4, 1, "needs a scope"),
        ("x = 0;", "x = 0; (* x", 2, 9, "the comment has no end"),
    ],
)  # fmt: skip
def test_a_malformed_test_is_an_error_at_its_place(
    old: str, new: str, line: int, column: int, words: str
) -> None:
    assert old in MP
    with pytest.raises(LitmusError) as raised:
        parse("t.litmus", MP.replace(old, new))
    span = raised.value.span
    assert words in str(raised.value)
    assert span is not None and span.line == line
    assert span.column == column, span


def test_the_command_prints_verdicts(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.litmus", tmp_path / "wrong.litmus"
    right.write_text(MP)
    wrong.write_text(MP.replace("release.gpu", "release.cta"))

    def run(*words: object, code: int) -> str:
        done = CliRunner().invoke(app, ["litmus", *map(str, words)])
        assert done.exit_code == code, done.output
        return done.output

    assert "holds (0 of 3 executions, 4 candidates)" in run(right, code=0)
    text = run(tmp_path, code=1)
    assert "P1: ld.weak r2, [x]  reads 0 of the initial value of x" in text
    assert "2 tests: 1 hold, 1 do not, 0 undecided" in text
    assert json.loads(run(right, "--most", "1", "--json", code=3))[0]["holds"] is None
    assert "right.litmus" in run(tmp_path / "rigt.litmus", code=2)
    wrong.write_text(MP.replace("st.weak", "st.wek"))
    text = run(tmp_path, code=2)  # the other test is decided all the same
    assert "wrong.litmus:4:4" in text and "holds (0 of 3 executions" in text


def test_conditions_and_threads_of_great_size() -> None:
    deep = "exists " + "(" * 5000 + "x = 1" + ")" * 5000
    with pytest.raises(LitmusError, match="nested too deeply"):
        parse("t.litmus", MP[: MP.index("~exists")] + deep)
    many = "PTX M\n{ x = 0; }\n P0 ;\n" + " st.weak [x], 1 ;\n" * 500 + "exists (x = 1)\n"
    outcome = decide(parse("t.litmus", many), Limits())
    assert outcome.holds is None and "400 instructions of a thread" in outcome.undecided
