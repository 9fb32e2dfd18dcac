"""The commands `gluon demo`, `gluon doctor`, `gluon hints`, `gluon lsp` and `gluon new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli import complete
from gluon_cli.options import Constexprs, Json, Kernel, Signature, TargetName
from gluon_core.errors import CapabilityError
from gluon_core.registry.load import registry

__all__ = ["demo", "doctor", "hints", "lsp", "new"]


def demo(
    target: Annotated[
        Optional[list[str]],
        typer.Option(
            "--target",
            "-t",
            help="Compile for these instead; repeatable.",
            autocompletion=complete.targets,
        ),
    ] = None,
    only: Annotated[
        Optional[list[str]],
        typer.Option("--only", help="Examples whose name contains this; repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All examples, not the ten or so that show most.")
    ] = False,
    jobs: Annotated[Optional[int], typer.Option("--jobs", "-j", min=1, help="Processes.")] = None,
    json: Json = False,
) -> Optional[int]:
    """Run examples on the simulator, compile them for five GPUs, and run them on yours."""
    from gluon_report.demo import show

    return show(target, only, everything, jobs, json)


def doctor(json: Json = False) -> Optional[int]:
    """Find the faults of this installation, and print the command that fixes each; exit 3 if there are
    any."""
    from gluon_report.doctor import show

    return show(json)


def new(
    name: Annotated[
        str, typer.Argument(help="Name of the kernel, such as row_sum.", metavar="NAME")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Write there.")] = Path(),
) -> Optional[int]:
    """Write a kernel with its test and its benchmark, which pass as they are written."""
    from gluon_report.new import show

    return show(name, to)


def hints(
    kernel: Kernel,
    target: TargetName = None,
    signature: Signature = None,
    constexpr: Constexprs = None,
    json: Json = False,
) -> int:
    """Show shape, element type and layout of each value that a kernel names; --json writes inlay hints for editors."""
    from gluon_report.hints import show

    return show(kernel, target, signature, constexpr, json)


def lsp(
    target: TargetName = None,
    patience: Annotated[
        float,
        typer.Option("--patience", metavar="SECONDS", min=1, help="The time that a file may run."),
    ] = 30.0,
    stdio: Annotated[
        bool,
        typer.Option("--stdio", help="Talk on standard input and output, as is always so."),
    ] = True,
) -> None:
    """Serve an editor by the Language Server Protocol: shapes and layouts of values by hovering and as hints.

    Files are run on the simulator when they are opened and saved. Needs the extra `lsp`.
    """
    try:
        from gluon_report.editor.server import serve
    except ModuleNotFoundError as error:
        raise CapabilityError(
            "the language server needs pygls",
            got=f"no module {error.name}",
            remedy="pip install 'gluon-extras[lsp]'",
        ) from error
    registry().target(target)  # an unknown one ends the command before an editor waits for hints
    serve(target, patience)
