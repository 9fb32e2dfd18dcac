"""The plugin of AMD GPUs; importing it imports neither triton nor torch."""

from __future__ import annotations

from typing import Sequence

from gluon_amd.backend import AMD
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_backends() -> Sequence[Backend]:
    return [AMD]
