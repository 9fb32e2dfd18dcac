"""Warnings of what a kernel does, at its line."""

from __future__ import annotations

import warnings
from typing import Any, Optional

__all__ = ["Warnings", "warn_once"]

_shown: dict[
    str, dict[Any, Any]
] = {}  # by file, what Python notes of the warnings that it has shown


def warn_once(text: str, category: type[Warning], file: str, line: int) -> None:
    """Warn at a line of a kernel; Python's filters say how often it is shown, once by default."""
    warnings.warn_explicit(text, category, file, line, registry=_shown.setdefault(file, {}))


class Warnings:
    """What Triton's code generator calls of `warnings` where it meets `and` and `or` of tensors: for
    each operand, with nowhere to note what was shown, and with a text for the object whose allocation
    Python would like to show."""

    @staticmethod
    def warn_explicit(
        text: str, category: type[Warning], filename: str, lineno: Optional[int], source: Any = None
    ) -> None:
        warn_once(text, category, filename, lineno or 1)
