"""The class of the `_semantic` of an op, where libraries for Triton's own Gluon look for it."""

from __future__ import annotations

from gluon_core.semantic.composed import Semantic as GluonSemantic

__all__ = ["GluonSemantic"]
