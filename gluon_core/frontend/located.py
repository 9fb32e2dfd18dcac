"""Places in kernels that a compiler's words, or a module's text, name."""

from __future__ import annotations

import linecache
import re
from typing import Iterator, Optional

from gluon_core.errors import SourceSpan
from gluon_core.frontend.host_calls import is_library

__all__ = ["complaint", "place_of", "places_of_op"]

# "kernel.py:10:27: error: words", "loc("name"("kernel.py":10:27)): error: words"
_SAID = re.compile(
    r'^(?:loc\(.*?)?"?(?P<file>[^\s"():][^"\n()]*?)"?:(\d+):(\d+)\)*: (error|note): (.*)', re.M
)
_PIPELINE = ("Failures have been detected while processing", "A signal was caught while processing")
_PLACE = re.compile(r'"([^"]+)":(\d+):(\d+)')
_FUNCTION = re.compile(r'^ *tt\.func .*?@("[^"]*"|[\w.$]+)\(')
_CALL = re.compile(r'\btt\.call @("[^"]*"|[\w.$]+)\(.*loc\((.*)\)$')
_OP = re.compile(r'^( *)(?:%[^=]*= )?"?(?:\w+)\.(\w+)"?[ (]')


def _span(file: str, line: int, column: int) -> Optional[SourceSpan]:
    if is_library(file) or line < 1:
        return None
    text = linecache.getline(file, line).rstrip("\n")
    return SourceSpan(file, line, max(column - 1, 0), None, text or None)


def complaint(output: str) -> Optional[tuple[str, SourceSpan]]:
    """Return the first error that MLIR names a kernel's line for: its words, and the line.

    Where the line is one of a library function, it is that of the call.
    """
    words = None
    for match in _SAID.finditer(output):
        if match[4] == "error" and match[5].startswith(_PIPELINE):
            continue  # at the kernel's first line
        if match[4] == "error" and words is None:
            words = match[5].strip()
        span = _span(match["file"], int(match[2]), int(match[3]))
        if span is not None and span.text is not None and words is not None:
            return words.rstrip(": "), span
    return None


def place_of(module: str, loc: str) -> Optional[tuple[str, int, int]]:
    """File, line and column of a location of a module, through the names that others stand in for."""
    for _ in range(4):
        match = _PLACE.search(loc)
        if match is not None:
            return match[1], int(match[2]), int(match[3])
        inner = re.search(r"#\w+", loc)
        held = inner and re.search(rf"^{inner[0]} = loc\((.*)\)$", module, re.M)
        if not held:
            return None
        loc = held[1]
    return None


def places_of_op(module: str, name: str) -> list[SourceSpan]:
    """Yield the kernel's lines that ops of a module come from, by their name without dialect and
    underscores; for those in functions of the library, the lines that call them."""
    inside: dict[str, list[str]] = {}  # function -> locations of the ops
    calls: dict[str, list[tuple[str, str]]] = {}  # function -> by whom, where
    current, open_at = "", None
    for line in module.splitlines():
        function = _FUNCTION.match(line)
        if function:
            current = function[1]
            continue
        called = _CALL.search(line)
        if called:
            calls.setdefault(called[1], []).append((current, called[2]))
        op = _OP.match(line)
        loc = line.rpartition(" loc(")[2].rstrip(")") if " loc(" in line else None
        if op and op[2].replace("_", "") == name:
            if loc is None or line.endswith("{"):
                open_at = op[1]  # its location follows its regions
            else:
                inside.setdefault(current, []).append(loc)
        elif open_at is not None and loc and line.startswith(open_at + "}"):
            inside.setdefault(current, []).append(loc)
            open_at = None

    def lines(function: str, loc: str, seen: tuple[str, ...]) -> Iterator[SourceSpan]:
        place = place_of(module, loc)
        span = _span(*place) if place is not None else None
        if span is not None:
            yield span
        elif function not in seen:
            for caller, where in calls.get(function, ()):
                yield from lines(caller, where, (*seen, function))

    places = (
        s for function, locs in inside.items() for loc in locs for s in lines(function, loc, ())
    )
    return sorted(dict.fromkeys(places), key=lambda span: (span.line, span.column))
