"""A profile as tables for a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Optional, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["amount", "cells", "duration", "show", "summary"]

_HEADS = (
    ">line", "source", ">ops", ">global read", ">global written", ">sectors/request",
    ">shared read", ">shared written", ">bank conflicts", ">matrix FLOP", "conversions", ">least time",
)  # fmt: skip


def amount(value: float, unit: str = "") -> str:
    """A count with a decimal prefix: 12345 as 12.3k; nothing for zero."""
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


def _sectors(row: Mapping[str, Any]) -> str:
    """Sectors per request, and in brackets what the same bytes side by side would take."""
    requests = row["read_requests"] + row["write_requests"]
    if not requests:
        return ""
    found = (row["read_sectors"] + row["write_sectors"]) / requests
    ideal = (row["read_ideal"] + row["write_ideal"]) / requests
    return f"{found:.3g}" if found == ideal else f"{found:.3g} (ideal {ideal:.3g})"


def _conflicts(row: Mapping[str, Any]) -> str:
    if not row["conflicts"]:
        return ""
    return f"{amount(row['conflicts'])} ({row['shared_passes'] / row['shared_ideal']:.3g}x)"


def cells(row: Mapping[str, Any]) -> list[str]:
    """The numbers of one line as text, in the order of the table's columns after the source."""
    matrix = ", ".join(f"{amount(n)} {kind}" for kind, n in sorted(row["matrix"].items()))
    convert = ", ".join(f"{amount(n)} {kind}" for kind, n in sorted(row["conversions"].items()))
    if row["conversion_bytes"]:
        convert += f" ({amount(row['conversion_bytes'], 'B')})"
    times = row.get("seconds") or {}
    most = max(times, key=lambda k: times[k]) if times else None
    return [
        amount(row["executed"]),
        amount(row["global_read"], "B"),
        amount(row["global_written"], "B"),
        _sectors(row),
        amount(row["shared_read"], "B"),
        amount(row["shared_written"], "B"),
        _conflicts(row),
        matrix,
        convert,
        f"{duration(times[most])} {most}" if most else "",
    ]


def summary(kernel: Mapping[str, Any]) -> list[str]:
    """A kernel's roofline in words."""
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
    else:
        lines.append(f"no estimate: the peaks of {kernel['target']} are not known")
    return lines


def _cut(source: str, width: int = 60) -> str:
    return source if len(source) <= width else source[: width - 3] + "..."


def _table(title: str, rows: Sequence[Sequence[str]]) -> Table:
    """Columns that are empty in every row are left out; the last row is the sum."""
    made = Table(title=escape(title), title_justify="left", title_style="bold")
    used = [i for i in range(len(_HEADS)) if i < 2 or any(row[i] for row in rows)]
    for i in used:
        head = _HEADS[i]
        made.add_column(head.lstrip(">"), justify="right" if head[0] == ">" else "left")
    for number, row in enumerate(rows):
        if number == len(rows) - 1:
            made.add_section()
        made.add_row(*(escape(row[i]) for i in used))
    return made


def show(report: Sequence[Mapping[str, Any]]) -> None:
    """Print one table per kernel, and its roofline. A pipe gets 160 columns, as there is no edge."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console() if wide else Console(width=160)
    for kernel in report:
        title = (
            f"{kernel['kernel']} on {kernel['target']}: {kernel['launches']} launches, "
            f"{kernel['programs']} programs"
        )
        rows = [[str(r["line"] or ""), _cut(r["source"]), *cells(r)] for r in kernel["lines"]]
        rows.append(["", "all lines", *cells(kernel["total"])])
        console.print(_table(title, rows))
        for text in summary(kernel):
            console.print(text, highlight=False, markup=False)
