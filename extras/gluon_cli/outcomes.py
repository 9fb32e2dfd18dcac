"""The outcome of a kernel in its machine code, as text and as JSON, for `explain` and `compile`."""

from __future__ import annotations

import os
from linecache import getline
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional

from rich.table import Table

from gluon_cli.output import table
from gluon_core.registry.load import registry

if TYPE_CHECKING:
    from gluon_cli.outcome import LineOutcome, OpOutcome

__all__ = [
    "counted",
    "line_as_dict",
    "line_rows",
    "line_table",
    "near_place",
    "not_taken",
    "op_as_dict",
    "verdict",
]


def counted(counts: Mapping[str, int]) -> str:
    """Return the number of each instruction as text, such as `8 LDG.128, 2 STG`."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def near_place(where: Optional[str]) -> str:
    """Return `file:line` of a kernel, relative to the current folder where it is below it."""
    if where is None or os.sep not in where:
        return where or ""
    near = os.path.relpath(where)
    return os.path.basename(where) if near.startswith("..") else near


def verdict(op: OpOutcome) -> Optional[str]:
    """Return whether the compiler kept the lowering, None where nothing is known."""
    if op.kept is None:
        return None
    if op.kept:
        return "kept by the compiler"
    instead = f"; its line has {counted(op.instead)}" if op.instead else ""
    return f"NOT in the machine code{instead}"


def not_taken(op: OpOutcome) -> str:
    """Return the reasons against the other lowerings; those for other vendors' hardware in one line."""
    selection = op.selection
    own = selection.target.architecture.backend
    foreign = [
        low.name
        for low, _ in selection.rejected
        if registry().contributor(low).plugin != own
        and not all(map(selection.target.has, low.requires))
    ]
    lines = [f"{low.name}: {why}" for low, why in selection.rejected if low.name not in foreign]
    if foreign:
        lines.append(f"for other hardware: {', '.join(foreign)}")
    return "\n".join(lines) or "there is no other"


def op_as_dict(op: OpOutcome) -> dict[str, Any]:
    selection = op.selection
    return {
        "op": selection.op,
        "where": selection.where,
        "taken": selection.chosen.name,
        "contributed_by": registry().contributor(selection.chosen).plugin,
        "kept": op.kept,
        "instead": dict(op.instead),
        "not_taken": {low.name: reason for low, reason in selection.rejected},
    }


def line_as_dict(line: LineOutcome) -> dict[str, Any]:
    code = line.code
    return {
        "file": code.file,
        "line": code.line,
        "instructions": dict(code.counts),
        "narrowest_bytes": None if code.narrowest is None else code.narrowest[1],
        "note": line.note,
        "arguments": list(line.arguments),
    }


def line_table(name: str, lines: tuple[LineOutcome, ...]) -> Table:
    rows = [entry for row in line_rows(lines) for entry in (row, None)]
    title = f"machine code of {name}: global memory and matrix products, by line"
    return table(title, ("line", "instructions"), rows)


def line_rows(lines: tuple[LineOutcome, ...]) -> Iterator[tuple[str, str]]:
    """Yield a row for each line of the source: its text, and its instructions with the note below."""
    for line in lines:
        code = line.code
        place = near_place(f"{code.file}:{code.line}") if code.line else "no line"
        text = getline(code.file, code.line).strip() if code.line else ""
        summary = counted(code.counts) + (f"\n{line.note}" if line.note else "")
        yield (f"{place}\n{text}" if text else place), summary
