"""The decorator and its classes, where libraries for Triton's own Gluon look for them."""

from __future__ import annotations

from gluon_core.compiler.source import GluonASTSource
from gluon_core.launch.jit import GluonJITFunction, jit

__all__ = ["GluonASTSource", "GluonJITFunction", "jit"]
