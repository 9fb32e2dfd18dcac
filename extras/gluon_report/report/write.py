"""`gluon run --html`: run, and write the page, also of a run that fails."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Sequence

from gluon_cli.many import on_each
from gluon_cli.output import UsageError
from gluon_cli.run import Runs, run_file
from gluon_core.errors import GluonError
from gluon_core.simulation.evidence import Record
from gluon_core.simulation.watch import Watch
from gluon_report.report.gather import gathered
from gluon_report.report.render import pages_of, render
from gluon_sim.findings import Findings

__all__ = ["checked", "on_each_to_page", "run_to_page"]

_PART = ".part"  # the page of one target, which becomes a part of the page of all


def checked(html: str) -> None:
    """Refuse a page that cannot be written before anything runs.

    Raises:
        UsageError: its folder does not exist, or it is a folder.
    """
    path = Path(html)
    if path.is_dir() or not path.resolve().parent.is_dir():
        reason = "is a folder" if path.is_dir() else "the folder does not exist"
        raise UsageError(reason, argument="--html", got=html)


def run_to_page(
    file: str,
    target: Optional[str],
    arguments: Sequence[str],
    json: bool,
    wish: Watch,
    runs: Runs,
    html: str,
) -> int:
    """Run a file as `run_file` does; of several schedules the page shows the last that ran."""
    findings: list[Findings] = []
    record = Record()
    refusal: Optional[GluonError] = None
    try:
        watched = replace(wish, findings=findings.append)
        return run_file(file, target, arguments, json, watched, runs, record, judged=True)
    except GluonError as error:
        refusal = error
        raise
    finally:
        if findings:
            last = findings[-1]
            where = " and ".join(dict.fromkeys(one.target for one in last.kernels))
            document = gathered(file, where or target or "no target", last, record, refusal)
            _write(html, [document])


def on_each_to_page(context: Any, targets: Sequence[str], json: bool) -> int:
    """Write one page of the runs on several targets, each in a process of its own."""
    html = context.params["html"]
    with tempfile.TemporaryDirectory() as folder:
        pages = {target: Path(folder) / f"{i}{_PART}" for i, target in enumerate(targets)}
        code = on_each(context, targets, json, lambda target: {"html": str(pages[target])})
        written = [page.read_text(encoding="utf-8") for page in pages.values() if page.exists()]
    _write(html, [run for page in written for run in pages_of(page)])
    return code


def _write(html: str, runs: Sequence[dict[str, Any]]) -> None:
    Path(html).write_text(render(runs), encoding="utf-8")
    if not html.endswith(_PART):
        print(f"wrote {html}: open it in a browser", file=sys.stderr)
