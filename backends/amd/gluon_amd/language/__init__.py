"""`gl.amd`: the features of AMD GPUs alone, by the generation that brought them."""

from __future__ import annotations

from typing import Any

from gluon_amd.language import cdna3, cdna4, cdna5, gfx1250, hint, rdna3, rdna4
from gluon_amd.language.slice import slice
from gluon_amd.language.warp_pipeline import warp_pipeline_stage
from gluon_amd.layouts import AMDMFMALayout, AMDWMMALayout

__all__ = [
    "AMDMFMALayout",
    "AMDWMMALayout",
    "cdna3",
    "cdna4",
    "cdna5",
    "gfx1250",
    "hint",
    "rdna3",
    "rdna4",
    "slice",
    "warp_pipeline_stage",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise AttributeError(f"gl.amd has no {name!r}. It has: {', '.join(__all__)}.")
