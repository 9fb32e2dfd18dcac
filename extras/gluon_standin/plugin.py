"""The plugin that answers for a device."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"standin": "gluon_standin"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"standin": "gluon_standin.asked"}
