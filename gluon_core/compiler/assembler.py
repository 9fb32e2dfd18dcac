"""What an assembler says to the text that a compiler gave it, as a report on the kernel's line."""

from __future__ import annotations

import linecache
import re
from typing import Optional

from gluon_core.errors import SourceSpan, StageError

__all__ = ["refused"]

# "ptxas file.ptx, line 33; error   : Not a name of any known instruction: 'frobnicate'"
_SAID = re.compile(r"^\S.*, line (\d+);\s*(?:error|fatal)\s*: *(.+)$", re.M)
_LOCATION = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.M)
_MOST = 3


def refused(error: Exception, source: str) -> Optional[StageError]:
    """The report of an assembler's complaint `error` about `source`, or None where it is none."""
    found = list(dict.fromkeys(_SAID.findall(str(error))))
    if not found:
        return None
    lines = source.splitlines()
    first = int(found[0][0])
    text = lines[first - 1].strip() if 0 < first <= len(lines) else ""
    words = "; ".join(said.strip() for _, said in found[:_MOST])
    return StageError(
        f"the assembler says: {words}",
        got=text or None,
        remedy="Where the kernel has inline assembly, look at its text and its constraints.",
        span=_span(lines, first),
    )


def _span(lines: list[str], line: int) -> Optional[SourceSpan]:
    """The kernel's line that a line of assembly was made of."""
    files = dict(_FILE.findall("\n".join(lines)))
    for text in reversed(lines[:line]):
        found = _LOCATION.match(text)
        if found and found[2] != "0":
            file, number = files.get(found[1], ""), int(found[2])
            shown = linecache.getline(file, number).rstrip("\n")
            return SourceSpan(file, number, max(int(found[3]) - 1, 0), None, shown or None)
    return None
