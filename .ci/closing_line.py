"""Failures, reasons of skips, and one closing line as pytest writes it, for all environments of a tox run."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

LINES = 10  # that all of it takes at most
WIDTH = 160


class Reports:
    """The numbers of all JUnit reports.

    Args:
        folder: of the reports, one of each environment.
    """

    def __init__(self, folder: Path):
        self.total = {"failed": 0, "passed": 0, "skipped": 0, "error": 0}
        self.seconds = 0.0
        self.reasons: Counter[str] = Counter()
        self.failures: dict[str, list[str]] = {}  # environment -> its lines
        for report in sorted(folder.glob("*.xml")):
            for suite in ET.parse(report).getroot().iter("testsuite"):
                self._add(report.stem, suite)

    def _add(self, environment: str, suite: ET.Element) -> None:
        keys = ("tests", "failures", "errors", "skipped")
        count = {key: int(suite.get(key, 0)) for key in keys}
        self.total["failed"] += count["failures"]
        self.total["error"] += count["errors"]
        self.total["skipped"] += count["skipped"]
        others = count["failures"] + count["errors"] + count["skipped"]
        self.total["passed"] += count["tests"] - others
        self.seconds += float(suite.get("time", 0))
        self.reasons.update(skip.get("message", "") for skip in suite.iter("skipped"))
        lines = self.failures.setdefault(environment, [])
        for case in suite.iter("testcase"):
            problem = next((p for p in case if p.tag in ("failure", "error")), None)
            if problem is not None:
                name = f"{case.get('classname', '')}::{case.get('name', '')}"
                reason = " ".join((problem.get("message") or "").split())
                lines.append(f"FAILED {environment}: {name} - {reason}")


def other_failures(result: Path, reports: Reports) -> list[str]:
    """Return a line for each environment that failed without a failed test: a linter, or a run that ended early."""
    try:
        environments = json.loads(result.read_text())["testenvs"]
    except (OSError, ValueError, KeyError):
        return []
    lines = []
    for name, journal in sorted(environments.items()):
        code = journal.get("result", {}).get("exit_code", 0)
        if code and not reports.failures.get(name):
            lines.append(f"FAILED {name}: exit code {code}; repeat it with tox -e {name}")
    return lines


def main(folder: str, status: int) -> int:
    """Print the lines; return the exit code.

    Args:
        folder: the work folder of tox.
        status: the exit code of tox.
    """
    reports = Reports(Path(folder, "junit"))
    total = reports.total
    failures = other_failures(Path(folder, "result.json"), reports)
    failures += [line for lines in reports.failures.values() for line in lines]
    wrong = bool(total["failed"] or total["error"])
    if status and not wrong:
        total["error"] = 1
        failures = failures or [f"FAILED: tox ended with exit code {status}"]
    room = LINES - 2
    if len(failures) > room:
        failures[room - 1 :] = [f"... and {len(failures) - room + 1} more failures"]
    for line in failures:
        print(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}...")
    if reports.reasons:
        skips = "; ".join(f"{number} {reason}" for reason, number in reports.reasons.most_common())
        print(f"skipped: {skips}")
    if total["error"] > 1:
        total["errors"] = total.pop("error")
    parts = [f"{number} {name}" for name, number in total.items() if number]
    line = f" {', '.join(parts) or 'no tests ran'} in {reports.seconds:.2f}s "
    print(f"{line:=^80}")
    return 0 if total["passed"] and not (wrong or status) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
