"""The plugin of timelines."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"timeline": "gluon_timeline"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {
        "timeline.prepared": "gluon_timeline.recorder:Prepared",
        "timeline.process": "gluon_timeline.process:start",
        "timeline.page": "gluon_timeline.process",
    }


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"timeline": "gluon_timeline.cli:timeline"}
