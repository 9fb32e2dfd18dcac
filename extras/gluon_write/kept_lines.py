"""Keep the lines of a tile in the L2 cache until the programs next to it have loaded the rest of them.

    x = gl.load(x_ptr + i[:, None] * N + j[None, :], mask=mask, eviction_policy="evict_last")

Where rows may begin anywhere, the first and the last line of each row of a tile hold elements of other tiles. A kernel that
transposes stores tiles along the other dimension, so that its neighbours are at work much later. Measured on an H200 alone: a
transpose of 5000x7000 float32 takes 0.977 of the time, one of 4111x8200 float16 0.99.
"""

from __future__ import annotations

import ast
from typing import Any

from gluon_core.plugin.targets import Target
from gluon_write.form import Form, changed_copy
from gluon_write.sketch import place_of
from gluon_write.unknowns import Access, Graph

__all__ = ["with_kept_lines"]

_WHOLE = 128  # bits: rows that are aligned to them come in vectors
_HINTS = frozenset(["cache_modifier", "eviction_policy", "volatile", "cache_policy"])


def with_kept_lines(graph: Graph, target: Target, converts: bool) -> Any:
    """Return a kernel whose tile stays in the cache, or the kernel.

    Args:
        graph: its unknown layouts. converts: the tile changes its layout on the way.
    """
    fn = graph.jits[0]
    if not converts or len(graph.jits) > 1 or not target.has("nvidia.cp_async"):
        return fn
    form = Form(fn)
    if any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(form.tree)):
        return fn
    accesses = [access for one in graph.unknowns for access in one.accesses]
    tiles = [access for access in accesses if len(access.shape) == 2]
    loads = [access for access in tiles if "load" in access.name]
    if len(loads) != 1 or len(tiles) != 2 or not all(map(_begins_anywhere, tiles)):
        return fn
    for node in ast.walk(form.tree):
        if isinstance(node, ast.Call) and place_of(node, 0) == loads[0].place:
            text = _hinted(form, node)
            return changed_copy(fn, graph.jits, {0: text}, {}) if text != fn.src else fn
    return fn


def _begins_anywhere(access: Access) -> bool:
    return access.together * access.bits < _WHOLE


def _hinted(form: Form, call: ast.Call) -> str:
    """Return a text with another argument of a call, and the reason above its statement."""
    if any(word.arg in _HINTS for word in call.keywords):
        return form.source
    statements = [node for node in ast.walk(form.tree) if isinstance(node, ast.stmt)]
    around = [s for s in statements if s.lineno <= call.lineno <= (s.end_lineno or 0)]
    statement = max(around, key=lambda one: one.lineno)
    lines = list(form.encoded)
    last = (call.end_lineno or 0) - 1
    head, rest = lines[last][: (call.end_col_offset or 0) - 1], lines[last][call.end_col_offset :]
    comma = b"" if head.rstrip()[-1:] in (b",", b"") else b","
    lines[last] = head.rstrip() + comma + b' eviction_policy="evict_last")' + rest
    reason = b"# Other programs load the rest of the lines: the L2 cache drops them last."
    lines.insert(statement.lineno - 1, b" " * statement.col_offset + reason)
    return b"\n".join(lines).decode()
