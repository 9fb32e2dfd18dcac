"""Name the layouts of a written function by the values that have them."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping, Sequence

from gluon_core.layouts import SliceLayout
from gluon_write.solver.solve import Solution
from gluon_write.solver.unknowns import AnyLayout, Graph, Unknown
from gluon_write.text.form import free_name
from gluon_write.tracing.pointer_names import pointer_name

__all__ = ["layout_names"]

_ENDING = "_layout"


def layout_names(
    source: str, layouts: Iterable[AnyLayout], graph: Graph, solution: Solution
) -> dict[AnyLayout, str]:
    """Return the layouts in use with their names, those that others are made of first.

    Args:
        source: of the function, whose names are taken.
    """
    wanted: list[AnyLayout] = []

    def want(layout: Any) -> None:
        parent = getattr(layout, "parent", None)
        if parent is not None:
            want(parent)
        if layout not in wanted:
            wanted.append(layout)

    for layout in layouts:
        want(layout)
    taken = set(re.findall(r"\w+", source))
    named: dict[AnyLayout, str] = {}
    for layout in wanted:
        users = [u for u in graph.unknowns if solution.chosen[u.number] == layout]
        users.sort(key=lambda u: (-len(u.accesses), u.number))
        word = _value(users) or _part(layout, named) or _pointer(users, graph)
        named[layout] = free_name(f"{word}{_ENDING}".lstrip("_"), taken)
    return named


def _value(users: Sequence[Unknown]) -> str:
    """Return the name of a value with a layout, "" where the source names none."""
    for user in users:
        for name, homes in user.homes.items():
            if name.isidentifier() and any(home is not None for home in homes):
                return name
    return ""


def _part(layout: AnyLayout, named: Mapping[AnyLayout, str]) -> str:
    """Return a word for the dimensions that a slice keeps: `tile_rows`, `v_dim_1`; "" of other layouts."""
    root, kept = _sliced(layout)
    if root is layout:
        return ""
    whole = named[root].removesuffix(_ENDING.lstrip("_")).rstrip("_")
    parts, dims = ("rows", "columns"), "dim" if len(kept) == 1 else "dims"
    part = parts[kept[0]] if root.rank == len(parts) else "_".join([dims, *map(str, kept)])
    return f"{whole}_{part}"


def _sliced(layout: AnyLayout) -> tuple[Any, list[int]]:
    """Return the layout that slices are of, and its dimensions that are left."""
    if not isinstance(layout, SliceLayout):
        return layout, list(range(layout.rank))
    root, kept = _sliced(layout.parent)
    return root, [d for index, d in enumerate(kept) if index != layout.dim]


def _pointer(users: Sequence[Unknown], graph: Graph) -> str:
    """Return the name of a parameter that is accessed with a layout, "" without any."""
    places = (access.place for user in users for access in user.accesses)
    return next(filter(None, (pointer_name(graph.jits, place) for place in places)), "")
