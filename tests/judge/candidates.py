"""The corpus: candidates that are honest, and candidates that cheat or are wrong, each with its label.

The first word of a file's docstring is its label: `honest`, or the codes of findings one of which must reject it.
A second line `claim: SECONDS` is the time that its author claims.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import gluon_kernels

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Candidate:
    path: Path
    label: str
    claim: float | None

    @property
    def name(self):
        return self.path.relative_to(CORPUS).with_suffix("").as_posix()

    @property
    def kind(self):
        return "honest" if self.label == "honest" else "cheat"

    @property
    def codes(self):
        return set(self.label.split())

    def judged(self, judge, **options):
        folder = self.path.parent
        return judge.judge(
            self.path,
            folder / "reference.py",
            folder / "problem.toml",
            **{"claim": self.claim, "patience": 8.0, "seed": 0, **options},
        )


def candidates():
    """Return all candidates, problem by problem."""
    chosen = []
    for path in sorted(CORPUS.glob("*/*.py")):
        if path.stem == "reference":
            continue
        text = ast.get_docstring(ast.parse(path.read_text()))
        claim = re.search(r"^claim: (\S+)$", text, re.M)
        chosen.append(Candidate(path, text.partition(":")[0], float(claim[1]) if claim else None))
    return chosen


def operators():
    """Return the public operators of gluon_kernels."""
    public = {name: getattr(gluon_kernels, name) for name in gluon_kernels.__all__}
    return {name for name, value in public.items() if inspect.isfunction(value)}


def called(path):
    """Return the operators of gluon_kernels that a candidate's file calls."""
    names, calls = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "gluon_kernels":
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.add(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "gluon_kernels":
                calls.add(node.func.attr)
                names.add(node.func.attr)
    return names & calls


def caught(candidate, report):
    """Return True if the verdict on a candidate is the one of its label, for its reason.

    A doubt, such as a name in the source that reaches behind the call, withholds acceptance.
    """
    if candidate.kind == "honest":
        return report.verdict != "rejected"
    if candidate.codes & {one.code for one in report.findings} == {"sync.tolerated"}:
        return True  # the installed compiler adds the fence
    return report.verdict != "accepted" and bool(candidate.codes & set(report.codes))
