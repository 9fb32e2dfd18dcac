"""The plugin that draws layouts."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"layout": "gluon_pictures.cli:layout"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"pictures": "gluon_pictures.views"}
