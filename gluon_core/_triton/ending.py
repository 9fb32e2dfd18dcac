"""End a process in which Triton was loaded."""

from __future__ import annotations

import atexit
import sys
from typing import Any

__all__ = ["LastOfAll"]


class LastOfAll:
    """Empties Triton's modules once Python has begun to take modules apart.

    Triton's bindings keep classes of its Gluon package for good, and with their globals the bindings
    themselves, which then print some hundred of their own functions as leaked. Whoever keeps the one
    object of this class has it die among the modules: all that was registered with atexit has run.
    """

    def __init__(self) -> None:
        self.modules: list[dict[str, Any]] = []
        atexit.register(self._note)

    def _note(self) -> None:
        loaded = [module for name, module in sys.modules.items() if name.startswith("triton.")]
        self.modules = [vars(module) for module in loaded]

    def __del__(self) -> None:
        for names in self.modules:
            names.clear()
