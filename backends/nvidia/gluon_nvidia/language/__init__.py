"""`gl.nvidia`: the features of NVIDIA GPUs alone, by the generation that brought them."""

from __future__ import annotations

from typing import Any

from gluon_core import errors
from gluon_nvidia.language import ampere, blackwell, hopper, rubin

__all__ = ["ampere", "blackwell", "hopper", "rubin"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"gl.nvidia has no {name!r}"
    raise AttributeError(str(errors.GluonError(text, remedy=f"It has: {', '.join(__all__)}.")))
