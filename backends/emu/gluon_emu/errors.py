"""The errors that the emulator reports about a kernel's machine code."""

from __future__ import annotations

import linecache
from typing import Any, Optional

from gluon_core.errors import GluonError, SourceSpan

__all__ = [
    "AccessError",
    "DeadlockError",
    "EmulatorError",
    "HazardError",
    "MissingWaitError",
    "OrderError",
    "RaceError",
    "TimeLimitError",
    "TrapError",
    "UninitialisedError",
    "UnknownInstructionError",
]


class EmulatorError(GluonError):
    """Something is wrong with machine code that ran.

    Attributes:
        instruction: its text, None where it is not about one.
        workgroup: (x, y, z) of the workgroup, and `wave` the number of the wave in it.
    """

    instruction: Optional[str] = None
    workgroup: Optional[tuple[int, int, int]] = None
    wave: Optional[int] = None


class MissingWaitError(EmulatorError):
    """A register or LDS is used while a memory operation may still write or read it."""


class RaceError(EmulatorError):
    """Two waves use the same LDS and no barrier orders them."""


class OrderError(EmulatorError):
    """Global memory is read that another workgroup stored, and nothing orders the two."""


class AccessError(EmulatorError):
    """An address outside of the memory passed to the kernel."""


class UninitialisedError(EmulatorError):
    """Something is used that nobody wrote."""


class HazardError(EmulatorError):
    """Two instructions are closer together than the hardware allows."""


class TimeLimitError(EmulatorError):
    """The launch took too long."""


class DeadlockError(EmulatorError):
    """No wave can go on."""


class TrapError(EmulatorError):
    """The kernel trapped, as a failing `device_assert` does."""


class UnknownInstructionError(EmulatorError):
    """The kernel has instructions that the emulator cannot execute."""


def span_of(location: Any) -> Optional[SourceSpan]:
    """Return the place of an instruction in the kernel's source."""
    if location is None:
        return None
    text = linecache.getline(location.file, location.line).rstrip("\n")
    return SourceSpan(location.file, location.line, max(location.column - 1, 0), None, text or None)
