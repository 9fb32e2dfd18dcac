"""Describe the evidence for a verdict of `gluon run`, in words and as JSON."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Iterable, Optional

from gluon_cli.output import Exit
from gluon_core.plugin.targets import Target
from gluon_core.simulation.evidence import Launched, Raised, Record

__all__ = ["Evidence", "place", "weigh"]


@dataclass
class Evidence:
    """The evidence of the launches of a file that passed.

    Args:
        code: 0, or the exit code that follows from the evidence.
        lines: lines to print, the verdict first.
        launches: as JSON.
        caught: errors of launches that the file caught, as JSON.
    """

    code: int = Exit.OK
    lines: list[str] = field(default_factory=list)
    launches: list[dict[str, Any]] = field(default_factory=list)
    caught: list[dict[str, Any]] = field(default_factory=list)


def weigh(
    record: Record, asked: Optional[Target], check: bool, simulates: bool, count: Optional[int]
) -> Evidence:
    """Return the evidence in `record`.

    Args:
        asked: the target of the command line.
        check: whether to judge that there is no mistake.
        simulates: whether something was asked for that only simulators do.
        count: schedules that the file ran under; None for those of each launch.
    """
    evidence = Evidence(launches=_rows(record), caught=[_raised(r) for r in record.raised])
    there = [one for one in record.launches if asked is None or one.target == str(asked)]
    watched = [one for one in record.launches if one.simulated and not one.by]
    reports = [one for one in record.raised if one.report]
    if check and reports:
        evidence.code = Exit.FAILED
        many = f"{len(reports)} reports" if len(reports) > 1 else "a report"
        evidence.lines.append(f"wrong: {many} came, and the file went on")
    elif not there and (record.launches or check or simulates):
        evidence.code = Exit.UNAVAILABLE
        evidence.lines += _nothing(record, asked, check)
    elif (check or simulates) and not watched:
        evidence.code = Exit.UNAVAILABLE
        where = " and ".join(sorted({one.by or one.target for one in record.launches}))
        why = f"nothing was checked: all launches ran on {where}"
        interpreted = all(one.by for one in record.launches)
        evidence.lines.append(
            f"{why}, which checks nothing" if interpreted else f"{why}. {_elsewhere(there)}"
        )
    elif check and len(watched) < len(record.launches):
        evidence.code = Exit.UNAVAILABLE
        unchecked = {one.by or "a GPU" for one in record.launches if one not in watched}
        executors = " and ".join(sorted(unchecked))
        evidence.lines.append(f"not everything was checked: {executors} looks for no mistakes")
    elif check:
        places = " and ".join(dict.fromkeys(one.target for one in record.launches))
        under = f"{count} schedules" if count is not None else _walked(record.launches)
        evidence.lines.append(f"no mistake under {under} on {places}, with every check on")
    if asked is not None and not record.launches and not evidence.lines:
        evidence.lines.append("no kernel was launched")
    if check and there:
        evidence.lines += [f"  {text}" for text in _counted(record, record.launches)]
    elif asked is not None and there:
        astray = [one for one in record.launches if one not in there]
        evidence.lines += [f"not on {asked}: {text}" for text in _counted(record, astray)]
    if check:
        evidence.lines += _notes(record)
    return evidence


def _nothing(record: Record, asked: Optional[Target], check: bool) -> list[str]:
    subject = "nothing was checked" if check else f"nothing ran on {asked or 'a simulator'}"
    if not record.launches:
        why = "no kernel was launched"
        if record.raised:
            why = f"every launch was refused, the first by {_text(record.raised[0])}"
        remedy = (
            "Launch kernels where the file runs as a program, or compile it: `gluon compile`. "
            "Launches of other processes are not seen."
        )
        return [f"{subject}: {why}. {remedy}" if not record.raised else f"{subject}: {why}"]
    others = [one for one in record.launches if one.target != str(asked)]
    lines = [f"{subject} on {asked}" if check else subject]
    lines += [f"  {text}" for text in _counted(record, others)]
    return [*lines, _elsewhere(others)]


def _elsewhere(launches: Iterable[Launched]) -> str:
    one = next(iter(launches))
    return (
        f"A launch that names its own target= goes there, whatever --target says: leave it out at "
        f"{place(one.where)}, or ask for --target {one.target}."
    )


def _counted(record: Record, launches: Iterable[Launched]) -> list[str]:
    """Return one line for each kernel, target and place."""
    counts: Counter[tuple[str, str, tuple[str, int]]] = Counter()
    walks: dict[tuple[str, str, tuple[str, int]], dict[str, None]] = {}
    for one in launches:
        key = one.kernel, f"{one.target} by {one.by}" if one.by else one.target, one.where
        counts[key] += record.launches[one]
        if one.walked is not None:
            walks.setdefault(key, {})[str(one.walked)] = None
    return [
        f"{kernel} on {target}: {count} launch{'es' if count > 1 else ''} at {place(where)}"
        + "".join(f"; {text}" for text in walks.get((kernel, target, where), ()))
        for (kernel, target, where), count in counts.items()
    ]


def _walked(launches: Iterable[Launched]) -> str:
    """Under which schedules all launches ran together."""
    known = [one.walked for one in launches]
    if any(one is None for one in known):
        return "the schedules of some launches"
    walks = [one for one in known if one is not None]
    if all(one.all for one in walks):
        return "all schedules of each launch"
    runs, least = sum(one.runs for one in walks), sum(one.least for one in walks)
    return f"{runs} of at least {least} schedules"


def _notes(record: Record) -> list[str]:
    """Report checks that were off or had to be switched on, and errors that the file caught."""
    lines = []
    for word, name in (
        ("off at", "off"),
        ("on again, which the file switches off at", "overridden"),
    ):
        for where in dict.fromkeys(one.where for one in record.launches):
            settings = {
                s for one in record.launches if one.where == where for s in getattr(one, name)
            }
            checks = sorted(settings - {"schedule", "seed"})
            if checks:
                lines.append(f"{', '.join(checks)}: {word} {place(where)}")
            if settings - set(checks):
                lines.append(f"the schedule of {place(where)} gave way to those of this command")
    caught = Counter((_text(one), one.report) for one in record.raised)
    for (text, report), count in caught.items():
        often = f"{count} times " if count > 1 else ""
        verb = "reported" if report else "refused"
        lines.append(f"{often}{verb}, and the file went on: {text}")
    return lines


def _text(one: Raised) -> str:
    return f"{one.error.rstrip('.')}, at the launch of {one.kernel} at {place(one.where)}"


def place(where: tuple[str, int]) -> str:
    """`file:line`, relative to the working directory where it is below it."""
    file, line = where
    near = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if near.startswith('..') else near}:{line}"


def _rows(record: Record) -> list[dict[str, Any]]:
    return [
        {
            "kernel": one.kernel,
            "target": one.target,
            "file": one.where[0],
            "line": one.where[1],
            "count": count,
            "off": list(one.off),
            "overridden": list(one.overridden),
            **({} if one.walked is None else {"walked": asdict(one.walked)}),
        }
        for one, count in record.launches.items()
    ]


def _raised(one: Raised) -> dict[str, Any]:
    file, line = one.where
    kind = "report" if one.report else "refusal"
    return {"kernel": one.kernel, "file": file, "line": line, "kind": kind, "error": one.error}
