"""The plugin of reports, the demo and the commands of a newcomer."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {
        "demo": "gluon_report.cli:demo",
        "doctor": "gluon_report.cli:doctor",
        "hints": "gluon_report.cli:hints",
        "lsp": "gluon_report.cli:lsp",
        "new": "gluon_report.cli:new",
    }


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"report.page": "gluon_report.report.write"}
