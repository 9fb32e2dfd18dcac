"""The command `gluon write`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli.options import TargetName
from gluon_cli.output import UsageError, command

__all__ = ["app", "port_app"]

app = typer.Typer(add_completion=False)
port_app = typer.Typer(add_completion=False)


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
        typer.Option(
            "--to",
            metavar="PATH",
            help="Write that file, or FILE_TARGET.py in that folder, not to the screen.",
        ),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Prove the written file before it is kept.")
    ] = True,
    form: Annotated[
        Optional[str],
        typer.Option(
            "--form",
            metavar="FORM",
            help="pipelined or specialized: the form of loops of products; else what costs less.",
        ),
    ] = None,
) -> int:
    """Write kernels of `layouts="auto"` as explicit source, with the reason for each layout.

    Targets are listed with commas. Runs the file on a simulator for the kernels' types and constants.
    Exit code 0: written. 1: a written kernel is wrong, and nothing is kept. 3: nothing was launched, or a proof is not decided.
    """
    from gluon_write.command import show
    from gluon_write.preferred import FORMS, preferred_form

    if form not in (None, *FORMS):
        raise UsageError(
            "unsupported form", argument="--form", expected=" or ".join(FORMS), got=str(form)
        )
    with preferred_form(form):
        return show(kernel, target, to, prove)


@port_app.command("port")
@command(runs="file")
def port(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file with @triton.jit kernels.")],
    to: Annotated[
        Optional[Path],
        typer.Option(
            "--to",
            metavar="PATH",
            help="Write there, not to the screen; explicit files for several targets to a folder.",
        ),
    ] = None,
    explicit: Annotated[
        bool, typer.Option("--explicit", help="Choose the layouts, too; the file must launch them.")
    ] = False,
    target: TargetName = None,
    prove: Annotated[
        bool,
        typer.Option("--prove/--no-prove", help="Prove explicit kernels before they are kept."),
    ] = True,
) -> int:
    """Port kernels of plain Triton to Gluon without layouts; the rest of the file stays as it is.

    Exit code 0: written. 1: a kernel uses an op without a counterpart; the report names its line.
    """
    from gluon_write.command import show_port

    return show_port(file, to, explicit, target, prove)
