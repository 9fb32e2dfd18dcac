"""The services of the simulator for `gluon run`: profiles, timelines and the debugger, for one run."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ContextManager, Iterator, Optional, TextIO

from gluon_core.errors import ArgumentError
from gluon_core.simulation.watch import Watch
from gluon_sim.tools.watcher import Watcher, watching

if TYPE_CHECKING:
    from gluon_sim.tools.debug import Debugger
    from gluon_sim.tools.finder import Finder
    from gluon_sim.tools.profile import Profiler
    from gluon_sim.tools.trace import Tracer

__all__ = ["watch"]


def watch(wish: Watch) -> ContextManager[None]:
    """See `gluon_core.plugin.simulation.Simulation.watch`. A prompt talks to today's standard output."""
    return _watch(wish, sys.stdout)


@contextmanager
def _watch(wish: Watch, stdout: TextIO) -> Iterator[None]:
    watchers: list[Watcher] = []
    profiler: Optional[Profiler] = None
    tracer: Optional[Tracer] = None
    debugger: Optional[Debugger] = None
    finder: Optional[Finder] = None
    for file in (wish.profile_json, wish.profile_html, wish.trace):
        if file is not None and not Path(file).resolve().parent.is_dir():
            raise ArgumentError("the folder does not exist", argument="FILE", got=str(file))
    if wish.profile or wish.profile_json or wish.profile_html:
        from gluon_sim.tools.profile import Profiler

        watchers.append(profiler := Profiler())
    if wish.trace:
        from gluon_sim.tools.trace import Tracer

        watchers.append(tracer := Tracer())
    if wish.findings:
        from gluon_sim.tools.finder import Finder

        finder = Finder()
        watchers += finder.watchers
    if wish.debug:
        from gluon_sim.tools.debug import Debugger

        watchers.append(debugger := Debugger(stdout=stdout))
    try:
        with watching(*watchers):
            yield
    except Exception as error:
        if debugger is not None:
            debugger.post_mortem(error)
        raise
    finally:
        if profiler is not None:
            _profiled(profiler.report(), wish)
        if finder is not None and wish.findings is not None:
            wish.findings(finder.findings())
        if tracer is not None and wish.trace:
            Path(wish.trace).write_text(json.dumps(tracer.document()))
            print(f"wrote {wish.trace}: open it in https://ui.perfetto.dev", file=sys.stderr)


def _profiled(report: list[dict[str, Any]], wish: Watch) -> None:
    if not report:
        print("no kernel ran on the simulator, so there is no profile", file=sys.stderr)
    if wish.profile_json:
        Path(wish.profile_json).write_text(json.dumps(report, indent=1))
        print(f"wrote {wish.profile_json}", file=sys.stderr)
    if wish.profile_html:
        from gluon_sim.tools.profile_html import render

        Path(wish.profile_html).write_text(render(report), encoding="utf-8")
        print(f"wrote {wish.profile_html}: open it in a browser", file=sys.stderr)
    if wish.profile:
        from gluon_sim.tools.profile_text import show

        show(report)
