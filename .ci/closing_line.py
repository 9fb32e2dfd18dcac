"""One pytest closing line for all environments, from their JUnit reports."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def main(folder: str) -> int:
    total = {"failed": 0, "passed": 0, "skipped": 0, "errors": 0}
    seconds = 0.0
    reports = sorted(Path(folder).glob("*.xml"))
    for report in reports:
        for suite in ET.parse(report).getroot().iter("testsuite"):
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            total["failed"] += count["failures"]
            total["errors"] += count["errors"]
            total["skipped"] += count["skipped"]
            total["passed"] += (
                count["tests"] - count["failures"] - count["errors"] - count["skipped"]
            )
            seconds += float(suite.get("time", 0))
    parts = [f"{number} {name}" for name, number in total.items() if number]
    line = f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s "
    print(f"{line:=^80}")
    return 0 if reports and total["passed"] and not total["failed"] + total["errors"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
