"""Checks of memory accesses: mistakes of a kernel that a GPU would not tell of."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .errors import MisalignedError, OutOfBoundsError, UninitialisedError

__all__ = ["arguments_aligned", "initialised", "inside", "place"]


def place(task: Any, bad: np.ndarray) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """(program, element) of the first element that is true in `bad`, shape (programs, ...)."""
    first = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return task.program_id(int(first[0])), tuple(int(i) for i in first[1:])


def inside(task: Any, what: str, indices: np.ndarray, extent: int, of: str) -> np.ndarray:
    """`indices` where all are in 0..extent-1; with the check off, they wrap around.

    Raises:
        OutOfBoundsError: one is outside.
    """
    bad = (indices < 0) | (indices >= extent)
    if not bad.any():
        return indices
    if not task.machine.settings.bounds:
        return indices % extent
    program, element = place(task, bad)
    raise OutOfBoundsError(
        f"{what} picks an element outside the {of} in {_of(program, element)}",
        argument="index",
        expected=f"0 to {extent - 1}",
        got=int(indices[bad].flat[0]),
        program=program,
        element=element,
    )


def initialised(task: Any, what: str, buffer: Any, unwritten: Optional[np.ndarray]) -> None:
    """Refuse a read of shared memory that nobody wrote.

    Args:
        unwritten: which elements of the read were never written, None for none of them.

    Raises:
        UninitialisedError: there are some.
    """
    if unwritten is None or not unwritten.any():
        return
    program, element = place(task, unwritten)
    count = int(np.count_nonzero(unwritten))
    more = f" ({count} elements were not)" if count > 1 else ""
    raise UninitialisedError(
        f"{what} of {buffer.name}: {_of(program, element)} was never written{more}",
        remedy="Write the buffer first, and wait for what writes it.",
        program=program,
        element=element,
    )


def arguments_aligned(attributes: Any, names: Any, values: Any, span: Any) -> None:
    """Whether arguments keep what the specialization promises the compiler about them.

    Vector accesses are chosen by these promises; a launch through the kernel makes only true ones,
    one through a kernel compiled before may not.

    Args:
        attributes: position -> {attribute: value} of the kernel's parameters.
    """
    for position, promised in attributes.items():
        factor = promised.get("tt.divisibility")
        factor = int(getattr(factor, "value", factor) or 1)
        if position < len(values) and int(values[position].flat[0]) % factor:
            raise MisalignedError(
                "the kernel was compiled for a multiple of "
                f"{factor}, and its vector accesses rely on that",
                argument=names[position],
                got=hex(int(values[position].flat[0])),
                remedy="Launch through the kernel, which compiles for other alignments too.",
                span=span,
            )


def _of(program: tuple, element: tuple) -> str:
    return f"element {element} of program {program}" if element else f"program {program}"
