"""`gluon slim`: run a file, and print which synchronization of its kernels is unnecessary."""

from __future__ import annotations

from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from io import StringIO
from typing import Optional, Sequence

from gluon_cli.output import Exit, UsageError, file_and_kernel, print_json
from gluon_cli.run import Runs, run_file
from gluon_core.errors import CapabilityError
from gluon_core.simulation.evidence import Proved, Record

__all__ = ["show"]


def show(
    spec: str, target: Optional[str], within: float, json: bool, arguments: Sequence[str]
) -> int:
    """Print the outcome for each kernel that a file launches; return the exit code.

    Args:
        spec: `FILE:KERNEL`, or a file alone.
        within: seconds for each kernel.

    Raises:
        UsageError: no such file, or no time.
        CapabilityError: no prover is installed.
    """
    if within <= 0:
        raise UsageError(
            "is not a time", argument="--within", got=within, expected="seconds above 0"
        )
    try:
        from gluon_judge.slim import Slimmed, slimmed
        from gluon_sim.launcher import Launch, Verdict, proving
    except ImportError as error:
        raise CapabilityError(
            "proofs need the solver z3", got=str(error), remedy='pip install "gluon-core[prove]"'
        ) from None
    file, named = file_and_kernel(spec)
    outcomes: list[Slimmed] = []

    def prover(launch: Launch) -> Verdict:
        outcome = slimmed(launch, within)
        outcomes.append(outcome)
        return Proved(outcome.verdict, outcome.kernel, 0, 0.0, outcome.lines), None

    runs = Runs(prove=named or "*", within=within)
    with proving(prover), redirect_stdout(StringIO()) if json else nullcontext():
        code = run_file(file, target, arguments, False, None, runs, Record())
    if code:
        return code
    if json:
        print_json({"exit": _code(outcomes), "kernels": [asdict(one) for one in outcomes]})
        return _code(outcomes)
    for outcome in outcomes:
        print(f"{outcome.kernel}: {outcome.verdict}")
        for line in () if outcome.verdict == "proved" else outcome.lines:
            print(f"  {line}")
        for change in outcome.changes:
            print(
                f"  {change.verdict}: {change.op} {change.change}, line {change.line}: {change.source}"
            )
            for line in change.lines:
                print(f"    {line}")
    if not outcomes:
        reason = f"`{named}` is not launched" if named else "no kernel is launched"
        print(f"nothing was tried: {reason}")
    return _code(outcomes)


def _code(outcomes: Sequence[object]) -> int:
    verdicts = [getattr(one, "verdict", "") for one in outcomes]
    if "counterexample" in verdicts:
        return Exit.FAILED
    return Exit.OK if verdicts and set(verdicts) == {"proved"} else Exit.UNAVAILABLE
