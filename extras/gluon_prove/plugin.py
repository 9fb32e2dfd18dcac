"""The plugin of the prover; importing it imports neither z3 nor the simulator."""

from __future__ import annotations

from typing import Sequence

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_provers() -> Sequence[str]:
    return ["gluon_prove.verdict:prove"]
