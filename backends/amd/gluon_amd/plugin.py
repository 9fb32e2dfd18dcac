"""The plugin of AMD GPUs; importing it imports neither triton nor torch."""

from __future__ import annotations

from typing import Sequence

from gluon_core.backend import Backend
from gluon_core.hookspec import hookimpl
from gluon_amd.backend import AmdBackend


@hookimpl
def gluon_backends() -> Sequence[Backend]:
    return [AmdBackend()]
