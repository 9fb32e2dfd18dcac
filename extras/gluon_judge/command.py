"""`gluon judge`: the report on a candidate as text, JSON or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from gluon_cli.output import Exit, UsageError, print_json
from gluon_judge.judging import judge
from gluon_judge.report import schema

__all__ = ["show"]


def show(
    candidate: Optional[str], reference: Optional[str], problem: Optional[Path], target: Optional[str],
    within: float, claim: Optional[float], patience: float, on_gpu: bool, seed: Optional[int], html: Optional[Path], print_schema: bool, json: bool,
) -> int:  # fmt: skip
    """Print the report on a candidate; return the exit code of its verdict.

    Raises:
        UsageError: no candidate, no reference, or a time that is none.
    """
    if print_schema:
        print_json(schema())
        return Exit.OK
    if candidate is None or reference is None:
        argument = "CANDIDATE" if candidate is None else "--reference"
        raise UsageError("is missing", argument=argument, expected="a Python file")
    if within <= 0:
        raise UsageError(
            "is not a time", argument="--within", got=within, expected="seconds above 0"
        )
    if html is not None and not html.resolve().parent.is_dir():
        raise UsageError("the folder does not exist", argument="--html", got=str(html))
    report = judge(
        candidate,
        reference,
        problem,
        target=target,
        within=within,
        claim=claim,
        patience=patience,
        on_gpu=on_gpu,
        seed=seed,
    )
    if html is not None:
        from gluon_judge.page import page

        html.write_text(page(report), encoding="utf-8")
    if json:
        print_json(report.as_dict())
    else:
        print(report)
    return report.exit_code
