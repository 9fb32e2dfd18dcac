"""The verdict, its evidence, the isolation of candidates, and the doors: Python, the command, the fixture."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_core.errors import GluonError
from gluon_judge.codes import CODES, Severity
from gluon_judge.page import page
from gluon_judge.problem import evaluate, read
from gluon_judge.report import Evidence, Finding, Report, weighed
from tests.judge.candidates import CORPUS, called, candidates, operators

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

REFERENCE = "def run(x):\n    return x * 2.0 + 1.0\n"
PROBLEM = """
[inputs.x]
shape = ["N"]

[[shapes]]
N = 300
"""
TORCH = "import torch\n\n\ndef run(x):\n    return torch.add(x + x, 1.0)\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "problem.toml").write_text(PROBLEM)
    return tmp_path


@pytest.fixture
def judged(files, gluon_judge):
    def judged(text, name="candidate.py", **options):
        (files / name).write_text(text)
        options = {"target": "hopper", "patience": 8.0, **options}
        return gluon_judge(files / name, files / "reference.py", files / "problem.toml", **options)

    return judged


# -- verdicts ------------------------------------------------------------------------------------------


def _report(*findings, evidence=("passed",)):
    report = Report("candidate.py", "reference.py", "sim:sm_90")
    report.findings += [Finding("result.wrong", "x", severity=severity) for severity in findings]
    report.evidence += [Evidence("results", status, "x") for status in evidence]
    return weighed(report)


def test_findings_and_evidence_decide():
    assert _report().verdict == "accepted"
    assert _report("note", "warning").verdict == "accepted"
    assert _report("warning", "error", "doubt").verdict == "rejected"
    assert [one.severity for one in _report("note", "error").findings] == ["error", "note"]
    assert _report("doubt").verdict == "not enough evidence"
    assert _report(evidence=()).verdict == "not enough evidence"
    assert _report(evidence=("passed", "skipped")).verdict == "not enough evidence"
    assert [_report(*one).exit_code for one in ((), ("error",), ("doubt",))] == [0, 1, 3]


def test_time_that_is_over_is_no_evidence(judged):
    report = judged(TORCH, within=0.001)
    assert report.verdict == "not enough evidence"
    skipped = [one.name for one in report.evidence if one.status == "skipped" and one.needed]
    assert {"schedules", "memory", "repeats", "special", "fresh"} <= set(skipped)


def test_every_code_is_used_or_documented():
    assert all(code.severity in Severity for code in CODES.values())
    assert all(all((c.meaning, c.detection, c.example, c.remedy)) for c in CODES.values())
    labels = {code for one in candidates() for code in one.codes} - {"honest"}
    assert labels <= set(CODES)


def test_the_corpus_covers_every_class():
    kinds = [one.kind for one in candidates()]
    assert kinds.count("honest") >= 60 and kinds.count("cheat") >= 60
    families = {CODES[code].family for one in candidates() for code in one.codes - {"honest"}}
    assert families == {code.family for code in CODES.values()}


def test_every_operator_of_gluon_kernels_has_an_honest_candidate():
    honest = [one.path for one in candidates() if one.kind == "honest"]
    assert operators() - set().union(*map(called, honest)) == set()


# -- the confined process --------------------------------------------------------------------------------


ESCAPES = """
import os, socket, torch

SEEN = []


def tries(action):
    try:
        SEEN.append(action())
    except OSError:
        pass


def run(x):
    tries(lambda: open({reference!r}).read())
    tries(lambda: open({outside!r}, "w").write("x"))
    tries(lambda: socket.create_connection(("127.0.0.1", {port}), 0.5))
    tries(lambda: os.kill(os.getppid(), 0))
    assert not SEEN, SEEN
    open("own.txt", "w").write("x")
    return torch.add(x + x, 1.0)
"""


def test_a_candidate_reaches_nothing_but_its_folder(judged, files):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        text = ESCAPES.format(
            reference=str(files / "reference.py"),
            outside=str(files / "outside.txt"),
            port=server.getsockname()[1],
        )
        report = judged(text)
    assert "call.failed" not in report.codes, report
    assert {"reads.reference", "network.used"} <= set(report.codes)
    assert not (files / "outside.txt").exists()
    isolation = next(one for one in report.evidence if one.name == "isolation")
    assert isolation.status == "passed" and "files" in isolation.text
    assert any(line.startswith("not guaranteed") for line in report.isolation)


def test_a_candidate_comes_with_the_files_that_it_imports(judged, files):
    (files / "helper.py").write_text("def twice(x):\n    return x + x\n")
    report = judged("from helper import twice\n\n\ndef run(x):\n    return twice(x) + 1.0\n")
    assert report.verdict == "accepted", report


def test_the_next_candidate_finds_nothing_of_the_one_before(judged):
    assert "patched.module" in judged("import torch\ntorch.add = torch.sub\n" + TORCH).codes
    assert judged(TORCH).verdict == "accepted"


def test_memory_that_a_candidate_asks_for_is_limited(judged):
    report = judged(
        "def run(x):\n    kept = bytearray(1 << 35)\n    return x * 2.0 + len(kept[:1])\n"
    )
    assert report.codes == ["call.failed"], report


def test_an_error_names_the_line(judged):
    report = judged("def run(x):\n    y = x + x\n    return y.no_such_method()\n")
    assert [(one.code, one.line) for one in report.findings if one.severity == "error"] == [
        ("call.failed", 3)
    ]


# -- problems --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1", "is not a field"),
        ("[inputs]", "needs inputs"),
        ('[inputs.x]\nshape = ["N"]\nvalues = "odd"', "no such distribution"),
        ('[inputs.x]\nshape = ["N"]\nsize = 3', "is not a field"),
        ("[inputs.x]", "needs a shape"),
        ('special = "odd"\n[inputs.x]\nshape = [3]', "unknown rule"),
        ('mutates = ["y"]\n[inputs.x]\nshape = [3]', "is not an input"),
        ("[inputs.x", "not valid TOML"),
    ],
)
def test_a_problem_that_means_nothing_is_refused(tmp_path, text, message):
    (tmp_path / "problem.toml").write_text(text)
    with pytest.raises(GluonError, match=message):
        read(tmp_path / "problem.toml")


def test_expressions_are_arithmetic_and_nothing_else():
    assert evaluate("2*M*N + max(M, 7) // 2", {"M": 3, "N": 5}) == 33
    for text in ("__import__('os')", "M.real", "K", "1 +"):
        with pytest.raises(GluonError):
            evaluate(text, {"M": 3})


# -- doors -----------------------------------------------------------------------------------------------


def test_the_command_prints_the_report_and_returns_its_code(files):
    (files / "candidate.py").write_text("def run(x):\n    return x * 2.0\n")
    arguments = ["judge", str(files / "candidate.py"), "--reference", str(files / "reference.py")]
    arguments += ["--problem", str(files / "problem.toml"), "--html", str(files / "report.html")]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == report["exit"] == 1
    assert report["findings"][0]["code"] == "result.wrong"
    assert report["findings"][0]["class"] == "wrong results"
    text = (files / "report.html").read_text()
    assert "rejected" in text and CODES["result.wrong"].remedy in text


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ([], 2, "CANDIDATE"),
        (["{candidate}"], 2, "--reference"),
        (["{candidate}", "--reference", "no.py"], 2, "no such file"),
        (["{candidate}", "--reference", "{reference}", "--within", "0"], 2, "is not a time"),
    ],
)
def test_the_command_refuses_files_that_it_cannot_judge(files, arguments, code, words):
    (files / "candidate.py").write_text(TORCH)
    names = {one.stem: str(one) for one in files.iterdir()}
    result = CliRunner().invoke(app, ["judge", *(word.format(**names) for word in arguments)])
    assert result.exit_code == code
    assert words in result.output


@pytest.mark.parametrize(
    "reference, problem, message",
    [
        ("def run(x):\n    return x.no_such_method()\n", "problem.toml", "the reference fails"),
        ("def run(x):\n    return 1\n", "problem.toml", "returns no tensor"),
        ("x = ", "problem.toml", "cannot be loaded"),
        (REFERENCE, None, "inputs of the reference"),
    ],
)
def test_a_reference_that_says_nothing_is_refused(files, gluon_judge, reference, problem, message):
    (files / "candidate.py").write_text(TORCH)
    (files / "other.py").write_text(reference)
    with pytest.raises(GluonError, match=message):
        gluon_judge(
            files / "candidate.py", files / "other.py", problem and files / problem, target="hopper"
        )


def test_the_schema_lists_all_codes():
    result = CliRunner().invoke(app, ["judge", "--schema"])
    schema = json.loads(result.stdout)
    assert set(schema["properties"]["findings"]["items"]["properties"]["code"]["enum"]) == set(
        CODES
    )


def test_a_report_fails_a_test(judged):
    assert judged(TORCH).check().verdict == "accepted"
    with pytest.raises(AssertionError, match=r"result\.wrong"):
        judged("def run(x):\n    return x * 2.0\n").check()


def test_a_page_escapes_the_output_of_candidates():
    report = Report("a<b>.py", "reference.py", "sim:sm_90")
    report.findings.append(Finding("result.wrong", "<script>alert(1)</script>"))
    assert "<script>" not in page(weighed(report)) and "a&lt;b&gt;.py" in page(report)


def test_plain_files_of_the_corpus_are_labelled():
    for one in candidates():
        assert one.kind == one.path.stem.partition("_")[0], one.path
    assert (CORPUS / "softmax" / "problem.toml").exists()


def test_every_code_has_a_page():
    import sys
    from pathlib import Path

    root = Path(__file__).parents[2]
    sys.path.insert(0, str(root / "docs" / "_build"))
    import findings

    assert {path.name for path in findings.FOLDER.glob("*.md")} == {
        path.name for path in findings.pages()
    }
    for path, text in findings.pages().items():
        assert path.read_text() == text, "python docs/_build/findings.py --write"
