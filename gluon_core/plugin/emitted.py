"""Machine instructions that explain a kernel: accesses to global memory, and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["Emitted"]


@dataclass(frozen=True)
class Emitted:
    """A machine instruction that reaches global memory or is a matrix product.

    Args:
        name: with the widths and shapes that tell forms apart, such as `LDG.128`.
        kind: `LOAD` or `STORE`, between registers and global memory; `COPY`, between shared and global
            memory past the registers; `PRODUCT`.
        file, line: of the kernel, line 0 where the code does not say.
        width: bytes that one thread moves, 0 where one instruction moves a whole tile.
    """

    LOAD: ClassVar[str] = "load"
    STORE: ClassVar[str] = "store"
    COPY: ClassVar[str] = "copy"
    PRODUCT: ClassVar[str] = "product"

    name: str
    kind: str
    file: str = ""
    line: int = 0
    width: int = 0
