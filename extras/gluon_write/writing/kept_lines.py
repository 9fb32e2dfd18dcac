"""Transpose a tile whose rows may begin anywhere in a buffer with room for three.

The first and the last line of each row of such a tile hold elements of other tiles. A kernel that transposes stores tiles
along the other dimension, so that its neighbours are at work much later. On Hopper shared memory then leaves little of its space
to the L1 cache, and none to programs whose tiles would take more than a third of it at once: of transposes with odd sizes each
took 0.90 to 0.98 of the time. That was with tiles of 64x64; with 32x32 float32 on four warps it took 1.06 and 1.19. A hint to keep
lines in the L2 cache takes 0.97 to 1.00 where the operand comes from memory, and 1.03 to 1.08 where part of it is in the cache: not
taken.

    buffers = gl.allocate_shared_memory(x.dtype, [3, B, B])
    buffers.index(0).store(x)
    gl.store(out_ptr + j[:, None] * M + i[None, :], buffers.index(0).permute((1, 0)).load(tile_layout), mask=mask.T)
"""

from __future__ import annotations

import ast
import math
from typing import Any, Optional

from gluon_core import language
from gluon_core.layouts import BlockedLayout, SwizzledSharedLayout
from gluon_core.plugin.targets import Target
from gluon_write.loops.loops import viewed
from gluon_write.solver.solve import Solution
from gluon_write.solver.unknowns import Access, Graph
from gluon_write.text.form import Form, changed_copy, free_name
from gluon_write.text.syntax import argument, calls_in, mentions, nodes_in
from gluon_write.tracing.sketch import place_of

__all__ = ["with_kept_lines"]

_WHOLE = 128  # bits: rows that are aligned to them come in vectors
_TILES = 3  # for which a buffer has room
_LEAST = 64 * 64  # elements of a tile that goes through one
_THREADS = 2048  # of a multiprocessor
_HINTS = frozenset(["cache_modifier", "eviction_policy", "volatile", "cache_policy"])


def with_kept_lines(graph: Graph, solution: Solution, target: Target, converts: bool) -> Any:
    """Return a kernel whose tile stays in the cache, or the kernel.

    Args:
        graph, solution: its unknown layouts. converts: the tile changes its layout on the way.
    """
    fn = graph.jits[0]
    if not converts or len(graph.jits) > 1 or not target.has("nvidia.cp_async"):
        return fn
    form = Form(fn)
    if any(isinstance(node, (ast.For, ast.While)) for node in nodes_in(form.tree)):
        return fn
    accesses = [access for one in graph.unknowns for access in one.accesses]
    tiles = [access for access in accesses if len(access.shape) == 2]
    loads = [access for access in tiles if "load" in access.name]
    if len(loads) != 1 or len(tiles) != 2 or not all(map(_begins_anywhere, tiles)):
        return fn
    stores = [access for access in tiles if access not in loads]
    load, store = (_call_of(form, one[0].place) for one in (loads, stores))
    if load is None or store is None or any(word.arg in _HINTS for word in load.keywords):
        return fn
    if not target.has("nvidia.wgmma") or not _fills(graph, loads[0], target):
        return fn
    stored = next(one for one in graph.unknowns if stores[0] in one.accesses)
    if not _buffer(form, load, store, loads[0].shape, solution.chosen[stored.number]):
        return fn
    return changed_copy(fn, graph.jits, {0: b"\n".join(form.encoded).decode()}, {})


def _call_of(form: Form, place: Any) -> Optional[ast.Call]:
    """Return the call at a place."""
    calls = calls_in(form.tree)
    return next((call for call in calls if place_of(call, 0) == place), None)


def _fills(graph: Graph, access: Access, target: Target) -> bool:
    """Return True if the buffers of all programs that a multiprocessor has threads for fill most of its shared memory."""
    room = target.architecture.limits.shared_memory
    size = _TILES * math.prod(access.shape) * access.bits // 8
    programs = _THREADS // (graph.warps * target.warp_size)
    if math.prod(access.shape) < _LEAST:
        return False
    known = access.bits > 8  # bytes may be truth values, which no buffer takes
    return known and size <= room // 2 and 4 * programs * size >= 3 * room


def _buffer(
    form: Form, load: ast.Call, store: ast.Call, shape: tuple[int, ...], layout: Any
) -> bool:
    """Change a text so that a tile is transposed in a buffer, and return True; what follows a load changes alone.

    Args:
        layout: of the tile that is stored.
    """
    value = argument(store, 1, "value")
    name = viewed(value, form) if value is not None else None
    space = next((n for n, v in form.scope.items() if v is language), None)
    body = form.tree.body
    makers = [s for s in body if isinstance(s, ast.Assign) and s.value is load]
    users = [s for s in body if isinstance(s, ast.Expr) and s.value is store]
    if None in (name, space) or not makers or not users:
        return False
    named = [n for n in nodes_in(form.tree) if isinstance(n, ast.Name) and n.id == name]
    if len(named) != 2 or mentions(makers[0].targets[0]) != {name}:
        return False
    if not isinstance(layout, BlockedLayout) or layout.size_per_thread != [1, 1]:
        return False
    assert value is not None and value.end_lineno is not None
    taken = form.names_in_use()
    buffers, tile = (free_name(f"{name}_{word}", taken) for word in ("buffers", "stored_layout"))
    swizzled = SwizzledSharedLayout(1, 1, shape[1], [1, 0])
    first, last = value.lineno - 1, value.end_lineno - 1
    across = "" if isinstance(value, ast.Name) else ".permute((1, 0))"
    begin = form.encoded[first][: value.col_offset]
    end = form.encoded[last][value.end_col_offset :]
    form.encoded[first : last + 1] = [
        begin + f"{buffers}.index(0){across}.load({tile})".encode() + end
    ]
    indent = b" " * users[0].col_offset
    lines = [
        "# Room for more than one tile keeps other programs, and the L1 cache, from the lines of this one.",
        f"{tile}: {space}.constexpr = {space}.{_text(layout)}",
        f"{buffers} = {space}.allocate_shared_memory(",
        f"    {name}.dtype, [{_TILES}, {', '.join(map(str, shape))}], {space}.{_text(swizzled)}",
        ")",
        f"{buffers}.index(0).store({name})",
    ]
    number = users[0].lineno - 1
    form.encoded[number:number] = [indent + line.encode() for line in lines]
    return True


def _text(layout: Any) -> str:
    """Return the call that makes a layout."""
    return str(layout).replace(", cga_layout=[]", "")


def _begins_anywhere(access: Access) -> bool:
    return access.together * access.bits < _WHOLE
