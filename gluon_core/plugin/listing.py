"""Which line of a kernel each line of what was made of it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, Optional

__all__ = ["CodeLine", "of_assembly", "of_module"]


@dataclass(frozen=True)
class CodeLine:
    """A line of emitted text, and the file and line that it is for; 0 where nothing says so."""

    text: str
    file: str = ""
    line: int = 0


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.M)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\b")
_NOISE = re.compile(r"^\s*(\.loc|\.file|\.cfi_\w+|\.L(tmp|func_begin|func_end)\d+:|\$L__tmp\d+:)")
_DEBUG = re.compile(r"^\s*\.section\s+\.?\"?\.?debug_")


def of_assembly(text: str) -> tuple[CodeLine, ...]:
    """Of assembly with `.file` and `.loc`: the instructions and labels, without these directives and
    without the sections of debug information."""
    files = {int(n): f"{a}/{b}" if b else a for n, a, b in _FILE.findall(text)}
    made = []
    file, line = "", 0
    for row in text.splitlines():
        if _DEBUG.match(row):
            break
        at = _LOC.match(row)
        if at is not None:
            file, line = files.get(int(at[1]), ""), int(at[2])
        elif not _NOISE.match(row) and row.strip():
            code = row.startswith(("\t", " ")) and not row.strip().startswith((".", "//", ";"))
            made.append(CodeLine(row.expandtabs(4), file, line) if code else CodeLine(row))
    return tuple(made)


_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_USE = re.compile(r"\s*loc\((#loc\d*|unknown|\"(?:[^\"\\]|\\.)*\"(?::\d+:\d+|\(#loc\d*\))?)\)")
_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')


def of_module(text: str) -> tuple[CodeLine, ...]:
    """Of an MLIR module that is printed with its locations, which are left out of the text. Where a
    function was inlined, an op is for the line of the function that was called."""
    aliases = {m[1]: m[2] for m in map(_ALIAS.match, text.splitlines()) if m is not None}

    def place(told: str, depth: int = 0) -> Optional[tuple[str, int]]:
        at = _PLACE.search(told)
        if at is not None:
            return at[1], int(at[2])
        for name in re.findall(r"#loc\d*", told):
            known = aliases.get(name)
            found = place(known, depth + 1) if known is not None and depth < 50 else None
            if found is not None:
                return found
        return None

    def lines() -> Iterator[CodeLine]:
        for row in text.splitlines():
            if _ALIAS.match(row) or not row.strip():
                continue
            told = _USE.findall(row)
            file, line = (place(told[-1]) if told else None) or ("", 0)
            yield CodeLine(_USE.sub("", row), file, line)

    return tuple(lines())
