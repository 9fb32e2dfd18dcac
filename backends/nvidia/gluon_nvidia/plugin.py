"""The plugin of NVIDIA GPUs; importing it imports neither triton nor torch."""

from __future__ import annotations

from typing import Sequence

from gluon_core.contract.backend import Backend
from gluon_core.contract.hookspec import hookimpl
from gluon_nvidia.backend import NvidiaBackend


@hookimpl
def gluon_backends() -> Sequence[Backend]:
    return [NvidiaBackend()]
