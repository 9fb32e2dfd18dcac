"""The plugin of timelines."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"timeline": "gluon_timeline"}
