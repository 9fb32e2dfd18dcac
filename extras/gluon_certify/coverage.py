"""The coverage of machine code, from the counts that the emulator writes for each launch."""

from __future__ import annotations

import json
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
        self._places = launch["code_lines"]
        for index, jumped, stayed in launch["branches"]:
            sides = self._branches.setdefault(index, [0, 0])
            sides[0] += jumped
            sides[1] += stayed
        self._forms.update(launch["mix"])

    def coverage(self) -> Coverage:
        """Return the sums."""
        missed = [place for place, count in zip(self._places, self._counts) if not count]
        sides = [side for both in self._branches.values() for side in both]
        return Coverage(
            len(self._counts),
            sum(count > 0 for count in self._counts),
            len(sides),
            sum(side > 0 for side in sides),
            [f"line {place}: {self._text(place)}" for place in missed[:_SHOWN]],
            sorted(self._forms),
        )

    def _text(self, place: int) -> str:
        known = 0 < place <= len(self._lines)
        return " ".join(self._lines[place - 1].split()) if known else ""
