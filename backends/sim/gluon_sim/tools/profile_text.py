"""A profile as tables for a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

__all__ = ["HEADS", "amount", "cells", "duration", "many", "pieces", "show", "summary", "used"]

# The columns of a profile next to a line's number and text, the most important first.
HEADS = (
    ">least time", ">ops", ">global read", ">global written", ">sectors/request",
    ">shared read", ">shared written", ">bank conflicts", "matrix FLOP", "conversions",
)  # fmt: skip
# ... and which of them share a table where one for all is too wide.
_TOPICS = {"": (0, 1), "memory": (2, 3, 4, 5, 6, 7), "products and conversions": (8, 9)}
_LEAST_SOURCE = 40  # columns of source next to all the numbers


def amount(value: float, unit: str = "") -> str:
    """Return a count with a decimal prefix: 12345 as 12.3k; nothing for zero."""
    if not value:
        return ""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or prefix == "T":
            break
        value /= 1000
    text = f"{value:.0f}" if prefix == "" and float(value).is_integer() else f"{value:.3g}"
    return f"{text}{' ' if unit else ''}{prefix}{unit}"


def duration(seconds: Optional[float]) -> str:
    if not seconds:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-12:.3g} ps"


def many(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{plural if count != 1 else ''}"


def _sectors(row: Mapping[str, Any]) -> str:
    """Sectors per request, and in brackets the number for contiguous bytes."""
    requests = row["read_requests"] + row["write_requests"]
    if not requests:
        return ""
    average = (row["read_sectors"] + row["write_sectors"]) / requests
    ideal = (row["read_ideal"] + row["write_ideal"]) / requests
    return f"{average:.3g}" if average == ideal else f"{average:.3g} (ideal {ideal:.3g})"


def _conflicts(row: Mapping[str, Any]) -> str:
    if not row["conflicts"]:
        return ""
    return f"{amount(row['conflicts'])} ({row['shared_passes'] / row['shared_ideal']:.3g}x)"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the numbers of one line as text, in the order of `HEADS`."""
    matrix = ", ".join(f"{amount(n)} {kind}" for kind, n in sorted(row["matrix"].items()))
    convert = ", ".join(f"{amount(n)} {kind}" for kind, n in sorted(row["conversions"].items()))
    if row["conversion_bytes"]:
        convert += f" ({amount(row['conversion_bytes'], 'B')})"
    times = row.get("seconds") or {}
    most = max(times, key=lambda k: times[k]) if times else None
    return [
        f"{duration(times[most])} {most}" if most else "",
        amount(row["executed"]),
        amount(row["global_read"], "B"),
        amount(row["global_written"], "B"),
        _sectors(row),
        amount(row["shared_read"], "B"),
        amount(row["shared_written"], "B"),
        _conflicts(row),
        matrix,
        convert,
    ]


def summary(kernel: Mapping[str, Any]) -> list[str]:
    """Return a kernel's roofline in words."""
    roof = kernel["roofline"]
    lines = [
        f"{amount(roof['footprint'], 'B') or '0 B'} of global memory touched, "
        f"{amount(roof['traffic'], 'B') or '0 B'} of sectors requested, "
        f"{amount(roof['flops'], 'FLOP') or 'no FLOP'}"
        + (f", {roof['intensity']:.3g} FLOP/B" if roof["intensity"] else "")
    ]
    if roof["bound"]:
        rest = ", ".join(f"{k} {duration(v)}" for k, v in roof["times"].items())
        lines.append(f"at least {duration(roof['seconds'])}, bound by {roof['bound']} ({rest})")
    elif roof["traffic"] or roof["flops"]:
        lines.append(f"no estimate: the peaks of {kernel['target']} are not known")
    return lines


def used(rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the columns of `HEADS` that are not empty in every row."""
    filled = list(rows)
    return [i for i in range(len(HEADS)) if any(row[i] for row in filled)]


def _tables(title: str, kernel: Mapping[str, Any], width: int) -> Iterator[Table]:
    """Return one table where `width` holds it, else one for each topic; the last row is the sum."""
    rows = [(str(r["line"] or ""), str(r["source"]), cells(r)) for r in kernel["lines"]]
    rows.append(("", "all lines", cells(kernel["total"])))
    columns = used(numbers for _, _, numbers in rows)
    whole = sum(2 + max(len(HEADS[i].lstrip(">")), *(len(r[2][i]) for r in rows)) for i in columns)
    room = width - whole - 10  # of the line numbers and the edges
    if room >= _LEAST_SOURCE:
        yield _table(title, rows, columns, room)
        return
    for topic, all_of_it in _TOPICS.items():
        shown = [i for i in all_of_it if i in columns]
        some = [row for row in rows if any(row[2][i] for i in shown)]
        if topic and some:
            yield _table(f"{kernel['kernel']}, {topic}", some, shown, None)
        elif not topic:
            yield _table(title, rows, shown, width - 10 - 2 * len(shown) - _width(rows, shown))


def _width(rows: Sequence[tuple[str, str, list[str]]], columns: Sequence[int]) -> int:
    return sum(max(len(HEADS[i]) - 1, *(len(row[2][i]) for row in rows)) for i in columns)


def _table(
    title: str,
    rows: Sequence[tuple[str, str, list[str]]],
    columns: Sequence[int],
    source: Optional[int],
) -> Table:
    """Return a table of these columns; `source` is the room for the lines' text, None to leave it out."""
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    table.add_column("line", justify="right", no_wrap=True)
    first = [i for i in columns if i == 0 and source is not None]
    rest = [i for i in columns if i not in first]
    _add(table, first)
    if source is not None:
        table.add_column("source", no_wrap=True, overflow="ellipsis", max_width=max(12, source))
    _add(table, rest)
    for number, (line, text, numbers) in enumerate(rows):
        if number == len(rows) - 1:
            table.add_section()
        cells = [line if source is not None or line else "all"]
        cells += [numbers[i] for i in first] + [text] * (source is not None)
        table.add_row(*(escape(cell) for cell in (*cells, *(numbers[i] for i in rest))))
    return table


def _add(table: Table, columns: Sequence[int]) -> None:
    for i in columns:
        name = HEADS[i]
        text = name.lstrip(">").replace(" ", "\n", 1) if len(name) > 11 else name.lstrip(">")
        text = text.replace("sectors/", "sectors/\n")
        right = name[0] == ">"
        table.add_column(text, justify="right" if right else "left", no_wrap=right)


def show(report: Sequence[Mapping[str, Any]]) -> None:
    """Print one table per kernel, and its roofline. A pipe gets 160 columns, as there is no edge."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console() if wide else Console(width=160)
    for piece in pieces(report, console.width):
        console.print(piece)


def pieces(report: Sequence[Mapping[str, Any]], width: int) -> Iterator[Union[Table, Text]]:
    """Yield the renderables that `show` prints, for any console of rich."""
    for kernel in report:
        title = (
            f"{kernel['kernel']} on {kernel['target']}: {many(kernel['launches'], 'launch', 'es')}, "
            f"{many(kernel['programs'], 'program')}"
        )
        yield from _tables(title, kernel, width)
        yield from map(Text, summary(kernel))
