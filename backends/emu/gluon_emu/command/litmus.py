"""`gluon litmus`: decide litmus tests of PTX's memory model."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gluon_core.errors import ArgumentError, did_you_mean

__all__ = ["litmus"]

_UNDECIDED = 3


def litmus(
    files: Annotated[
        list[Path],
        typer.Argument(help="Litmus tests (.litmus), or folders of them.", metavar="FILE..."),
    ],
    unroll: Annotated[
        int, typer.Option("--unroll", min=0, metavar="N", help="Follow a loop N times.")
    ] = 2,
    most: Annotated[
        int, typer.Option("--most", min=1, metavar="N", help="Judge no more candidates of a test.")
    ] = 500_000,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", help="Give up a test after that time.")
    ] = 60.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the final states, and a witness.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> int:
    """Decide litmus tests by all executions that PTX's memory model allows.

    Exit code 0: every final condition holds. 1: one does not, and a witness follows. 2: a file is no
    litmus test. 3: one cannot be decided within the bounds.
    """
    from gluon_emu.litmus.form import LitmusError
    from gluon_emu.litmus.parse import parse
    from gluon_emu.litmus.search import Limits, decide

    tests, malformed = [], []
    for path in _paths(files):
        try:
            tests.append(parse(str(path), _text(path)))
        except LitmusError as error:
            malformed.append(error)
            print(f"LitmusError: {error}", file=sys.stderr)
    outcomes = [decide(test, Limits(unroll, most, within)) for test in tests]
    if json:
        print(json_.dumps([_as_dict(outcome) for outcome in outcomes], indent=2))
    else:
        for outcome in outcomes:
            _show(outcome, verbose or outcome.holds is False)
        if len(outcomes) > 1:
            answers = [outcome.holds for outcome in outcomes]
            counts = (
                f"{answers.count(True)} hold",
                f"{answers.count(False)} do not",
                f"{answers.count(None)} undecided",
            )
            print(f"{len(outcomes)} tests: {', '.join(counts)}")
    if malformed:
        return 2
    if any(outcome.holds is False for outcome in outcomes):
        return 1
    return _UNDECIDED if any(outcome.holds is None for outcome in outcomes) else 0


def _paths(files: list[Path]) -> list[Path]:
    paths: list[Path] = []
    for path in files:
        inside = sorted(path.rglob("*.litmus")) if path.is_dir() else [path]
        if not inside:
            raise ArgumentError("a folder without litmus tests", argument="FILE", got=str(path))
        if not path.exists():
            close = did_you_mean(path.name, (p.name for p in path.parent.glob("*.litmus")))
            raise ArgumentError("no such file", argument="FILE", got=str(path), remedy=close)
        paths += inside
    return paths


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("cannot be read", argument="FILE", got=f"{path}: {error}") from error


def _bound(outcome: Any) -> str:
    return ", loops followed up to the bound" if outcome.cut else ""


def _show(outcome: Any, more: bool) -> None:
    test = outcome.test
    answer = {True: "holds", False: "does not hold", None: "undecided"}[outcome.holds]
    numbers = (
        f"{outcome.positive} of {outcome.executions} executions, {outcome.candidates} candidates"
    )
    print(
        f"{test.name}: {test.quantifier} {test.condition.text}: {answer} ({numbers}{_bound(outcome)})"
    )
    if outcome.undecided:
        print(f"  {outcome.undecided}")
    if outcome.stuck:
        print(f"  {outcome.stuck} combinations of runs in which a barrier waits for good")
    if outcome.race is not None:
        print(f"  data race: {outcome.race[0]}  and  {outcome.race[1]}")
    if more:
        for state, count in sorted(outcome.states.items()):
            print(f"  {count:6} {state}")
        if outcome.witness:
            print(
                "  witness:"
                if outcome.test.quantifier == "exists" or outcome.positive
                else "  counterexample:"
            )
        for line in outcome.witness:
            print(f"    {line}")


def _as_dict(outcome: Any) -> dict[str, Any]:
    test = outcome.test
    return {
        "test": test.name, "file": test.file, "quantifier": test.quantifier, "condition": test.condition.text,
        "holds": outcome.holds, "executions": outcome.executions, "positive": outcome.positive,
        "candidates": outcome.candidates, "cut": outcome.cut, "stuck": outcome.stuck, "states": outcome.states,
        "race": None if outcome.race is None else list(outcome.race), "witness": list(outcome.witness),
        "undecided": outcome.undecided,
    }  # fmt: skip
