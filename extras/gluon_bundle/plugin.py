"""The plugin of bundles."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"bundle": "gluon_bundle.cli:app"}


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"bundle": "gluon_bundle"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {
        "bundle.code": "gluon_bundle.supply",
        "bundle.errors": "gluon_bundle.errors",
        "bundle.record": "gluon_bundle.specs:recording_to",
    }
