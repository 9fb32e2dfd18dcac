"""The plugin of tuning."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"tune": "gluon_tune.cli:tune"}


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"tune": "gluon_tune"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {
        "tune.configurations": "gluon_tune.tuned.lookup:Lookup",
        "tune.errors": "gluon_tune.errors",
    }
