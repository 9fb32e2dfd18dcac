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
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterable, Iterator, Optional

from gluon_core.testing import TRITON_VERSION
from tests.compat import loosened, sides
from tests.compat.differences import known
from tests.compat.families import CHECKS, COMPILED, FAMILIES, digest, made

__all__ = ["bad", "checked", "main", "tasks"]

Entry = dict[str, Any]
# Verdicts that nobody has to look at; `refused early` is one unless no error of ours explains it.
FINE = {"same", "both refuse", "theirs refuses", "refused early", "slow", "late"}
SHOWN = 3


def checked(family: str, source: str) -> Entry:
    """What comes of one program: its verdict, and what has to be looked at."""
    found = sides.verdict(source)
    entry: Entry = {"family": family, "digest": digest(source), "kind": found.kind}
    if found.kind in ("refused", "refused early", "differs"):
        row = known(found, source)
        if row:
            entry["row"] = row.title
    if family in COMPILED and found.ours.how == "ok":
        # The compiler must not abort on what the checks let through.
        how, said = loosened.compiled(source)
        if how != "compiled":
            entry["kind"], entry["said"] = how, said[-1500:]
    of_host = found.ours.text.startswith("TensorDescriptor")  # made outside of any kernel
    if found.ours.how == "error" and not of_host and "^" not in found.ours.text:
        entry["kind"] = "nowhere"
    if bad(entry) or entry["kind"] == "refused early" and "row" not in entry:
        entry["source"] = source
        for name in ("ours", "theirs", "compiled"):
            answer = getattr(found, name)
            if answer is not None and answer.how != "ok":
                entry[name] = f"{answer.how}: {answer.text.strip()[-1500:]}"
    return entry


def bad(entry: Entry) -> bool:
    """Whether an entry of a log has to be looked at."""
    return entry["kind"] not in FINE and "row" not in entry


def tasks(
    names: Iterable[str], count: int, seed: int, share: str
) -> Iterator[tuple[str, int, int]]:
    """Family, seed and number of each program, all families in turn."""
    k, n = (int(part) for part in share.split("/"))
    for number in range(count):
        for at, name in enumerate(names):
            if (number + at) % n == k - 1:
                yield name, seed, number


def _done(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # the last line of a run that was killed
            entry = json.loads(line)
            if "family" in entry:
                found.append(entry)
    return found


_end = float("inf")


def _start(end: float) -> None:
    global _end
    _end = end


def _one(task: tuple[str, int, int]) -> Optional[Entry]:
    if time.time() > _end:
        return None
    return {"seed": task[1], "number": task[2], **checked(task[0], made(*task))}


def _again(task: tuple[str, str]) -> Optional[Entry]:
    return None if time.time() > _end else checked(*task)


def _run(work: Any, todo: list[Any], jobs: int, seconds: float) -> Iterator[Entry]:
    """Entries as they are ready, from `jobs` processes that share what was loaded once."""
    sides.warm()
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, _start, (time.time() + seconds,)) as pool:
        for entry in pool.imap_unordered(work, todo):
            if entry is not None:
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
    found: dict[str, list[Entry]] = collections.defaultdict(list)
    for entry in entries:
        if bad(entry):
            found[f"{entry['kind']}: {_message(entry)}"].append(entry)
    for title, group in sorted(found.items(), key=lambda item: -len(item[1])):
        lines.append(f"\n==== {len(group)} x {title}")
        for entry in group if all_ else group[:SHOWN]:
            lines.append(f"-- {entry['family']} {entry.get('seed', '')}:{entry.get('number', '')}")
            lines += [
                f"{name}: {entry[name]}" for name in ("ours", "theirs", "said") if name in entry
            ]
            lines.append(entry.get("source", ""))
    lines.append(f"\nto be looked at: {sum(map(len, found.values()))}")
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
    given = parser.parse_args(arguments)
    if given.report:
        entries = [entry for path in given.report for entry in _done(path)]
        print(report(entries, given.all))
        return 0
    folder = tempfile.mkdtemp(prefix="gluon-sweep-")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        if given.again:
            sources = [(e["family"], e["source"]) for p in given.again for e in _done(p) if bad(e)]
            entries = list(_run(_again, sources, given.jobs, given.seconds))
        else:
            entries = _swept(given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report(entries, given.all), flush=True)
    return int(any(map(bad, entries)))


def _swept(given: argparse.Namespace) -> list[Entry]:
    if given.log is None:
        raise SystemExit("--log is missing: the file that a later run goes on with")
    names = [*FAMILIES, *CHECKS]
    if given.family:
        names = [name for name in names if any(part in name for part in given.family)]
    entries = _done(given.log)
    had = {(e["family"], e.get("seed"), e.get("number"), e["digest"]) for e in entries}
    todo = [
        task
        for task in tasks(names, given.count, given.seed, given.share)
        if (*task, digest(made(*task))) not in had
    ]
    print(f"{len(names)} families, {len(todo)} programs, {len(had)} in the log", flush=True)
    began, seen = time.time(), 0
    with given.log.open("a", encoding="utf-8") as log:
        for entry in _run(_one, todo, given.jobs, given.seconds):
            log.write(json.dumps(entry) + "\n")
            log.flush()
            entries.append(entry)
            seen += 1
            if bad(entry):
                where = f"{entry['family']} {entry['seed']}:{entry['number']}"
                print(f"{entry['kind']}: {where}: {_message(entry)}", flush=True)
    spent = time.time() - began
    print(
        f"{seen} of {len(todo)} in {spent:.0f} s, {seen / max(spent, 1e-9):.1f} a second",
        flush=True,
    )
    return entries


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
