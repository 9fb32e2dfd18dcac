"""Judge the corpus and print the confusion matrix.

python -m tests.judge                    # all candidates; exit 1 where the goal is missed
python -m tests.judge softmax/cheat_     # those whose path begins so
python -m tests.judge --seed drawn       # with inputs that nobody has seen
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from gluon_core.errors import GluonError
from gluon_judge import Judge
from gluon_judge.codes import CODES
from tests.judge.candidates import candidates, caught

VERDICTS = ("accepted", "not enough evidence", "rejected")


def main(arguments):
    options = {"seed": None} if arguments[:2] == ["--seed", "drawn"] else {}
    prefixes = tuple(arguments[2:] if options else arguments)
    chosen = [one for one in candidates() if not prefixes or one.name.startswith(prefixes)]
    counts, classes, slowest, missed = Counter(), Counter(), {}, []
    with Judge("hopper") as judge:
        for one in chosen:
            started = time.monotonic()
            try:
                report = one.judged(judge, **options)
            except GluonError as error:
                print(f"WRONG {one.name}: {type(error).__name__}: {error}", flush=True)
                missed.append((one, error))
                continue
            seconds = slowest[one.name] = time.monotonic() - started
            right = caught(one, report)
            counts[one.kind, report.verdict] += 1
            for family in {CODES[code].family for code in one.codes - {"honest"}}:
                classes[family, report.verdict] += 1
            mark = "ok   " if right else "WRONG"
            codes = ", ".join(report.codes)
            print(f"{mark} {one.name}: {report.verdict} [{codes}] {seconds:.1f} s", flush=True)
            if not right:
                missed.append((one, report))
    for one, report in missed:
        print(f"\n{one.name}, labelled {one.label}:\n{report}")
    print_table("", [(kind, counts) for kind in ("honest", "cheat")])
    families = sorted({family for family, _ in classes})
    print_table("class of the cheats' labels", [(family, classes) for family in families])
    first = sorted(slowest, key=slowest.__getitem__)[-3:]
    print("\nslowest: " + ", ".join(f"{name} {slowest[name]:.1f} s" for name in first))
    return int(bool(missed))


def print_table(title, rows):
    """Print a row of counts for each name, by verdict."""
    print(f"\n| {title} | {' | '.join(VERDICTS)} |\n| --- | ---: | ---: | ---: |")
    for name, counts in rows:
        print(f"| {name} | {' | '.join(str(counts[name, verdict]) for verdict in VERDICTS)} |")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
