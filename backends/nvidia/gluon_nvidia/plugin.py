"""The plugin of NVIDIA GPUs; importing it imports neither triton nor torch."""

from __future__ import annotations

from typing import Sequence

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.hookspec import hookimpl
from gluon_nvidia.backend import NVIDIA


@hookimpl
def gluon_backends() -> Sequence[Backend]:
    return [NVIDIA]
