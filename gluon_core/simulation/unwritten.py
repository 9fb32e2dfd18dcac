"""Arrays whose contents mean nothing until a kernel writes them: marks for those who simulate."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

__all__ = ["Mark", "marks_within", "uninitialised"]

T = TypeVar("T")


@dataclass(eq=False)
class Mark:
    """The bytes of one array.

    Args:
        base: address of the first.
        missing: uint8, one for each: 1 until a kernel has written it.
        owner: of the memory, for as long as it lives.
    """

    base: int
    missing: np.ndarray
    owner: weakref.ref[Any]


_marks: list[Mark] = []


def uninitialised(x: T) -> T:
    """Say that nobody has written `x` yet: simulated kernels that read an element of it before one
    has written it are reported (`UninitialisedError`). On a GPU this does nothing.

        y = gluon.uninitialised(torch.empty(1024))
        kernel[grid](x, y)

    Writes of the host are not seen, so mark only buffers that kernels shall fill.

    Args:
        x: a NumPy array or a CPU tensor, of any shape and dtype, contiguous; others come back as
            they are.

    Returns:
        `x` itself.
    """
    if isinstance(x, np.ndarray):
        base, size, contiguous = x.ctypes.data, x.nbytes, x.flags.c_contiguous
    else:
        kind = getattr(getattr(x, "device", None), "type", None)
        address = getattr(x, "data_ptr", None)
        if kind != "cpu" or address is None:
            return x
        tensor: Any = x
        base, size = int(address()), tensor.numel() * tensor.element_size()
        contiguous = tensor.is_contiguous()
    if size and contiguous:
        _marks.append(Mark(base, np.ones(size, np.uint8), weakref.ref(_owner(x))))
    return x


def marks_within(base: int, end: int) -> list[Mark]:
    """Return the marks of arrays that live between two addresses and are not all written."""
    _marks[:] = [mark for mark in _marks if mark.owner() is not None and mark.missing.any()]
    return [m for m in _marks if m.base < end and base < m.base + m.missing.size]


def _owner(x: Any) -> Any:
    """Return the owner of the memory: views may go before it does."""
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
    return x
