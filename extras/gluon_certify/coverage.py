"""The coverage of machine code, from the counts that the emulator writes for each launch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gluon_certify.certificate import Coverage

__all__ = ["Counted"]

_SHOWN = 20


class Counted:
    """The counts of all launches of one code.

    Args:
        text: the code as text, for the lines that no launch reached.
    """

    def __init__(self, text: str):
        self._lines = text.splitlines()
        self._counts: list[int] = []
        self._places: list[int] = []
        self._sources: list[str] = []
        self._branches: dict[int, list[int]] = {}
        self._forms: set[str] = set()

    def read(self, path: Path) -> None:
        """Add the launches in a file of the emulator's, one JSON object a line."""
        for line in path.read_text().splitlines():
            self._add(json.loads(line))

    def _add(self, launch: dict[str, Any]) -> None:
        counts = launch["counts"]
        if len(counts) != len(self._counts):
            self._counts = [0] * len(counts)
        self._counts = [a + b for a, b in zip(self._counts, counts)]
        self._places, self._sources = launch["code_lines"], launch["sources"]
        for index, jumped, stayed in launch["branches"]:
            sides = self._branches.setdefault(index, [0, 0])
            sides[0] += jumped
            sides[1] += stayed
        self._forms.update(launch["mix"])

    def coverage(self) -> Coverage:
        """Return the sums."""
        start = self._entry()
        known = [i for i in range(start, len(self._counts)) if self._text(self._places[i]) != "}"]
        missed = [i for i in known if not self._counts[i]]
        sides = [side for both in self._branches.values() for side in both]
        return Coverage(
            len(known),
            len(known) - len(missed),
            len(sides),
            sum(side > 0 for side in sides),
            [self._shown(i) for i in missed[:_SHOWN]],
            sorted(self._forms),
        )

    def _entry(self) -> int:
        """Return the first instruction behind the entry for firmware that preloads no arguments, which AMD's compiler puts first."""
        if not self._counts or self._counts[0]:
            return 0
        jumps = (
            i for i, line in enumerate(self._places) if self._text(line).startswith("s_branch")
        )
        last = next(jumps, -1)
        return 0 if any(self._counts[: last + 1]) else last + 1

    def _shown(self, index: int) -> str:
        place, source = self._places[index], self._sources[index]
        where = f"{os.path.basename(source)}, " if source else ""
        return f"{where}line {place} of the machine code: {self._text(place)}"

    def _text(self, place: int) -> str:
        known = 0 < place <= len(self._lines)
        return " ".join(self._lines[place - 1].split()) if known else ""
