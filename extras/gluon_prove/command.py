"""`gluon prove`: the verdict on a kernel for every trip count."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Collection, Optional, Sequence

from gluon_cli.output import Exit, UsageError, file_and_kernel, print_json
from gluon_cli.run import Runs, run_file
from gluon_core.errors import GluonError
from gluon_core.simulation.evidence import Proved, Record

__all__ = ["show"]


def show(
    spec: str, target: Optional[str], within: float, json: bool, arguments: Sequence[str]
) -> int:
    """Print the verdicts on the kernels that a file launches.

    Args:
        spec: `FILE:KERNEL`, or a file alone.
        within: seconds for each.

    Raises:
        UsageError: no such file.
        GluonError: the simulator's report of a counterexample, or of the file.
    """
    if within <= 0:
        raise UsageError(
            "is not a time", argument="--within", got=within, expected="seconds above 0"
        )
    file, named = file_and_kernel(spec)
    kernel = named or "*"
    record = Record()
    error: Optional[GluonError] = None
    code = 0
    try:
        code = run_file(
            file, target, arguments, json, None, Runs(prove=kernel, within=within), record
        )
    except UsageError:
        raise
    except GluonError as raised:
        error = raised
    verdicts = list(dict.fromkeys(one.proved for one in record.launches if one.proved is not None))
    verdict_code = _code(verdicts)
    if error is not None:
        failed = {one.kernel for one in record.raised}
        verdicts = [_weighed(verdict, failed) for verdict in verdicts]
        verdict_code = Exit.FAILED
    if json and not (error is not None and not verdicts):
        rows = [asdict(verdict) for verdict in verdicts]
        described = (
            None if error is None else {"class": type(error).__name__, "message": str(error)}
        )
        print_json({"exit": int(verdict_code or code), "verdicts": rows, "error": described})
        return verdict_code or code
    for verdict in verdicts:
        print(_head(verdict))
        for line in verdict.lines:
            print(f"  {line}")
    if error is not None:
        raise error
    if not verdicts:
        names = sorted({one.kernel for one in record.launches})
        reason = f"`{kernel}` is not launched" if kernel != "*" else "no kernel is launched"
        print(f"nothing was proved: {reason}" + (f", but {', '.join(names)}" if names else ""))
    return verdict_code or code


def _weighed(verdict: Proved, failed: Collection[str]) -> Proved:
    """Return the verdict on a kernel of a file that ended with an error: none that fails is proved."""
    if verdict.verdict != "proved" or verdict.name.partition(" on ")[0] not in failed:
        return verdict
    lines = ("the launch of the file fails, with the error below", *verdict.lines)
    return replace(verdict, verdict="fails", lines=lines)


def _head(verdict: Proved) -> str:
    states = "1 state" if verdict.states == 1 else f"{verdict.states} states"
    numbers = f"{states}, {verdict.seconds:.2g} s" if verdict.seconds >= 0.01 else states
    return f"{verdict.verdict}: {verdict.name} ({numbers})"


def _code(verdicts: Sequence[Proved]) -> int:
    if any(one.verdict == "counterexample" for one in verdicts):
        return Exit.FAILED
    if not verdicts or any(one.verdict != "proved" for one in verdicts):
        return Exit.UNAVAILABLE
    return Exit.OK
