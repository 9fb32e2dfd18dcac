"""What goes wrong inside the simulated machine."""

from __future__ import annotations

import linecache
from typing import Any, Optional

from gluon_core.errors import GluonError, SourceSpan

__all__ = [
    "DeadlockError", "DeviceAssertionError", "OutOfBoundsError", "SimulatorError", "in_library",
    "span_of",
]  # fmt: skip


class SimulatorError(GluonError, RuntimeError):
    """A kernel did something that the simulated machine cannot do, or must not do."""


class OutOfBoundsError(SimulatorError, IndexError):
    """A global access outside every argument's storage."""


class DeviceAssertionError(SimulatorError, AssertionError):
    """`device_assert` failed in a kernel."""


class DeadlockError(SimulatorError):
    """Every task waits for another."""


def in_library(file: str) -> bool:
    """Is this file part of the language itself, not of somebody's kernels?"""
    parts = file.replace("\\", "/").split("/")
    return "triton" in parts and "language" in parts or "gluon_core" in parts


def span_of(loc: Any) -> Optional[SourceSpan]:
    """The kernel line behind a recorded location, with its text where the file can be read."""
    if loc is None or not getattr(loc, "line", 0):
        return None
    text = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not text.strip():
        return SourceSpan(loc.file, loc.line, loc.column)
    # A kernel is parsed dedented; its first statement tells nothing about columns of a method.
    column = min(loc.column, len(text))
    return SourceSpan(loc.file, loc.line, column, len(text), text)
