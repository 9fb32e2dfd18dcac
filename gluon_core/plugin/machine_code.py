"""Machine code as a vendor reads it: lines, instructions, and the loops that they form."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Iterator, Mapping, Optional, Sequence

__all__ = ["CodeLine", "Instruction", "Loop", "find_loops", "of_assembly", "of_module"]


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


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.M)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\b")
_NOISE = re.compile(r"^\s*(\.loc|\.file|\.cfi_\w+|\.L(tmp|func_begin|func_end)\d+:|\$L__tmp\d+:)")
_DEBUG = re.compile(r"^\s*\.section\s+\.?\"?\.?debug_")


def of_assembly(text: str) -> tuple[CodeLine, ...]:
    """Return the instructions and labels of assembly with `.file` and `.loc`, without these directives
    and without the sections of debug information."""
    files = {int(n): f"{a}/{b}" if b else a for n, a, b in _FILE.findall(text)}
    lines = []
    file, line = "", 0
    for row in text.splitlines():
        if _DEBUG.match(row):
            break
        place = _LOC.match(row)
        if place is not None:
            file, line = files.get(int(place[1]), ""), int(place[2])
        elif not _NOISE.match(row) and row.strip():
            code = row.startswith(("\t", " ")) and not row.strip().startswith((".", "//", ";"))
            lines.append(CodeLine(row.expandtabs(4), file, line) if code else CodeLine(row))
    return tuple(lines)


_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_USE = re.compile(r"\s*loc\((#loc\d*|unknown|\"(?:[^\"\\]|\\.)*\"(?::\d+:\d+|\(#loc\d*\))?)\)")
_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')


def of_module(text: str) -> tuple[CodeLine, ...]:
    """Return the lines of an MLIR module that is printed with its locations, which are left out of the
    text. Where a function was inlined, an op is for the line of the function that was called."""
    aliases = {m[1]: m[2] for m in map(_ALIAS.match, text.splitlines()) if m is not None}

    def place(location: str, depth: int = 0) -> Optional[tuple[str, int]]:
        direct = _PLACE.search(location)
        if direct is not None:
            return direct[1], int(direct[2])
        known = (aliases[name] for name in re.findall(r"#loc\d*", location) if name in aliases)
        places = (place(alias, depth + 1) for alias in known if depth < 50)
        return next((one for one in places if one is not None), None)

    def lines() -> Iterator[CodeLine]:
        for row in text.splitlines():
            if _ALIAS.match(row) or not row.strip():
                continue
            uses = _USE.findall(row)
            file, line = (place(uses[-1]) if uses else None) or ("", 0)
            yield CodeLine(_USE.sub("", row), file, line)

    return tuple(lines())
