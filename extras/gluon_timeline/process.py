"""Timelines of whole processes: `gluon run --timeline FILE`, and GLUON_TIMELINE."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path
from typing import Any, ContextManager, Iterator, Optional

from gluon_core.errors import ArgumentError
from gluon_timeline.recorder import Timeline, record

__all__ = ["checked", "predicted", "recorded", "start"]

_running: Optional[ContextManager[None]] = None


def checked(file: str) -> None:
    """Refuse a file that cannot be written, before anything runs.

    Raises:
        ArgumentError: it ends in neither `.html` nor `.json`, or its folder does not exist.
    """
    path = Path(file)
    if path.suffix not in (".html", ".json"):
        raise ArgumentError(
            "the end of its name gives the format",
            argument="--timeline",
            expected="FILE.html, FILE.json or auto",
            got=file,
        )
    if not path.resolve().parent.is_dir():
        raise ArgumentError("the folder does not exist", argument="--timeline", got=file)


@contextlib.contextmanager
def recorded(file: str, auto: bool = False) -> Iterator[None]:
    """Record the launches of a `with` block and write them to a page or to JSON, also after an error.

    Raises:
        ArgumentError: see `checked`.
    """
    checked(file)
    recording = record(auto=auto)
    timeline = recording.__enter__()
    try:
        yield
    finally:
        recording.__exit__(None, None, None)
        _write(timeline, file, auto)


@contextlib.contextmanager
def predicted(file: str, target: Any) -> Iterator[None]:
    """Predict the launches of a `with` block on a simulated target and write them to a page or to JSON.

    Raises:
        ArgumentError: see `checked`.
    """
    from gluon_timeline.predictor import predicting

    checked(file)
    with predicting(target) as predictions:
        yield
    if not predictions.launches:
        print(f"gluon: no kernel was launched, so {file} was not written.", file=sys.stderr)
        return
    print(predictions.table(), file=sys.stderr)
    if file.endswith(".json"):
        predictions.write_json(file)
        print(f"wrote {file}: open it in https://ui.perfetto.dev", file=sys.stderr)
    else:
        predictions.write_html(file)
        print(f"wrote {file}: open it in a browser", file=sys.stderr)


def _write(timeline: Timeline, file: str, auto: bool) -> None:
    if not timeline.launches:
        print(
            f"gluon: no launch passed a scope, so {file} was not written. Mark spans with gl.scope"
            + ("." if auto else ", or add automatic ones: --timeline-auto, GLUON_TIMELINE=auto."),
            file=sys.stderr,
        )
        return
    if file.endswith(".json"):
        timeline.write_json(file)
        print(f"wrote {file}: open it in https://ui.perfetto.dev", file=sys.stderr)
    else:
        timeline.write_html(file)
        print(f"wrote {file}: open it in a browser", file=sys.stderr)


def start() -> None:
    """Record this process, once, as GLUON_TIMELINE says: `1`, or `auto` with automatic scopes.

    At its end it writes `timeline-PID.html` into the current folder, or into that of GLUON_TIMELINE_DIR.
    """
    global _running
    if _running is not None:
        return
    folder = os.environ.get("GLUON_TIMELINE_DIR") or os.getcwd()
    file = str(Path(folder) / f"timeline-{os.getpid()}.html")
    checked(file)
    _running = recorded(file, os.environ["GLUON_TIMELINE"] == "auto")
    _running.__enter__()
    atexit.register(_running.__exit__, None, None, None)
