"""The places of a kernel in code that compilers print, and figures as tables."""

from __future__ import annotations

import re
from html import escape
from typing import Any, Iterator, Optional, Sequence

__all__ = ["Line", "Table", "of_assembly", "of_module"]

Line = tuple[
    str, str, int
]  # text, and the kernel's file and line that it is for; line 0 where unknown

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', re.M)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\b")
_NOISE = re.compile(r"^\s*(\.loc|\.file|\.cfi_\w+|\.L(tmp|func_begin|func_end)\d+:|\$L__tmp\d+:)")
_DEBUG = re.compile(r"^\s*\.section\s+\.?\"?\.?debug_")


def of_assembly(text: str) -> list[Line]:
    """Return the instructions and labels of assembly with `.file` and `.loc`, without these directives
    and without the sections of debug information."""
    files = {int(n): f"{a}/{b}" if b else a for n, a, b in _FILE.findall(text)}
    lines: list[Line] = []
    file, line = "", 0
    for row in text.splitlines():
        if _DEBUG.match(row):
            break
        place = _LOC.match(row)
        if place is not None:
            file, line = files.get(int(place[1]), ""), int(place[2])
        elif not _NOISE.match(row) and row.strip():
            code = row.startswith(("\t", " ")) and not row.strip().startswith((".", "//", ";"))
            lines.append((row.expandtabs(4), file, line) if code else (row, "", 0))
    return lines


_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_USE = re.compile(r"\s*loc\((#loc\d*|unknown|\"(?:[^\"\\]|\\.)*\"(?::\d+:\d+|\(#loc\d*\))?)\)")
_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')


def of_module(text: str) -> list[Line]:
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

    def lines() -> Iterator[Line]:
        for row in text.splitlines():
            if _ALIAS.match(row) or not row.strip():
                continue
            uses = _USE.findall(row)
            file, line = (place(uses[-1]) if uses else None) or ("", 0)
            yield _USE.sub("", row), file, line

    return [*lines()]


class Table:
    """Figures that notebooks and rich show as a table of their `rows`."""

    def rows(self) -> Sequence[tuple[str, str]]:
        """Return (name, text) of each row."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self.rows()
        )
        return f"<table>{cells}</table>"

    def __rich__(self) -> Any:
        from rich.table import Table as Rich

        table = Rich("", "", show_header=False)
        for row in self.rows():
            table.add_row(*row)
        return table
