"""The plugin of the prover; importing it imports neither z3 nor the simulator."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"prove": "gluon_prove.cli:app"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"prove": "gluon_prove.verdict:prove"}
