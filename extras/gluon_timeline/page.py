"""One page for timelines, with everything it needs inside: lanes per warp, shares, lines of source."""

from __future__ import annotations

import json
import linecache
from html import escape
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import gluon_report.report
from gluon_timeline.decode import Launch

__all__ = ["launch_data", "predicted_alone", "render", "source"]

BLOCKS = 16  # of a launch whose lanes a page can show


def launch_data(launch: Launch) -> dict[str, Any]:
    """Return a launch as plain data. Shares count all blocks; lanes are kept of `BLOCKS` of them, the slowest included."""
    ends: dict[int, float] = {}
    begins: dict[int, float] = {}
    for span in launch.spans:
        ends[span.block] = max(ends.get(span.block, 0.0), span.end)
        begins.setdefault(span.block, span.begin)
        begins[span.block] = min(begins[span.block], span.begin)
    slowest = sorted(ends, key=lambda block: begins[block] - ends[block])[: BLOCKS // 4]
    kept = sorted({*slowest, *sorted(ends)[: BLOCKS - len(slowest)]})
    scopes = sorted({(span.scope, span.line, span.file) for span in launch.spans})
    number = {scope: i for i, scope in enumerate(scopes)}
    blocks: dict[int, dict[str, Any]] = {}
    for span in launch.spans:
        if span.block in kept:
            block = blocks.setdefault(span.block, {"block": span.block, "sm": span.sm, "lanes": {}})
            block["lanes"].setdefault(f"warp {span.warp}", []).append(
                [number[span.scope, span.line, span.file], round(span.begin, 1), round(span.end, 1),
                 span.depth]
            )  # fmt: skip
    return {
        "kernel": launch.kernel,
        "nanoseconds": launch.nanoseconds,
        "warps": launch.warps,
        "dropped": launch.dropped,
        "unpaired": launch.unpaired,
        "scopes": [[name, line, file, source(file, line)] for name, line, file in scopes],
        "blocks": [blocks[block] for block in kept],
        "left_out": len(ends) - len(kept),
        "shares": [list(row) for row in launch.shares()],
        "roles": [[role, [list(part) for part in parts]] for role, parts in launch.roles()],
        "limits": [list(row) for row in launch.limits()],
    }


def predicted_alone(predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prediction as a launch without measured lanes."""
    return {
        "kernel": predicted["kernel"], "nanoseconds": predicted["nanoseconds"], "warps": 0, "dropped": 0, "unpaired": 0,
        "scopes": [], "blocks": [], "left_out": 0, "shares": [], "roles": [], "limits": [], "predicted": predicted,
    }  # fmt: skip


def source(file: str, line: int) -> str:
    """Return a line of a file, empty where it cannot be read."""
    return linecache.getline(file, line).strip() if file else ""


def render(
    launches: Sequence[Mapping[str, Any]],
    below: Optional[Sequence[Mapping[str, Any]]] = None,
    title: str = "Timeline",
) -> str:
    """Return the page of these launches, with the processes of another trace below the lanes.

    Args:
        launches: of `launch_data`.
        below: of `imports.processes`; each is scaled to the length of the block above it.
    """
    here = Path(__file__).parent
    css = (Path(gluon_report.report.__file__).parent / "page.css").read_text(encoding="utf-8")
    own = (here / "page.css").read_text(encoding="utf-8")
    script = (here / "page.js").read_text(encoding="utf-8")
    data = json.dumps(
        {"launches": list(launches), "below": list(below or ())}, separators=(",", ":")
    )
    data = data.replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{css}{own}</style></head><body>"
        f'<header><h1>{escape(title)}</h1></header><main id="page"></main>'
        f'<script id="data" type="application/json">{data}</script><script>{script}</script></body></html>\n'
    )
