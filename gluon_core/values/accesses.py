"""The widths that layouts permit for accesses to global memory; tools compare machine code with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Optional

from gluon_core.errors import LayoutError
from gluon_core.layouts.base import DistributedLayout

__all__ = ["WIDEST", "Access", "vector_bytes"]

WIDEST = 16  # bytes that one instruction moves for a thread


@dataclass(frozen=True)
class Access:
    """A load, store or copy that a kernel asks for.

    Args:
        where: `file:line` of the kernel.
        width: bytes, at most 16, that the layout lets one thread move at once.
    """

    where: str
    width: int


@lru_cache(maxsize=1024)
def vector_bytes(layout: DistributedLayout, shape: tuple[int, ...], bits: int) -> Optional[int]:
    """Return the bytes, at most 16, of consecutive elements along one dimension that a thread holds; None
    for a layout without a linear form."""
    try:
        registers = layout.to_linear(shape).bases["register"]
    except LayoutError:
        return None
    held = {tuple(basis) for basis in registers}
    longest = 1
    for dim in range(len(shape)):
        count = 1
        while tuple(count * (other == dim) for other in range(len(shape))) in held:
            count *= 2
        longest = max(longest, count)
    return min(WIDEST, max(1, longest * bits // 8))
