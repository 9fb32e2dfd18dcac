"""A profile as one HTML page: the kernel's source with the numbers next to it."""

from __future__ import annotations

import linecache
from html import escape
from typing import Any, Mapping, Sequence

from gluon_sim.tools.profile_text import HEADS, cells, many, summary, used
from gluon_sim.tools.trouble import function_around

__all__ = ["part", "render"]

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
h2 { margin: 1.5em 0 .2em; } p { margin: .2em 0; color: #555; }
table { border-collapse: collapse; margin: .8em 0; }
th, td { padding: 1px 8px; text-align: right; white-space: nowrap; }
th { font-weight: 600; border-bottom: 1px solid #999; position: sticky; top: 0; background: #fff; }
td.code, th.code { text-align: left; font-family: ui-monospace, monospace; white-space: pre; }
td.no { color: #999; } tr.total td { border-top: 1px solid #999; font-weight: 600; }
td.heat { background: linear-gradient(to right, #f5b7a0 var(--part), transparent var(--part)); }
tr:hover td { background-color: #f3f6fa; }
"""


def render(report: Sequence[Mapping[str, Any]]) -> str:
    """Return the page, with everything it needs inside."""
    body = "".join(_kernel(k) for k in report) or "<p>No kernel ran on the simulator.</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Kernel profile</title>'
        f"<style>{_STYLE}</style></head><body><h1>Kernel profile</h1>{body}</body></html>\n"
    )


def part(report: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables for a notebook; their style holds for them alone."""
    body = "".join(_kernel(k) for k in report) or "<p>No kernel ran on the simulator.</p>"
    rules = (rule.strip() for rule in _STYLE.replace("\n", " ").split("}"))
    style = "".join(
        ",".join(f".gluon-profile {one.strip()}" for one in rule.partition("{")[0].split(","))
        + f"{{{rule.partition('{')[2]}}}"
        for rule in rules
        if rule
    )
    return f'<div class="gluon-profile"><style>{style}</style>{body}</div>'


def _kernel(kernel: Mapping[str, Any]) -> str:
    rows = {(r["file"], r["line"]): r for r in kernel["lines"]}
    worst = max((_cost(r) for r in rows.values()), default=0.0)
    columns = used(cells(r) for r in (*kernel["lines"], kernel["total"]))
    heads = [f"<th>{HEADS[i].lstrip('>')}</th>" for i in columns]
    first, rest = _split(columns, heads)
    parts = [
        f"<h2>{escape(kernel['kernel'])} on {escape(kernel['target'])}</h2>",
        f"<p>{many(kernel['launches'], 'launch', 'es')}, {many(kernel['programs'], 'program')}</p>",
        *(f"<p>{escape(line)}</p>" for line in summary(kernel)),
        f'<table><tr>{first}<th></th><th class="code">source</th>{rest}</tr>',
    ]
    for file, lines in _functions(kernel):
        before = "<td></td>" * bool(first)
        parts.append(f'<tr>{before}<td></td><td class="code no">{escape(file)}</td></tr>')
        for line in lines:
            text = linecache.getline(file, line).rstrip("\n")
            row = rows.get((file, line))
            parts.append(_row(line, text, row, worst, columns))
    total = cells(kernel["total"])
    first, rest = _split(columns, [f"<td>{escape(total[i])}</td>" for i in columns])
    text = '<td></td><td class="code">all lines</td>'
    parts.append(f'<tr class="total">{first}{text}{rest}</tr></table>')
    return "\n".join(parts)


def _split(columns: Sequence[int], texts: Sequence[str]) -> tuple[str, str]:
    """Return the cells before the source, the time, and the cells behind it."""
    before = 0 in columns
    return "".join(texts[:before]), "".join(texts[before:])


def _row(line: int, text: str, row: Any, worst: float, columns: Sequence[int]) -> str:
    if row is None:
        columns_ = ["<td></td>"] * len(columns)
    else:
        numbers = cells(row)
        columns_ = [f"<td>{escape(numbers[i])}</td>" for i in columns]
        if 0 in columns:
            part = 100 * _cost(row) / worst if worst else 0
            columns_[0] = f'<td class="heat" style="--part: {part:.0f}%">{escape(numbers[0])}</td>'
    first, rest = _split(columns, columns_)
    return f'<tr>{first}<td class="no">{line}</td><td class="code">{escape(text)}</td>{rest}</tr>'


def _cost(row: Mapping[str, Any]) -> float:
    return max(row["seconds"].values(), default=0.0)


def _functions(kernel: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """(file, its lines to show): the whole of every function that has numbers."""
    out: dict[str, set[int]] = {}
    for row in kernel["lines"]:
        if not row["line"]:
            continue
        shown = out.setdefault(row["file"], set())
        if row["line"] not in shown:
            shown.update(function_around(row["file"], row["line"]))
    return [(file, sorted(lines)) for file, lines in out.items()]
