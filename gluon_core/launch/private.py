"""Where libraries for Triton's own Gluon look for the decorator and its classes: `gluon_core._runtime`."""

from __future__ import annotations

from gluon_core.compiler.source import GluonASTSource
from gluon_core.launch.jit import GluonJITFunction, jit

__all__ = ["GluonASTSource", "GluonJITFunction", "jit"]
