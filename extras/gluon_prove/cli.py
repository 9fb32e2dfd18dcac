"""The command `gluon prove`."""

from __future__ import annotations

from typing import Annotated

import typer

from gluon_cli.options import Json, TargetName
from gluon_cli.output import command

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("prove", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command(runs="kernel")
def prove(
    context: typer.Context,
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE:KERNEL", help="A file that launches it; FILE alone for all it launches."
        ),
    ],
    target: TargetName = None,
    within: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="SECONDS",
            help="Give up a kernel after so many seconds of a processor.",
        ),
    ] = 300.0,
    json: Json = False,
) -> int:
    """Prove that a kernel's synchronization is right for every trip count, or find a counterexample.

    Runs the file on a simulator for the kernel's types and constants. Exit code 0: proved. 1: wrong,
    and the simulator's report of it follows. 3: it cannot be said, and why. Needs z3.
    """
    from gluon_prove.command import show

    return show(kernel, target, within, json, context.args)
