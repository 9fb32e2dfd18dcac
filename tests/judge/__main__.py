"""Judge the corpus and print the confusion matrix.

python -m tests.judge                    # all candidates; exit 1 where the goal is missed
python -m tests.judge softmax/cheat_     # those whose path begins so
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from gluon_judge import Judge
from tests.judge.candidates import candidates, caught


def main(prefixes):
    chosen = [one for one in candidates() if not prefixes or one.name.startswith(tuple(prefixes))]
    counts, missed = Counter(), []
    classes = Counter()
    with Judge("hopper") as judge:
        for one in chosen:
            started = time.monotonic()
            report = one.judged(judge)
            right = caught(one, report)
            counts[one.kind, report.verdict] += 1
            classes.update(
                finding.family for finding in report.findings if finding.severity == "error"
            )
            codes = ", ".join(report.codes)
            mark = "ok   " if right else "WRONG"
            print(
                f"{mark} {one.name}: {report.verdict} [{codes}] {time.monotonic() - started:.1f} s",
                flush=True,
            )
            if not right:
                missed.append((one, report))
    for one, report in missed:
        print(f"\n{one.name}, labelled {one.label}:\n{report}")
    verdicts = ["accepted", "not enough evidence", "rejected"]
    print(f"\n{'':10}" + "".join(f"{verdict:>22}" for verdict in verdicts))
    for kind in ("honest", "cheat"):
        print(f"{kind:10}" + "".join(f"{counts[kind, verdict]:>22}" for verdict in verdicts))
    print("\nclasses: " + ", ".join(f"{name} {count}" for name, count in sorted(classes.items())))
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
