"""What goes wrong inside the simulated machine."""

from __future__ import annotations

import linecache
from typing import Any, Optional

from gluon_core.errors import GluonError, SourceSpan

__all__ = [
    "DeadlockError", "DeviceAssertionError", "MisalignedError", "OffsetOverflowError",
    "OutOfBoundsError", "SimulatorError", "UninitialisedError", "in_library", "span_of",
]  # fmt: skip


class SimulatorError(GluonError, RuntimeError):
    """A kernel did something that the simulated machine cannot do, or must not do.

    Args:
        program: (x, y, z) of the first program that did it.
        element: of the tensor or buffer, the first at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        program: Optional[tuple[int, int, int]] = None,
        element: Optional[tuple[int, ...]] = None,
        **fields: Any,
    ):
        super().__init__(message, **fields)
        self.program = program
        self.element = element


class OutOfBoundsError(SimulatorError, IndexError):
    """An access outside every argument's storage, or outside a tensor or a shared buffer."""


class UninitialisedError(SimulatorError):
    """A read of shared memory that nobody wrote."""


class MisalignedError(SimulatorError):
    """An address that is no multiple of what the access needs."""


class OffsetOverflowError(SimulatorError, ArithmeticError):
    """Address arithmetic wrapped, and the address was used."""


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
