"""Families of random programs in full, over many processes, into a log that a later run goes on with.

    python -m tests.compat.sweep [--family F]... [--count N] [--seed S] [--share K/N]
                                 [--jobs J] [--seconds T] --log FILE
    python -m tests.compat.sweep --report FILE...
    python -m tests.compat.sweep --again FILE... [--jobs J]

Each program is one line of JSON. At the end: families times verdicts, and every program that ours
refuses, or that ends otherwise than it should, for which `tests.compat.differences` has no row.
`--again` runs the programs that earlier logs show once more, on the Triton that is installed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterable, Iterator

from gluon_core.processes import Ended
from gluon_core.testing import TRITON_VERSION
from tests.compat import loosened, sides
from tests.compat.differences import known
from tests.compat.families import ALONE, CHECKS, COMPILED, FAMILIES, digest, made
from tests.fuzz.campaign import add, answers, entries

__all__ = ["bad", "checked", "main", "tasks"]

Entry = dict[str, Any]
# Verdicts that nobody has to look at; `refused early` is one unless no error of ours explains it.
FINE = {
    "same",
    "accepted",
    "refused alone",
    "both refuse",
    "theirs refuses",
    "refused early",
    "slow",
    "late",
}
SHOWN = 3


def checked(family: str, source: str) -> Entry:
    """The outcome of one program: its verdict, and a case to look at."""
    verdict = sides.alone(source) if family in ALONE else sides.verdict(source)
    entry: Entry = {"family": family, "digest": digest(source), "kind": verdict.kind}
    if verdict.kind in ("refused", "refused early", "differs"):
        row = known(verdict, source)
        if row:
            entry["row"] = row.title
    if family in COMPILED and verdict.ours.how == "ok":
        # The compiler must not abort on what the checks let through.
        how, output = loosened.compiled(source)
        if how != "compiled":
            entry["kind"], entry["said"] = how, output[-1500:]
    of_host = verdict.ours.text.startswith("TensorDescriptor")  # made outside of any kernel
    if verdict.ours.how == "error" and not of_host and "^" not in verdict.ours.text:
        entry["kind"] = "nowhere"
    if bad(entry) or entry["kind"] == "refused early" and "row" not in entry:
        entry["source"] = source
        for name in ("ours", "theirs", "compiled"):
            answer = getattr(verdict, name)
            if answer is not None and answer.how != "ok":
                entry[name] = f"{answer.how}: {answer.text.strip()[-1500:]}"
    return entry


def bad(entry: Entry) -> bool:
    """Return True if you have to look at an entry of a log."""
    return entry["kind"] not in FINE and "row" not in entry


def tasks(
    names: Iterable[str], count: int, seed: int, share: str
) -> Iterator[tuple[str, int, int]]:
    """Family, seed and number of each program, all families in turn."""
    k, n = (int(part) for part in share.split("/"))
    for number in range(count):
        for index, name in enumerate(names):
            if (number + index) % n == k - 1:
                yield name, seed, number


def _one(family: str, seed: int, number: int) -> Entry:
    _warm()
    return {"seed": seed, "number": number, **checked(family, made(family, seed, number))}


def _again(family: str, source: str) -> Entry:
    _warm()
    return checked(family, source)


_warm = functools.cache(sides.warm)


def _run(work: str, calls: list[Any], options: argparse.Namespace) -> Iterator[Entry]:
    """Yield entries as they are ready; a program that takes its process down is none."""
    for call, entry in answers(f"tests.compat.sweep:{work}", calls, options.jobs, options.seconds):
        if isinstance(entry, Ended):
            entry = {"family": call[0], "kind": "lost", "said": str(entry), "call": call[1:]}
        yield entry


def report(entries: Iterable[Entry], all_: bool = False) -> str:
    """Families times kinds, rows that were met, and what has to be looked at, one of each message."""
    entries = list(entries)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for entry in entries:
        counts[entry["family"]][entry["kind"] + (" (known)" if "row" in entry else "")] += 1
    kinds = sorted({kind for row in counts.values() for kind in row})
    lines = [f"Triton {'.'.join(map(str, TRITON_VERSION))}: {len(entries)} programs"]
    lines.append(" | ".join(["family", *kinds]))
    for family, row in counts.items():
        lines.append(" | ".join([family, *(str(row[kind] or "") for kind in kinds)]))
    by_kind: dict[str, list[Entry]] = collections.defaultdict(list)
    for entry in entries:
        if bad(entry):
            by_kind[f"{entry['kind']}: {_message(entry)}"].append(entry)
    for title, group in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        lines.append(f"\n==== {len(group)} x {title}")
        for entry in group if all_ else group[:SHOWN]:
            lines.append(f"-- {entry['family']} {entry.get('seed', '')}:{entry.get('number', '')}")
            lines += [
                f"{name}: {entry[name]}" for name in ("ours", "theirs", "said") if name in entry
            ]
            lines.append(entry.get("source", ""))
    lines.append(f"\nto be looked at: {sum(map(len, by_kind.values()))}")
    return "\n".join(lines)


def _message(entry: Entry) -> str:
    text = entry.get("said") or entry.get("ours") or ""
    return text.splitlines()[0][:100] if text else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.sweep")
    parser.add_argument("--family", action="append", help="all by default; a part of a name does")
    parser.add_argument("--count", type=int, default=400, help="programs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", default="1/1", help="K/N: the K-th of N parts")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no program after them")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--report", type=Path, nargs="+", help="of these logs, nothing is run")
    parser.add_argument("--again", type=Path, nargs="+", help="what these logs show once more")
    parser.add_argument("--all", action="store_true", help="show all, not three of each message")
    options = parser.parse_args(arguments)
    if options.report:
        print(report([row for path in options.report for row in entries(path)], options.all))
        return 0
    folder = tempfile.mkdtemp(prefix="gluon-sweep-")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        if options.again:
            rows = [row for path in options.again for row in entries(path) if bad(row)]
            sources = [(row["family"], row["source"]) for row in rows if "source" in row]
            rows = list(_run("_again", sources, options))
        else:
            rows = _swept(options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report(rows, options.all), flush=True)
    return int(any(map(bad, rows)))


def _swept(options: argparse.Namespace) -> list[Entry]:
    if options.log is None:
        raise SystemExit("--log is missing: the file that a later run goes on with")
    names = [*FAMILIES, *CHECKS, *ALONE]
    if options.family:
        names = [name for name in names if any(part in name for part in options.family)]
    rows = entries(options.log)
    had = {(row["family"], row.get("seed"), row.get("number"), row.get("digest")) for row in rows}
    calls = [
        call
        for call in tasks(names, options.count, options.seed, options.share)
        if (*call, digest(made(*call))) not in had
    ]
    print(f"{len(names)} families, {len(calls)} programs, {len(had)} in the log", flush=True)
    began, seen = time.time(), 0
    for row in add(options.log, _run("_one", calls, options)):
        rows.append(row)
        seen += 1
        if bad(row):
            where = f"{row['family']} {row.get('seed')}:{row.get('number')}"
            print(f"{row['kind']}: {where}: {_message(row)}", flush=True)
    spent = time.time() - began
    print(
        f"{seen} of {len(calls)} in {spent:.0f} s, {seen / max(spent, 1e-9):.1f} a second",
        flush=True,
    )
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
