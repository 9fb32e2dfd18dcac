"""What was skipped and why, and one pytest closing line, for all environments from their JUnit reports."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def main(folder: str, status: int) -> int:
    """Print the lines; answer the exit code.

    Args:
        folder: of the reports.
        status: what the environments ended with. Linters fail without a report, as does a run that
            was ended from within.
    """
    total = {"failed": 0, "passed": 0, "skipped": 0, "error": 0}
    seconds = 0.0
    reasons: Counter[str] = Counter()
    reports = sorted(Path(folder).glob("*.xml"))
    for report in reports:
        for suite in ET.parse(report).getroot().iter("testsuite"):
            count = {
                key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
            }
            total["failed"] += count["failures"]
            total["error"] += count["errors"]
            total["skipped"] += count["skipped"]
            total["passed"] += (
                count["tests"] - count["failures"] - count["errors"] - count["skipped"]
            )
            seconds += float(suite.get("time", 0))
            reasons.update(found.get("message", "") for found in suite.iter("skipped"))
    wrong = bool(total["failed"] or total["error"])
    if status and not wrong:
        total["error"] = 1
    if reasons:
        said = "; ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        print(f"skipped: {said}")
    if total["error"] > 1:
        total["errors"] = total.pop("error")
    parts = [f"{number} {name}" for name, number in total.items() if number]
    line = f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s "
    print(f"{line:=^80}")
    return 0 if total["passed"] and not (wrong or status) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
