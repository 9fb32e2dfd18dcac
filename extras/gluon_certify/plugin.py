"""The plugin of certificates; importing it imports neither the simulator nor the emulator."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"certify": "gluon_certify.cli:app"}


@hookimpl
def gluon_modules() -> Mapping[str, str]:
    return {"certify": "gluon_certify"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {
        "certify": "gluon_certify.certifying:certify",
        "certify.text": "gluon_certify.text:lines",
    }
