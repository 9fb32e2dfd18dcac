"""The plugin of PyTorch operators."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"torch": "gluon_torch"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"torch.errors": "gluon_torch.errors"}
