"""Machine code as a vendor reads it: lines, instructions, and the loops that they form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Mapping, Optional, Sequence

__all__ = ["CodeLine", "Instruction", "Loop", "find_loops"]


@dataclass(frozen=True)
class CodeLine:
    """A line of emitted text, and the kernel's file and line that it is for; 0 where unknown."""

    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Args:
        name: with the widths and shapes that tell forms apart, such as `LDG.128`.
        labels: names of its place for branches: labels, or its address.
        target: the label that it branches to, None for other instructions.
        kind: `LOAD` or `STORE`, between registers and global memory; `COPY`, between shared and global
            memory past the registers; `PRODUCT`, of matrices; "" for others.
        file, line: of the kernel, line 0 where the code does not say.
        width: bytes that one thread moves, 0 where one instruction moves a whole tile.
    """

    LOAD: ClassVar[str] = "load"
    STORE: ClassVar[str] = "store"
    COPY: ClassVar[str] = "copy"
    PRODUCT: ClassVar[str] = "product"

    name: str
    labels: tuple[str, ...] = ()
    target: Optional[str] = None
    kind: str = ""
    file: str = ""
    line: int = 0
    width: int = 0


@dataclass(frozen=True)
class Loop:
    """A loop of the kernel: from a label to the last branch back to it.

    Args:
        label: where it begins.
        depth: 1 for an outermost loop.
        instruction_count: instructions of its body, those of loops inside it left out.
        instruction_mix: their mnemonics -> count, the most frequent first.
    """

    label: str
    depth: int
    instruction_count: int
    instruction_mix: Mapping[str, int]


def find_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Return the loops, in the order of their beginnings."""
    places = {label: i for i, one in enumerate(instructions) for label in one.labels}
    spans: dict[int, tuple[int, str]] = {}  # first -> last instruction, and the label
    for i, one in enumerate(instructions):
        start = places.get(one.target, i) if one.target is not None else i
        if start < i:  # a branch to itself is where the kernel has ended
            spans[start] = i, one.target or ""
    innermost = [-1] * len(instructions)
    for start, (end, _) in sorted(spans.items()):
        innermost[start : end + 1] = [start] * (end + 1 - start)
    loops = []
    for start, (end, label) in sorted(spans.items()):
        names = [instructions[i].name for i in range(start, end + 1) if innermost[i] == start]
        depth = sum(first <= start and end <= last for first, (last, _) in spans.items())
        loops.append(Loop(label, depth, len(names), dict(Counter(names).most_common())))
    return tuple(loops)
