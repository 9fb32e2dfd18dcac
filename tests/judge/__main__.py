"""Judge the corpus and print the confusion matrix.

python -m tests.judge                    # all candidates; exit 1 where the goal is missed
python -m tests.judge softmax/cheat_     # those whose path begins so
python -m tests.judge --seed drawn       # with inputs that nobody has seen
python -m tests.judge --jobs 8           # eight candidates at once
"""

from __future__ import annotations

import argparse
import queue
import subprocess
import sys
import threading
import time
from collections import Counter

from gluon_judge import Judge
from gluon_judge.codes import CODES
from tests.judge.candidates import CORPUS, candidates, caught

VERDICTS = ("accepted", "not enough evidence", "rejected")


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    parser.add_argument("prefixes", nargs="*", help="judge the candidates whose path begins so")
    parser.add_argument("--seed", choices=("0", "drawn"), default="0", help="of the inputs")
    parser.add_argument("--patience", type=float, default=8.0, help="seconds of one call")
    parser.add_argument("--jobs", type=int, default=1, help="candidates that are judged at once")
    options = parser.parse_args(arguments)
    prefixes = tuple(options.prefixes)
    chosen = [one for one in candidates() if not prefixes or one.name.startswith(prefixes)]
    started, seed = time.monotonic(), None if options.seed == "drawn" else 0
    counts, classes, slowest, missed = Counter(), Counter(), {}, []
    for one, report, seconds in judgements(
        chosen, options.jobs, seed=seed, patience=options.patience
    ):
        slowest[one.name] = seconds
        if isinstance(report, Exception):
            print(f"WRONG {one.name}: {type(report).__name__}: {report}", flush=True)
            missed.append((one, report))
            counts[one.kind, "failed"] += 1
            continue
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
    print(
        f"\n{len(slowest)} candidates in one pass of {time.monotonic() - started:.0f} s, {options.jobs} at once, "
        f"seed {options.seed}, commit {commit()}"
    )
    print_table("", [(kind, counts) for kind in ("honest", "cheat")])
    families = sorted({family for family, _ in classes})
    print_table("class of the cheats' labels", [(family, classes) for family in families])
    first = sorted(slowest, key=slowest.__getitem__)[-3:]
    print("\nslowest: " + ", ".join(f"{name} {slowest[name]:.1f} s" for name in first))
    print(f"{len(missed)} candidates have another verdict than their label")
    return int(bool(missed))


def judgements(chosen, jobs, **options):
    """Yield each candidate with its report, or the error of the judge, and the seconds, as they come."""
    left, done = queue.SimpleQueue(), queue.SimpleQueue()
    for one in chosen:
        left.put(one)

    def work():
        with Judge("hopper") as judge:
            while True:
                try:
                    one = left.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                try:
                    report = one.judged(judge, **options)
                except Exception as error:
                    report = error
                done.put((one, report, time.monotonic() - started))

    for _ in range(min(jobs, len(chosen))):
        threading.Thread(target=work, daemon=True).start()
    for _ in chosen:
        yield done.get()


def commit():
    """Return the commit of this checkout, and whether files differ from it."""
    try:
        command = ("git", "describe", "--always", "--dirty", "--abbrev=12")
        done = subprocess.run(command, cwd=CORPUS, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def print_table(title, rows):
    """Print a row of counts for each name, by verdict."""
    print(f"\n| {title} | {' | '.join(VERDICTS)} |\n| --- | ---: | ---: | ---: |")
    for name, counts in rows:
        print(f"| {name} | {' | '.join(str(counts[name, verdict]) for verdict in VERDICTS)} |")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
