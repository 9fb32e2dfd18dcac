"""The hints of a document whose text goes on changing: they keep to the lines that they were found for."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Iterator, Optional, Sequence

from gluon_report.editor.analysis import Analysis
from gluon_report.inlay import Hint

__all__ = ["Document"]

_WORD = re.compile(r"[^\W\d]\w*")
_MOST = 20_000  # lines of a text that is compared


class Document:
    """An analysis, seen from the present text of its document. Lines that were changed since have no hints.

    Args:
        analysis: of an earlier text.
        text: the present one.
    """

    def __init__(self, analysis: Analysis, text: str):
        self._analysis = analysis
        self._lines = text.split("\n")

    @cached_property
    def _moved(self) -> dict[int, int]:
        """Lines of the analysed text -> those of the present one that equal them."""
        before = self._analysis.text.split("\n")
        if before == self._lines:
            return {line: line for line in range(len(before))}
        if max(len(before), len(self._lines)) > _MOST:
            return {}
        blocks = SequenceMatcher(None, before, self._lines, autojunk=False).get_matching_blocks()
        return {a + i: b + i for a, b, size in blocks for i in range(size)}

    @cached_property
    def named(self) -> tuple[Hint, ...]:
        """Return the hints, at their places in the present text."""
        here = (
            replace(n, line=self._moved[n.line])
            for n in self._analysis.named
            if n.line in self._moved
        )
        return tuple(sorted(here, key=lambda n: (n.line, n.column)))

    def line_of(self, line: int) -> Optional[int]:
        """Return the present number of a line of the analysed text; None if it was changed."""
        return self._moved.get(line)

    def word(self, line: int, column: int) -> Optional[tuple[str, int, int]]:
        """Return the name at a place, and the columns of its first character and behind its last."""
        if line >= len(self._lines):
            return None
        for match in _WORD.finditer(self._lines[line]):
            if match.start() <= column <= match.end():
                return match[0], match.start(), match.end()
        return None

    def at(self, line: int, column: int) -> Optional[Hint]:
        """Return the type that the name at a place has: as it was bound last above, in the same function."""
        word = self.word(line, column)
        if word is None:
            return None
        first, last = self._function(line)
        known = [n for n in self.named if n.name == word[0] and first <= n.line <= last]
        above = [n for n in known if (n.line, n.column) <= (line, word[2])]
        return above[-1] if above else known[0] if known else None

    def choices(self) -> Iterator[tuple[int, list[Hint]]]:
        """Yield (line, values) where layouts were chosen that no earlier value of the function has."""
        seen: set[tuple[int, str]] = set()
        lines: dict[int, list[Hint]] = {}
        for one in self.named:
            key = (self._function(one.line)[0], "; ".join(one.layouts))
            if one.chosen and one.layouts and key not in seen:
                seen.add(key)
                lines.setdefault(one.line, []).append(one)
        yield from sorted(lines.items())

    @cached_property
    def _functions(self) -> Sequence[tuple[int, int]]:
        """First and last line of each function, in the analysed text."""
        try:
            tree = ast.parse(self._analysis.text)
        except SyntaxError:
            return ()
        return sorted(
            (node.lineno - 1, (node.end_lineno or node.lineno) - 1)
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        )

    @cached_property
    def _back(self) -> tuple[list[int], list[int]]:
        """Present lines that have an analysed one, and those."""
        pairs = sorted((new, old) for old, new in self._moved.items())
        return [new for new, _ in pairs], [old for _, old in pairs]

    def _function(self, line: int) -> tuple[int, int]:
        """Return the present first and last line of the innermost function around a line; the whole text outside of functions."""
        new, old = self._back
        index = bisect_right(new, line) - 1
        if index < 0:
            return 0, len(self._lines)
        around = [(a, b) for a, b in self._functions if a <= old[index] <= b]
        if not around:
            return 0, len(self._lines)
        a, b = around[-1]
        inside = [n for n, o in zip(new, old) if a <= o <= b]
        return inside[0], max(inside[-1], line)
