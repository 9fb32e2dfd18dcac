"""The plugin of kernels across devices."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"distributed": "gluon_distributed"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"distributed.errors": "gluon_distributed.errors"}
