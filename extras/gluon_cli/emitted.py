"""Machine instructions by line of a kernel: accesses to global memory, and matrix products."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Iterable, Mapping, Optional, Sequence

from gluon_core.plugin.machine_code import Instruction

__all__ = ["LineCode", "by_line"]


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


def by_line(emitted: Iterable[Instruction]) -> dict[tuple[str, int], LineCode]:
    """Return the instructions of each line, in the order of files and lines."""
    lines: dict[tuple[str, int], list[Instruction]] = {}
    for one in emitted:
        lines.setdefault((one.file, one.line), []).append(one)
    return {place: _line_code(*place, lines[place]) for place in sorted(lines)}


def _line_code(file: str, line: int, instructions: Sequence[Instruction]) -> LineCode:
    moves = [one for one in instructions if one.kind != Instruction.PRODUCT]
    narrowest = min((one for one in moves if one.width), key=lambda one: one.width, default=None)
    return LineCode(
        file,
        line,
        dict(Counter(one.name for one in instructions).most_common()),
        len(moves),
        None if narrowest is None else (narrowest.kind, narrowest.width),
    )
