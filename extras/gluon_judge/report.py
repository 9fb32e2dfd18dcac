"""The report of a judgement: a verdict, findings, and the evidence for both."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping

from gluon_judge.codes import CODES, Severity

__all__ = ["ACCEPTED", "OPEN", "REJECTED", "Evidence", "Finding", "Report", "schema", "weighed"]

ACCEPTED, REJECTED, OPEN = "accepted", "rejected", "not enough evidence"
VERSION = 1


@dataclass(frozen=True)
class Finding:
    """Something about a candidate that a reviewer must know.

    Args:
        code: a name of `gluon_judge.codes.CODES`, which never changes its meaning.
        text: one sentence.
        evidence: numbers, a report of the simulator, or the call that was seen.
        file, line: where; line 0 for nowhere in particular.
        case: the inputs that show it; "" where it is no matter of inputs.
        severity: `error` rejects, `doubt` withholds acceptance, `warning` and `note` inform.
    """

    code: str
    text: str
    evidence: str = ""
    file: str = ""
    line: int = 0
    case: str = ""
    severity: str = ""

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", CODES[self.code].severity)

    @property
    def family(self) -> str:
        """Return the class of its code, such as "results kept between calls"."""
        return CODES[self.code].family


@dataclass(frozen=True)
class Evidence:
    """One thing that the judge looked at, or did not.

    Args:
        name: a word for scripts.
        status: "passed", "failed" or "skipped".
        text: what was looked at, with numbers; or why it was not.
        needed: whether no candidate is accepted without it.
    """

    name: str
    status: str
    text: str
    needed: bool = True


@dataclass
class Report:
    """The report on one candidate.

    Attributes:
        verdict: "accepted", "rejected" or "not enough evidence".
        candidate, reference: the files.
        target: where kernels ran.
        findings: the gravest first.
        evidence: everything that was looked at, and everything that was skipped.
        isolation: the layers that held, and statements of what is not guaranteed.
        measured: the rates of a GPU; empty without one.
        stages: seconds of each part of the work.
        seconds: that it took.
    """

    candidate: str
    reference: str
    target: str
    verdict: str = OPEN
    findings: list[Finding] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    isolation: list[str] = field(default_factory=list)
    measured: Mapping[str, Any] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 0 for accepted, 1 for rejected, 3 for not enough evidence."""
        return {ACCEPTED: 0, REJECTED: 1}.get(self.verdict, 3)

    @property
    def codes(self) -> list[str]:
        """Return the codes of errors and doubts, each once."""
        grave = (one.code for one in self.findings if one.severity in ("error", "doubt"))
        return list(dict.fromkeys(grave))

    def check(self) -> Report:
        """Return this report if it accepts the candidate.

        Raises:
            AssertionError: it does not; the message is the whole report.
        """
        if self.verdict != ACCEPTED:
            raise AssertionError(str(self))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data that follows `schema()`."""
        findings = [{**asdict(one), "class": one.family} for one in self.findings]
        return {
            "version": VERSION,
            "verdict": self.verdict,
            "exit": self.exit_code,
            "candidate": self.candidate,
            "reference": self.reference,
            "target": self.target,
            "findings": findings,
            "evidence": [asdict(one) for one in self.evidence],
            "isolation": list(self.isolation),
            "measured": dict(self.measured),
            "stages": dict(self.stages),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.candidate} against {self.reference} on {self.target}"]
        for one in self.findings:
            where = f" at {one.file}:{one.line}" if one.line else ""
            case = f" [{one.case}]" if one.case else ""
            lines.append(f"  {one.severity} {one.code}: {one.text}{where}{case}")
            lines += [f"    {line}" for line in one.evidence.splitlines()]
        lines.append("  evidence:")
        lines += [f"    {one.status}: {one.name}: {one.text}" for one in self.evidence]
        if self.measured:
            lines.append(f"  measured: {json.dumps(self.measured)}")
        lines.append("  isolation:")
        lines += [f"    {line}" for line in self.isolation]
        stages = ", ".join(f"{name} {spent:.1f}" for name, spent in self.stages.items())
        lines.append(f"  {self.seconds:.1f} s" + (f": {stages}" if stages else ""))
        return "\n".join(lines)


def weighed(report: Report) -> Report:
    """Set the verdict that findings and evidence admit, and order the findings.

    An error rejects. A doubt, or needed evidence that is not there, leaves the verdict open.
    """
    rank = {name: number for number, name in enumerate(Severity)}
    report.findings.sort(key=lambda one: rank[one.severity])
    severities = {one.severity for one in report.findings}
    needed = [one for one in report.evidence if one.needed]
    complete = bool(needed) and all(one.status == "passed" for one in needed)
    if "error" in severities:
        report.verdict = REJECTED
    elif "doubt" in severities or not complete:
        report.verdict = OPEN
    else:
        report.verdict = ACCEPTED
    return report


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of `Report.as_dict()`."""
    text: dict[str, Any] = {"type": "string"}
    severity = {"enum": list(Severity)}
    finding = _object(
        code={"enum": sorted(CODES)},
        **{"class": {"enum": sorted({code.family for code in CODES.values()})}},
        text=text,
        evidence=text,
        file=text,
        line={"type": "integer", "minimum": 0},
        case=text,
        severity=severity,
    )
    evidence = _object(
        name=text,
        status={"enum": ["passed", "failed", "skipped"]},
        text=text,
        needed={"type": "boolean"},
    )
    report = _object(
        version={"const": VERSION},
        verdict={"enum": [ACCEPTED, REJECTED, OPEN]},
        exit={"enum": [0, 1, 3]},
        candidate=text,
        reference=text,
        target=text,
        findings={"type": "array", "items": finding},
        evidence={"type": "array", "items": evidence},
        isolation={"type": "array", "items": text},
        measured={"type": "object"},
        stages={"type": "object", "additionalProperties": {"type": "number"}},
        seconds={"type": "number"},
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of gluon judge",
        **report,
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
