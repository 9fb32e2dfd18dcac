"""Machine instructions by line of a kernel: accesses to global memory, and matrix products."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Iterable, Mapping, Optional, Sequence

__all__ = ["Emitted", "LineCode", "by_line"]


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


@dataclass(frozen=True)
class LineCode:
    """The instructions of one line of a kernel.

    Args:
        counts: name -> how many.
        moves: how many of them move data.
        narrowest: kind and bytes of the narrowest move, None without one that has a width.
    """

    file: str
    line: int
    counts: Mapping[str, int]
    moves: int
    narrowest: Optional[tuple[str, int]]

    def has(self, patterns: Sequence[str]) -> bool:
        """Return whether an instruction is one of those that a lowering expects."""
        return any(re.match(pattern, name) for pattern in patterns for name in self.counts)


def by_line(emitted: Iterable[Emitted]) -> dict[tuple[str, int], LineCode]:
    """Return the instructions of each line, in the order of files and lines."""
    lines: dict[tuple[str, int], list[Emitted]] = {}
    for one in emitted:
        lines.setdefault((one.file, one.line), []).append(one)
    return {place: _line_code(*place, lines[place]) for place in sorted(lines)}


def _line_code(file: str, line: int, instructions: Sequence[Emitted]) -> LineCode:
    moves = [one for one in instructions if one.kind != Emitted.PRODUCT]
    narrowest = min((one for one in moves if one.width), key=lambda one: one.width, default=None)
    return LineCode(
        file,
        line,
        dict(Counter(one.name for one in instructions).most_common()),
        len(moves),
        None if narrowest is None else (narrowest.kind, narrowest.width),
    )
