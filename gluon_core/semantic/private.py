"""Where libraries for Triton's own Gluon look for the class of what an op gets as `_semantic`:
`gluon_core.language._semantic`."""

from __future__ import annotations

from gluon_core.semantic import Semantic as GluonSemantic

__all__ = ["GluonSemantic"]
