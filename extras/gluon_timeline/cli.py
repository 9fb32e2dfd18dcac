"""`gluon timeline`: pages from recorded files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from gluon_cli.output import UsageError, command
from gluon_core.errors import ArgumentError

__all__ = ["timeline"]


@command
def timeline(
    file: Annotated[
        str, typer.Argument(help="A file that `gluon run --timeline FILE.json` wrote.")
    ],
    html: Annotated[str, typer.Option("--html", metavar="PAGE", help="The page to write.")],
    predicted: Annotated[
        Optional[str],
        typer.Option(
            "--predicted",
            metavar="JSON",
            help="Draw the predicted lanes of the same kernels below the measured ones: a file that `gluon run "
            "--target sim:ARCH --timeline` wrote.",
        ),
    ] = None,
    below: Annotated[
        Optional[str],
        typer.Option(
            "--below",
            metavar="TRACE",
            help="Draw another trace below the lanes: of `gluon run --trace`, of Proton (trace or tree), of "
            "KTRACE, or any other of Perfetto or in the JSON format of Chrome.",
        ),
    ] = None,
) -> None:
    """Write the page of a recorded timeline, with the trace of a simulator or of another tool below it."""
    from gluon_timeline import page  # imports NumPy: not for the list of commands
    from gluon_timeline.imports import processes
    from gluon_timeline.predictor import joined

    recorded = _read(file, "FILE")
    launches = recorded.get("gluon")
    if not isinstance(launches, list) or not launches:
        raise UsageError(
            "holds no recorded launch", argument="FILE", expected="the JSON of --timeline", got=file
        )
    if predicted is not None:
        try:
            launches = joined(launches, _read(predicted, "--predicted").get("gluon") or [])
        except ArgumentError as error:
            raise UsageError(
                error.message, argument=error.argument, expected=error.expected, got=error.got
            ) from error
    others = None
    if below is not None:
        try:
            others = processes(_content(below, "--below"))
        except ArgumentError as error:
            raise UsageError(
                error.message,
                argument="--below",
                expected=error.expected,
                got=f"{below}: {error.got}",
            ) from error
    try:
        Path(html).write_text(page.render(launches, others, Path(file).stem), encoding="utf-8")
    except OSError as error:
        raise UsageError("cannot be written", argument="--html", got=str(error)) from error
    print(f"wrote {html}: open it in a browser", file=sys.stderr)


def _content(file: str, argument: str) -> Any:
    """Return a file's JSON; of a binary trace of Perfetto, its events in Chrome's format. Both may be compressed by gzip."""
    from gluon_timeline.perfetto import events, unpacked

    if not Path(file).is_file():
        raise UsageError("no such file", argument=argument, got=file)
    try:
        content = unpacked(Path(file).read_bytes())
        if content.lstrip()[:1] in (b"{", b"["):
            return json.loads(content)
        return {"traceEvents": events(content)}
    except (OSError, ValueError) as error:
        raise UsageError(
            "is neither JSON nor a Perfetto trace",
            argument=argument,
            got=f"{file}: {error}",
        ) from error


def _read(file: str, argument: str) -> dict[str, Any]:
    content = _content(file, argument)
    if not isinstance(content, dict):
        raise UsageError("is not a trace", argument=argument, got=file)
    return content
