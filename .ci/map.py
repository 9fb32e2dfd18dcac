"""The map of the house, drawn from the import graph.

    python .ci/map.py            writes it into docs/architecture.md
    python .ci/map.py --check    fails where the page is stale, a room imports what stands below it,
                                 files import each other in a circle, or rooms know too many others

Imports inside functions count; those for type checkers alone do not.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import sys
from collections import defaultdict
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by .ci/map.py: {} -->", "<!-- end -->"
MOST_EDGES = 70  # between rooms of the core

VENDORS = ("gluon_nvidia", "gluon_amd")

Edges = dict[tuple[str, str], set[str]]  # (importer, imported) -> the modules that import


def rooms() -> dict[str, list[str]]:
    """Package -> its rooms; each may import those before it. As the contracts of pyproject say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    return {c["containers"][0]: c["layers"][::-1] for c in contracts if c["type"] == "layers"}


ROOMS = rooms()


def room_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or package


def first_line(package: str, room: str) -> str:
    """The first sentence of a room's docstring."""
    spec = importlib.util.find_spec(package)
    base = Path(spec.submodule_search_locations[0], room)
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    sentence = text.replace("\n", " ").partition(". ")[0].strip().rstrip(".")
    if not sentence:
        raise SystemExit(f"{package}.{room} has no docstring to take its line of the map from")
    return sentence


def edges_of(graph: grimp.ImportGraph, package: str) -> Edges:
    found: Edges = defaultdict(set)
    for module in graph.modules:
        if module.partition(".")[0] != package or module == package:
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.partition(".")[0] == package and imported != package:
                pair = room_of(module), room_of(imported)
                if pair[0] != pair[1]:
                    found[pair].add(module)
    return found


def problems_of(graph: grimp.ImportGraph, package: str, edges: Edges) -> list[str]:
    order = ROOMS[package]
    said = [
        f"{package}: the room {room!r} stands nowhere in ROOMS"
        for room in sorted({room for pair in edges for room in pair} - set(order))
    ]
    if said:
        return said
    for (importer, imported), modules in sorted(edges.items()):
        if order.index(imported) > order.index(importer):
            where = ", ".join(sorted(modules))
            said.append(
                f"{package}: {importer} imports {imported}, which stands below it, in {where}"
            )
    return said


def circles(graph: grimp.ImportGraph) -> list[str]:
    """The first circle of files, if there is one."""
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for module in sorted(graph.modules):
        # A package's own file imports its parts, and importing a part runs the package's file:
        # that is no circle between files.
        sorter.add(module, *sorted(graph.find_modules_directly_imported_by(module)))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return [f"files import each other in a circle: {' <- '.join(error.args[1])}"]
    return []


def reduced(edges: Edges, order: list[str]) -> list[tuple[str, str]]:
    """The edges that no path over others implies: what a picture needs."""
    direct: dict[str, set[str]] = defaultdict(set)
    for importer, imported in edges:
        direct[importer].add(imported)
    reach: dict[str, set[str]] = {}
    for room in order:
        reach[room] = set(direct[room])
        for other in direct[room]:
            reach[room] |= reach.get(other, set())
    return [
        (importer, imported)
        for importer in order
        for imported in sorted(direct[importer], key=order.index)
        if not any(imported in reach[other] for other in direct[importer] - {imported})
    ]


def drawing(package: str, edges: Edges) -> str:
    order = ROOMS[package]
    lines = ["| room | what it holds | imports |", "| --- | --- | --- |"]
    for room in order:
        used = [other for other in order if (room, other) in edges]
        lines.append(f"| `{room}` | {first_line(package, room)} | {', '.join(used) or '-'} |")
    lines += ["", "```mermaid", "flowchart BT"]
    lines += [f"    {a.strip('_')} --> {b.strip('_')}" for a, b in reduced(edges, order)]
    lines += ["```", ""]
    lines.append(f"{len(edges)} edges between {len(order)} rooms, none against the order.")
    return "\n".join(lines)


def vendor_tables(graph: grimp.ImportGraph) -> str:
    lines = ["| plugin | files | takes from the core |", "| --- | --- | --- |"]
    for package in (*VENDORS, "gluon_sim", "gluon_emu"):
        own = [m for m in graph.modules if m.partition(".")[0] == package]
        used = {
            room_of(imported)
            for module in own
            for imported in graph.find_modules_directly_imported_by(module)
            if imported.startswith("gluon_core.")
        }
        lines.append(f"| `{package}` | {len(own)} | {', '.join(sorted(used))} |")
    return "\n".join(lines)


def replaced(page: str, name: str, text: str) -> str:
    begin = BEGIN.format(name)
    head, found, rest = page.partition(begin)
    if not found:
        raise SystemExit(f"{PAGE.name} has no line {begin!r}")
    return head + begin + "\n" + text + "\n" + END + rest.partition(END)[2]


def main(check: bool) -> int:
    sys.path[:0] = map(str, (ROOT, *sorted(ROOT.glob("backends/*"))))
    graph = grimp.build_graph(*ROOMS, *VENDORS, exclude_type_checking_imports=True)
    said: list[str] = circles(graph)
    page = old = PAGE.read_text()
    for package in ROOMS:
        edges = edges_of(graph, package)
        said += problems_of(graph, package, edges)
        if said:
            continue
        upward = sum(ROOMS[package].index(b) > ROOMS[package].index(a) for a, b in edges)
        print(f"{package}: {len(edges)} edges between rooms, {upward} against the order")
        if package == "gluon_core" and len(edges) > MOST_EDGES:
            said.append(f"{package}: {len(edges)} edges between rooms, {MOST_EDGES} at most")
        page = replaced(page, package, drawing(package, edges))
    if not said:
        page = replaced(page, "plugins", vendor_tables(graph))
        if check and page != old:
            said.append("docs/architecture.md is stale: run python .ci/map.py")
        elif page != old:
            PAGE.write_text(page)
    for line in said:
        print(line, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
