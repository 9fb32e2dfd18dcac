"""The command `gluon certify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli import complete
from gluon_cli.options import Json
from gluon_cli.output import command

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("certify", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command(runs="file")
def certify(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A program that launches kernels; FILE:KERNEL for one of them."
        ),
    ],
    target: Annotated[
        Optional[str],
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET[,TARGET...]",
            help="Such as sm_90,gfx942.",
            autocompletion=complete.targets,
        ),
    ] = None,
    schedules: Annotated[
        int, typer.Option("--schedules", metavar="N", help="Runs of each launch by each executor.")
    ] = 10,
    seed: Annotated[int, typer.Option("--seed", help="The first seed of random schedules.")] = 0,
    launches: Annotated[
        int, typer.Option("--launches", metavar="N", help="Examine so many launches of one form.")
    ] = 4,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="End a run after that time.")
    ] = 120.0,
    tolerance: Annotated[
        Optional[float],
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            help="Rounding, as a share of the largest result; by default the types decide.",
        ),
    ] = None,
    prove: Annotated[
        Optional[float],
        typer.Option("--prove", metavar="SECONDS", help="Ask the prover, too, for that time."),
    ] = None,
    blame: Annotated[
        bool, typer.Option("--blame", help="Name the origin of a mistake in machine code.")
    ] = False,
    output: Annotated[
        Optional[Path],
        typer.Option("--output", "-o", metavar="FILE", help="Write the certificate as JSON."),
    ] = None,
    json: Json = False,
) -> int:
    """Compare a program's launches on the simulator with their machine code on the emulator.

    Exit code 0: certified. 1: a report, or results that differ. 3: something could not be examined.
    """  # fmt: skip
    from gluon_certify.command import show
    from gluon_certify.examine import Plan

    plan = Plan(schedules, seed, launches, timeout, tolerance, prove, blame)
    return show(file, target, context.args, plan, output, json)
