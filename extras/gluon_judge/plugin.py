"""The plugin of the judge; importing it imports neither torch nor the simulator."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"judge": "gluon_judge.cli:judge", "slim": "gluon_judge.cli:slim"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"judge": "gluon_judge.judging:judge", "judge.errors": "gluon_judge.errors"}
