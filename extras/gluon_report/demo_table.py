"""The table of `gluon demo`: a line for each example, printed when it is done, a column for each target."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Mapping, Optional, Sequence

__all__ = ["LEGEND", "DemoTable", "Row"]

LEGEND = (
    "number: 32-bit registers per thread, +N: spilled; s: seconds on the simulator",
    "-: skipped, the target lacks a unit that the kernel needs; FAILED: see below the line",
)
_NAME = 16  # the least width of the column of names
_WIDTHS = {"simulate": 14, "compile": 6, "run": 13}


@dataclass(frozen=True)
class Row:
    """One result of the demo.

    Args:
        kind: "simulate", "compile" or "run".
        result: "passed", "failed" or "skipped".
        reason: for a result that is not "passed".
    """

    example: str
    target: str
    kind: str
    result: str
    reason: str = ""
    seconds: float = 0.0
    registers: Optional[int] = None
    spills: Optional[int] = None
    shared_memory: Optional[int] = None
    instruction_count: Optional[int] = None
    instruction_mix: Mapping[str, int] = field(default_factory=dict)


class DemoTable:
    """Args:
    columns: kind and target of each; the target of a simulation differs between examples.
    names: of all examples.
    width: of the screen. Results that do not fit into columns are written as words below each name.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], names: Sequence[str], width: int):
        targets = [target for kind, target in columns if kind == "compile"]
        short = [target.rpartition(":")[2] for target in targets]
        alone = len(set(short)) == len(short)
        self._titles: dict[tuple[str, str], str] = {}
        for kind, target in columns:
            title = target.rpartition(":")[2] if alone else target
            self._titles[kind, target] = {"simulate": "simulated", "run": f"on {title}"}.get(
                kind, title
            )
        self._widths = {
            column: max(_WIDTHS[column[0]], len(title)) for column, title in self._titles.items()
        }
        room = width - sum(size + 2 for size in self._widths.values())
        self._name = min(room, max(map(len, names), default=0))
        self._columns = self._name >= _NAME
        self._width = width

    def header(self) -> list[str]:
        if not self._columns:
            return []
        return [self._line("", {column: title for column, title in self._titles.items()})]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Return the lines of one example."""
        if not rows:
            return []
        cells = {_column(row): _cell(row) for row in rows}
        if self._columns:
            lines = [self._line(rows[0].example, cells)]
        else:
            words = "  ".join(
                f"{title} {cells[column]}".replace(" ", "\0")
                for column, title in self._titles.items()
                if column in cells
            )
            lines = self._wrapped(rows[0].example, "") + [
                line.replace("\0", " ") for line in self._wrapped(words, "  ")
            ]
        for row in rows:
            if row.result == "failed":
                lines += self._wrapped(f"FAILED on {row.target}: {row.reason}", "  ")
        return lines

    def _line(self, name: str, cells: dict[tuple[str, str], str]) -> str:
        if len(name) > self._name:
            name = f"{name[: self._name - 1]}…"
        line = name.ljust(self._name)
        for column, size in self._widths.items():
            line += f"  {cells.get(column, ''):>{size}}"
        return line.rstrip()

    def _wrapped(self, text: str, indent: str) -> list[str]:
        return textwrap.wrap(text, self._width, initial_indent=indent, subsequent_indent=indent)


def _column(row: Row) -> tuple[str, str]:
    return row.kind, "" if row.kind == "simulate" else row.target


def _cell(row: Row) -> str:
    if row.result != "passed":
        return {"failed": "FAILED", "skipped": "-"}[row.result]
    if row.kind == "simulate":
        return f"{row.target.rpartition(':')[2]} {row.seconds:.1f} s"
    if row.kind == "run":
        return f"{row.seconds:.1f} s"
    spilled = f"+{row.spills}" if row.spills else ""
    return "passed" if row.registers is None else f"{row.registers}{spilled}"
