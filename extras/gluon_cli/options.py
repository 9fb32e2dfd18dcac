"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from gluon_cli import complete

__all__ = [
    "Constexprs",
    "Json",
    "Kernel",
    "Options",
    "Signature",
    "TargetName",
    "Warps",
]

Kernel = Annotated[
    str,
    typer.Argument(
        help="FILE:KERNEL; FILE alone where it has one kernel.",
        metavar="KERNEL",
        autocompletion=complete.kernels,
    ),
]
TargetName = Annotated[
    Optional[str],
    typer.Option(
        "--target",
        "-t",
        help="Such as hopper, nvidia:sm_90, gfx942, sim:hopper.",
        autocompletion=complete.targets,
    ),
]
Signature = Annotated[
    Optional[str],
    typer.Option(
        "--signature",
        "-s",
        help="Types of the parameters that are not constexprs, such as '*fp32,*fp32,i32:16', or "
        "'name=type,...'. Files with EXAMPLES bring their own.",
    ),
]
Constexprs = Annotated[
    Optional[list[str]],
    typer.Option(
        "--constexpr",
        "-c",
        metavar="NAME=VALUE",
        help="A literal, a dtype or a layout; repeatable.",
    ),
]
Options = Annotated[
    Optional[list[str]],
    typer.Option("--option", metavar="NAME=VALUE", help="Other compile options; repeatable."),
]
Warps = Annotated[Optional[int], typer.Option("--num-warps", "-w", help="Warps of a block.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
