"""`gl.nvidia`: what only NVIDIA GPUs can do, by the generation that brought it."""

from __future__ import annotations

from typing import Any

from gluon_core.errors import GluonError
from gluon_nvidia.language import ampere

__all__ = ["ampere"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"gl.nvidia has no {name!r}"
    if name in ("hopper", "blackwell", "rubin"):
        text += " in this release of gluon-nvidia"
    raise AttributeError(str(GluonError(text, remedy=f"It has: {', '.join(__all__)}.")))
