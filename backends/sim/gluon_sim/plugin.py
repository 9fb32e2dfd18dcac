"""The plugin of the simulator; importing it imports neither triton nor torch."""

from __future__ import annotations

from typing import Sequence

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.hookspec import hookimpl
from gluon_sim.backend import SIM


@hookimpl
def gluon_backends() -> Sequence[Backend]:
    return [SIM]
