"""The commands `gluon judge` and `gluon slim`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli.options import Json, TargetName
from gluon_cli.output import command

__all__ = ["judge", "slim"]


def judge(
    candidate: Annotated[
        Optional[str], typer.Argument(metavar="CANDIDATE", help="FILE or FILE:FUNCTION.")
    ] = None,
    reference: Annotated[
        Optional[str],
        typer.Option("--reference", "-r", metavar="FILE[:FUNCTION]", help="The right results."),
    ] = None,
    problem: Annotated[
        Optional[Path],
        typer.Option(
            "--problem",
            "-p",
            metavar="FILE",
            help="TOML, or Python with PROBLEM; the reference by default.",
        ),
    ] = None,
    target: TargetName = None,
    within: Annotated[
        float,
        typer.Option("--within", metavar="SECONDS", help="Begin no further check after that time."),
    ] = 60.0,
    claim: Annotated[
        Optional[float],
        typer.Option(
            "--claim",
            metavar="SECONDS",
            help="The time that its author claims for the largest case.",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", metavar="SECONDS", help="Kill a call that takes longer.")
    ] = 30.0,
    on_gpu: Annotated[
        bool, typer.Option("--on-gpu", help="Compare and measure on the GPU of this machine, too.")
    ] = False,
    seed: Annotated[
        Optional[int], typer.Option("--seed", help="Seed of the inputs; drawn by default.")
    ] = None,
    html: Annotated[
        Optional[Path], typer.Option("--html", metavar="FILE", help="Write the report as a page.")
    ] = None,
    print_schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of reports.")
    ] = False,
    mcp: Annotated[
        bool,
        typer.Option(
            "--mcp",
            help="Serve agents on standard input and output instead (Model Context Protocol).",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Judge a kernel against a reference: accepted, rejected, or not enough evidence.

    Exit code 0: accepted. 1: rejected. 3: not enough evidence, or the judge cannot judge.
    """
    if mcp:
        from gluon_judge.mcp_server import serve

        serve()
        return 0
    from gluon_judge.command import show

    return show(
        candidate,
        reference,
        problem,
        target,
        within,
        claim,
        patience,
        on_gpu,
        seed,
        html,
        print_schema,
        json,
    )


slim = typer.Typer(add_completion=False)


@slim.command("slim", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command(runs="kernel")
def slim_kernel(
    context: typer.Context,
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE:KERNEL", help="A file that launches it; FILE alone for all it launches."
        ),
    ],
    target: TargetName = None,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", help="For each kernel.")
    ] = 300.0,
    json: Json = False,
) -> int:
    """Try to remove or weaken each fence, wait and barrier of a kernel: unnecessary with a proof, needed
    with a counterexample, or open.

    Exit code 0: the kernel is proved, and each of its synchronizations was tried. 1: the kernel is wrong.
    3: it cannot be said. Needs z3.
    """
    from gluon_judge.slim_command import show

    return show(kernel, target, within, json, context.args)
