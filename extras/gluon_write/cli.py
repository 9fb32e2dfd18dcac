"""The command `gluon write`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli.options import TargetName
from gluon_cli.output import command

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("write")
@command(runs="kernel")
def write(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE:KERNEL", help="A file that launches it; FILE alone for all it launches."
        ),
    ],
    target: TargetName = None,
    to: Annotated[
        Optional[Path],
        typer.Option("--to", metavar="DIR", help="Write FILE_TARGET.py there, not to the screen."),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Prove the written file before it is kept.")
    ] = True,
) -> int:
    """Write kernels of `layouts="auto"` as explicit source, with the reason for each layout.

    Targets are listed with commas. Runs the file on a simulator for the kernels' types and constants.
    Exit code 0: written. 1: a written kernel is wrong, and nothing is kept. 3: nothing was launched.
    """
    from gluon_write.command import show

    return show(kernel, target, to, prove)
