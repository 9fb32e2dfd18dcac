"""Inline assembly on the simulator.

A reference module may have a table `INLINE_ASM`, text -> model; `IDLE_ASM` lists texts that order grids and do nothing within one. Any other text runs if the module names
its dialect, `ASSEMBLY = "anvil"`, and an installed plugin contributes an `Assembler` for that dialect
(hook `gluon_services`). The simulator gives it registers: elements of fewer than 32 bits share one as
the compiler packs them, and each array has an entry for each run of the text.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol, Sequence

import numpy as np

from gluon_core.plugin.reference import Machine

__all__ = ["Assembler", "Assembly", "NotModelled"]


class NotModelled(Exception):
    """Text that an assembler cannot run.

    Args:
        words: the unknown or illegal part.
        got: the statement.
        remedy: the alternative.
    """

    def __init__(self, words: str, got: str, remedy: Optional[str] = None):
        super().__init__(words)
        self.words, self.got, self.remedy = words, got, remedy


class Assembly(Protocol):
    """A text that can run.

    Attributes:
        is_data: whether its results follow from its operands alone, and it does nothing else.
        each_thread: whether threads that hold the same elements have to run it one by one, for it
            changes memory depending on its content, or they see each other's registers. Runs
            are then in the order of threads, and of each one after the other.
        reaches_memory: whether it loads from, or stores to, addresses in registers.
        orders: of its atomics, one of "relaxed", "acquire", "release", "acq_rel", then the scope,
            "cta", "gpu" or "sys"; nothing where it has none.
    """

    is_data: bool
    each_thread: bool
    reaches_memory: bool
    orders: tuple[str, ...]

    def __call__(
        self, machine: Machine, registers: Sequence[np.ndarray], threads: Callable[[], np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Return the registers of the results, unsigned integers.

        Args:
            registers: those of the arguments, unsigned integers (programs or 1, ...), which broadcast.
            threads: gives the thread that makes each run, numbered over the blocks of its program;
                shaped alike.
        """
        ...


# (text, constraints, target) -> the interpreter's function. It raises `NotModelled`.
Assembler = Callable[[str, str, Any], Assembly]
