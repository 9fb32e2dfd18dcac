"""From the data of runs to a page: tables as HTML, the rest drawn by the page's own script."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

__all__ = ["pages_of", "render"]

_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.S)


def render(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of these runs, with everything it needs inside."""
    here = Path(__file__).parent
    name = runs[0]["file"] if runs else "no run"
    data = json.dumps(list(runs), separators=(",", ":")).replace("<", "\\u003c")
    body = "".join(_run(number, run) for number, run in enumerate(runs))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(name)}: report of its kernels</title>"
        f"<style>{(here / 'page.css').read_text(encoding='utf-8')}</style></head><body>"
        f"<header><h1>{escape(name)}</h1>{_contents(runs)}</header><main>{body}{_hardware(runs)}</main>"
        '<div id="card" role="tooltip" hidden></div>'
        f'<script id="data" type="application/json">{data}</script>'
        f"<script>{(here / 'page.js').read_text(encoding='utf-8')}</script></body></html>\n"
    )


def pages_of(page: str) -> list[dict[str, Any]]:
    """Return the runs of a rendered page."""
    match = _DATA.search(page)
    runs: list[dict[str, Any]] = json.loads(match[1]) if match else []
    return runs


def _contents(runs: Sequence[Mapping[str, Any]]) -> str:
    links = []
    for number, run in enumerate(runs):
        parts = [("troubles", "mistakes")] if run["troubles"] else []
        parts += [(f"k{i}", k["name"]) for i, k in enumerate(run["kernels"])]
        parts += [("timeline", "timeline")]
        links.append(
            f"<li><b>{escape(run['target'])}</b> "
            + " ".join(f'<a href="#r{number}-{part}">{escape(text)}</a>' for part, text in parts)
        )
    return f'<nav><ul>{"".join(links)}<li><a href="#hardware">hardware</a></ul></nav>'


_UNITS = {
    "registers": "registers of a thread",
    "spills": "spills",
    "shared_memory": "shared memory of a block, B",
    "scratch": "scratch of a thread, B",
    "occupancy": "occupancy, warps",
    "instruction_count": "instructions",
    "num_warps": "warps of a block",
}


def _hardware(runs: Sequence[Mapping[str, Any]]) -> str:
    """Render registers and occupancy, a row for each compiled kernel."""
    rows = []
    for number, run in enumerate(runs):
        for i, kernel in enumerate(run["kernels"]):
            for code in kernel["code"]:
                facts = code["facts"]
                cells = [facts.get(key) for key in _UNITS]
                name = f'<td class="name"><a href="#r{number}-k{i}-code">{escape(code["form"])}</a></td>'
                head = f"{name}<td>{escape(code['target'] or run['target'])}</td>"
                if not facts:
                    text = escape(code["problem"])
                    rows.append(
                        f'<tr>{head}<td class="name" colspan="{len(_UNITS)}">{text}</td></tr>'
                    )
                    continue
                columns = "".join(f"<td>{'unknown' if c is None else c}</td>" for c in cells)
                rows.append(f"<tr>{head}{columns}</tr>")
    if not rows:
        return '<section id="hardware"><h2>Hardware</h2><p>Nothing was compiled.</p></section>'
    heads = "".join(f"<th>{text}</th>" for text in ("kernel", "target", *_UNITS.values()))
    return (
        '<section id="hardware"><h2>Registers and occupancy</h2><div class="wide"><table class="sorted">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _run(number: int, run: Mapping[str, Any]) -> str:
    parts = [f'<section class="run" data-run="{number}"><h2>On {escape(run["target"])}</h2>']
    if run["troubles"]:
        parts.append(f'<section id="r{number}-troubles"><h3>Mistakes</h3>')
        parts += [_trouble(number, run, one) for one in run["troubles"]]
        parts.append("</section>")
    if not run["kernels"]:
        parts.append("<p>No kernel ran on the simulator.</p>")
    parts += [_kernel(f"r{number}-k{i}", kernel) for i, kernel in enumerate(run["kernels"])]
    parts.append(
        f'<section id="r{number}-timeline" class="timeline"><h3>Timeline</h3>'
        "<p>One step for each op of a task; a waiting task goes on when it may. Ctrl and the wheel zoom, "
        "the wheel alone and dragging scroll.</p></section></section>"
    )
    return "".join(parts)


# -- mistakes --------------------------------------------------------------------------------------

_BOX, _GAP, _TALL = 460, 110, 74


def _trouble(number: int, run: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    picture = _picture(number, run, one) if len(one["parties"]) > 1 else ""
    kernel = escape(" in ".join(filter(None, (one["error"], one["kernel"]))))
    return f'<h4>{kernel}</h4><div class="wide">{picture}</div><pre class="message">{escape(one["text"])}</pre>'


def _picture(number: int, run: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """Return the parties as boxes: who waits at the left, the lines that never came at the right. Whole
    arrows point to the awaited event, dashed ones from the task that should come there."""
    parties = one["parties"]
    race = one["relation"] == "no order"
    columns = [i % 2 if race else int(not party["name"]) for i, party in enumerate(parties)]
    places, used = [], [0, 0]
    for column in columns:
        places.append((4 + column * (_BOX + _GAP), 4 + used[column] * (_TALL + 16)))
        used[column] += 1
    parts = []
    for i, party in enumerate(parties):
        for other in party["waits_for"]:
            parts.append(_arrow(places[i], places[other], columns[i], columns[other], race))
    for (x, y), party in zip(places, parties):
        source = f"line {party['line']}: {party['source']}" if party["line"] else ""
        rows = [party["name"] or source, party["action"], source if party["name"] else ""]
        texts = "".join(
            f'<text x="{x + 10}" y="{y + 22 + 20 * n}" class="t{n}">{escape(_cut(row))}'
            f"<title>{escape(row)}</title></text>"
            for n, row in enumerate(rows)
        )
        box = f'<g class="party"><rect x="{x}" y="{y}" width="{_BOX}" height="{_TALL}"/>{texts}</g>'
        link = _row_of(number, run, one, party)
        parts.append(f'<a href="#{link}">{box}</a>' if link else box)
    if race:
        middle = 4 + _BOX + _GAP / 2
        parts.append(f'<text class="between" x="{middle}" y="{_TALL / 2 - 2}">no order</text>')
    width, height = 2 * _BOX + _GAP + 8, max(used) * (_TALL + 16) + 8
    head = '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    return (
        f'<svg class="parties" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="who {escape(one["relation"])}">{head}{"".join(parts)}</svg>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= 62 else text[:61] + "…"


def _arrow(
    start: tuple[float, float], end: tuple[float, float], first: int, second: int, race: bool
) -> str:
    (x1, y1), (x2, y2) = start, end
    shift = 26 if first < second else 48
    x1, x2 = (x1 + _BOX, x2) if first < second else (x1, x2 + _BOX)
    y1, y2 = y1 + shift, y2 + shift
    bend = 50 if first < second else -50
    kind = "race" if race else "wait" if first < second else "stuck"
    return (
        f'<path class="arrow {kind}" d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"/>'
    )


def _row_of(
    number: int, run: Mapping[str, Any], one: Mapping[str, Any], party: Mapping[str, Any]
) -> Optional[str]:
    """Return the id of the row of source that a party is at."""
    for i, kernel in enumerate(run["kernels"]):
        same = (kernel["name"], kernel["target"]) == (one["kernel"], one["target"])
        if same and party["line"] and party["file"] in kernel["files"]:
            return f"r{number}-k{i}-{kernel['files'].index(party['file'])}-{party['line']}"
    return None


# -- kernels ---------------------------------------------------------------------------------------


def _kernel(name: str, kernel: Mapping[str, Any]) -> str:
    launches, programs = kernel["launches"], kernel["programs"]
    tally = f"{launches} launch{'es' * (launches != 1)}, {programs} program{'s' * (programs != 1)}"
    summary = "".join(f"<p>{escape(line)}</p>" for line in (tally, *kernel["summary"]))
    return (
        f'<section id="{name}" class="kernel"><h3>{escape(kernel["name"])}</h3>{summary}'
        f"{_profile(name, kernel)}{_banks(name, kernel)}{_code(name, kernel)}</section>"
    )


def _profile(name: str, kernel: Mapping[str, Any]) -> str:
    columns = list(kernel["columns"])
    heat = columns[:1]
    heads = [*heat, "line", "source", *columns[1:]]
    rows = "".join(_profile_rows(name, kernel))
    total = kernel["total"]
    sums = [*total[:1], "", "all lines", *total[1:]]
    foot = "".join(f"<td>{escape(text)}</td>" for text in sums) if total else ""
    head = "".join(
        f"<th{' class=source' if text == 'source' else ''}>{escape(text).replace('/', '/<wbr>')}</th>"
        for text in heads
    )
    return (
        '<div class="wide"><table class="sorted profile">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody><tfoot><tr>{foot}</tr></tfoot>"
        "</table></div>"
    )


def _profile_rows(name: str, kernel: Mapping[str, Any]) -> Iterator[str]:
    by_line = {row["at"]: row for row in kernel["lines"]}
    most = max((row["by"][0] for row in kernel["lines"] if row["by"]), default=0)
    heats = bool(kernel["columns"])
    for source in kernel["source"]:
        for order, (line, text) in enumerate(source["rows"]):
            place = f"{source['number']}:{line}"
            row = by_line.get(place)
            cells = row["cells"] if row else ("",) * len(kernel["columns"])
            by = row["by"] if row else (0,) * len(kernel["columns"])
            first, rest = "", ""
            if heats:
                part = 100 * by[0] / most if most else 0
                first = (
                    f'<td class="heat" data-by="{by[0]}" style="--part:{part:.1f}%">'
                    f"{escape(cells[0])}</td>"
                )
                rest = "".join(
                    f'<td data-by="{number}">{escape(cell)}</td>'
                    for cell, number in zip(cells[1:], by[1:])
                )
            held = " held" if place in kernel["values"] else ""
            focus = ' tabindex="0"' if held else ""
            yield (
                f'<tr id="{name}-{source["number"]}-{line}" data-at="{place}">{first}'
                f'<td class="no" data-by="{source["number"] * 1000000 + line}">{line}</td>'
                f'<td class="source{held}"{focus} data-by="{order}"><code>{_indented(text)}</code></td>{rest}</tr>'
            )


def _indented(text: str) -> str:
    bare = text.lstrip()
    return f"{text[: len(text) - len(bare)]}<span>{escape(bare)}</span>"


def _banks(name: str, kernel: Mapping[str, Any]) -> str:
    if not kernel["banks"]:
        return ""
    most = max(use["passes"] for use in kernel["banks"])
    rows = []
    for use in kernel["banks"]:
        extra = use["passes"] - use["ideal"]
        link = f"{name}-{use['at'].replace(':', '-')}"
        cured = "" if use["cured"] is None else f"{use['cured']} passes"
        cure = _layout(use["cure"], use["cure_picture"]) if use["cure"] else ""
        note = f"<span>{escape(use['note'])}</span>" if use["note"] and extra else ""
        none = "<span>this line has no conflicts</span>" if not extra else ""
        rows.append(
            f'<tr><td class="heat" data-by="{extra}" style="--part:{100 * extra / most:.1f}%">'
            f"{extra or ''}</td>"
            f'<td class="no" data-by="{use["line"]}"><a href="#{link}">{use["line"]}</a></td>'
            f"<td>{use['way']}</td><td data-by={use['passes']}>{use['passes']}</td>"
            f"<td data-by={use['ideal']}>{use['ideal']}</td>"
            f'<td class="name">{_layout(use["buffer"], use["buffer_picture"])} (line {use["buffer_line"]})</td>'
            f'<td class="name cure">{cure}{note}{none}</td><td>{cured}</td></tr>'
        )
    heads = (
        "extra passes", "line", "way", "passes", "without conflicts", "layout of the buffer",
        "layout that cures it", "with it",
    )  # fmt: skip
    head = "".join(f"<th>{text}</th>" for text in heads)
    return (
        f'<h4 id="{name}-banks">Banks of shared memory</h4><div class="wide"><table class="sorted banks">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _layout(text: str, picture: Optional[int]) -> str:
    attributes = "" if picture is None else f' class="held" tabindex="0" data-picture="{picture}"'
    return f"<code{attributes}>{escape(text)}</code>"


def _code(name: str, kernel: Mapping[str, Any]) -> str:
    """Return the frame of the two columns; the script fills them."""
    forms = [(i, code) for i, code in enumerate(kernel["code"]) if code["entries"]]
    problems = "".join(
        f"<p>{escape(code['form'])}: {escape(code['problem'])}</p>"
        for code in kernel["code"]
        if code["problem"]
    )
    options = "".join(
        f'<option value="{i}:{j}">{escape(entry["name"])} of {escape(code["form"])} for '
        f"{escape(code['target'])}</option>"
        for i, code in forms
        for j, entry in enumerate(code["entries"])
    )
    if not options:
        return f'<h4 id="{name}-code">Emitted code</h4>{problems or "<p>None.</p>"}'
    return (
        f'<h4 id="{name}-code">Emitted code</h4>{problems}'
        f'<label>Next to the source: <select class="entry">{options}</select></label>'
        '<div class="side-by-side"><pre class="lines"></pre><pre class="emitted"></pre></div>'
    )
