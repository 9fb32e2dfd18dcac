"""The map of the house, drawn from the import graph.

    python .ci/map.py            writes it into docs/architecture.md
    python .ci/map.py --check    fails where the page is stale, files import each other in a circle, a room
                                 imports one above it, a contract of pyproject.toml is broken, or a
                                 number of lines or names is beyond its limit
    python .ci/map.py --report   prints the figures of the house and their limits; with --check, fails
                                 where a reader's walk is beyond its limit, too

Imports inside functions, imports for type checkers and strings that are imported count (imports.py).
The arrows that `ignore_imports` of a contract or OPEN excuses are left out, and may only get fewer.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict

import imports
import report
from imports import ROOT, Contract, Graph, within

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by .ci/map.py: {} -->", "<!-- end -->"

# Arrows that lint-imports does not see, and why each is there still: strings that are imported, and
# one arrow of each circle of files within a room.
OPEN: dict[tuple[str, str], str] = {}

Edges = dict[tuple[str, str], set[str]]  # (importer, imported) -> the modules that import


def walls() -> list[Contract]:
    """Return the contracts that speak of modules by their full names."""
    kinds = ("forbidden", "independence", "layers")
    return [c for c in imports.contracts() if c.kind in kinds and "containers" not in c.options]


def rooms() -> dict[str, list[str]]:
    """Package -> its rooms; each may import those before it. As the contracts of pyproject say."""
    layers = (
        c.options for c in imports.contracts() if c.kind == "layers" and "containers" in c.options
    )
    return {o["containers"][0]: o["layers"][::-1] for o in layers}


ROOMS = rooms()


def room_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or package


def first_line(package: str, room: str) -> str:
    """Return the first sentence of a room's docstring."""
    text = ast.get_docstring(ast.parse(imports.file_of(f"{package}.{room}").read_text())) or ""
    sentence = text.replace("\n", " ").partition(". ")[0].strip().rstrip(".")
    if not sentence:
        raise SystemExit(f"{package}.{room} has no docstring to take its line of the map from")
    return sentence


def edges_of(graph: Graph, package: str) -> Edges:
    """Return the arrows between the rooms of a package."""
    edges: Edges = defaultdict(set)
    for module, imported_modules in graph.items():
        for imported in imported_modules:
            if not all(within(m, package) and m != package for m in (module, imported)):
                continue
            if room_of(module) != room_of(imported):
                edges[room_of(module), room_of(imported)].add(f"{module} -> {imported}")
    return edges


def upward(package: str, edges: Edges) -> list[str]:
    """Name each arrow of a package that points against the order of its rooms."""
    order = ROOMS[package]
    missing = sorted({room for pair in edges for room in pair} - set(order))
    if missing:
        return [f"{package}: no contract of pyproject.toml orders {', '.join(missing)}"]
    return [
        f"{package}: {importer} imports {imported}, which is above it: {', '.join(sorted(arrows))}"
        for (importer, imported), arrows in sorted(edges.items())
        if order.index(imported) > order.index(importer)
    ]


def circles(graph: Graph) -> list[str]:
    """Name a shortest circle of each set of files that reach each other.

    A package's own file imports its parts, and importing a part runs the package's file: that is no
    circle between files.
    """
    return [
        f"{len(members)} files import each other in a circle: "
        + " -> ".join(imports.shortest_circle(graph, members))
        for members in imports.circles(graph)
    ]


def broken(contract: Contract, graph: Graph) -> list[str]:
    """Name each arrow, strings included, that a contract between packages forbids."""
    options = contract.options

    def forbids(importer: str, imported: str) -> bool:
        if contract.kind == "forbidden":
            return any(within(importer, m) for m in options["source_modules"]) and any(
                within(imported, m) for m in options["forbidden_modules"]
            )
        modules = options["modules" if contract.kind == "independence" else "layers"]
        sides = [
            next((i for i, m in enumerate(modules) if within(end, m)), -1)
            for end in (importer, imported)
        ]
        if contract.kind == "independence":
            return -1 not in sides and sides[0] != sides[1]
        return -1 < sides[1] < sides[0]

    return [
        f"{contract.name}: {importer} imports {imported}"
        for importer, imported_modules in graph.items()
        for imported in sorted(imported_modules)
        if forbids(importer, imported)
    ]


def without_excused(graph: Graph) -> tuple[Graph, list[str]]:
    """Return the graph without excused arrows, and the excuses that no arrow needs."""
    used: set[tuple[str, str]] = set()

    def excused(importer: str, imported: str) -> bool:
        pairs = [
            pair
            for pair in OPEN
            if imports.matches(importer, pair[0]) and imports.matches(imported, pair[1])
        ]
        used.update(pairs)
        return bool(pairs) or any(c.excuses(importer, imported) for c in imports.contracts())

    rest = {
        importer: {imported for imported in imported_modules if not excused(importer, imported)}
        for importer, imported_modules in graph.items()
    }
    unused = [f"OPEN: no file needs {a} -> {b} any more" for a, b in OPEN if (a, b) not in used]
    return rest, unused


def reduced(edges: Edges, order: list[str]) -> list[tuple[str, str]]:
    """Return the edges that no path over others implies: those of a picture."""
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
    lines = ["| room | content | imports |", "| --- | --- | --- |"]
    for room in order:
        used = [other for other in order if (room, other) in edges]
        lines.append(f"| `{room}` | {first_line(package, room)} | {', '.join(used) or '-'} |")
    lines += ["", "```mermaid", "flowchart BT"]
    lines += [f"    {a.strip('_')} --> {b.strip('_')}" for a, b in reduced(edges, order)]
    lines += ["```"]
    return "\n".join(lines)


def plugin_table(graph: Graph) -> str:
    """Return the packages outside the core, and the rooms of other packages that each imports."""
    lines = ["| package | files | takes from others |", "| --- | ---: | --- |"]
    for package in sorted(set(imports.packages()) - {"gluon_core"}):
        own = [module for module in graph if within(module, package)]
        used = {i for module in own for i in graph[module] if not within(i, package)}
        others = sorted(
            {room_of(i) if within(i, "gluon_core") else i.partition(".")[0] for i in used}
        )
        lines.append(f"| `{package}` | {len(own)} | {', '.join(others) or '-'} |")
    return "\n".join(lines)


def replaced(page: str, name: str, text: str) -> str:
    begin = BEGIN.format(name)
    head, marker, rest = page.partition(begin)
    if not marker:
        raise SystemExit(f"{PAGE.name} has no line {begin!r}")
    return head + begin + "\n" + text + "\n" + END + rest.partition(END)[2]


def figures() -> dict[str, int]:
    """Return the violations between files, excused or not, as numbers."""
    graph = imports.import_graph()
    rest, _ = without_excused(graph)
    return {
        "circles of files": len(circles(graph)),
        "arrows upward": sum(len(upward(package, edges_of(graph, package))) for package in ROOMS),
        "arrows against a contract": sum(len(broken(contract, graph)) for contract in walls()),
        "excused arrows": sum(map(len, graph.values())) - sum(map(len, rest.values())),
    }


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    everything = imports.import_graph()
    past = report.beyond(report.counted(everything)) if check else []
    if "--report" in arguments:
        past = report.report(everything, figures())
        if not check:
            return 0
    graph, problems = without_excused(everything)
    problems += past
    problems += circles(graph)
    page = old = PAGE.read_text()
    for contract in walls():
        problems += broken(contract, graph)
    for package in ROOMS:
        edges = edges_of(graph, package)
        problems += upward(package, edges)
        if not problems and BEGIN.format(package) in page:
            page = replaced(page, package, drawing(package, edges))
    if not problems:
        page = replaced(page, "plugins", plugin_table(graph))
        if check and page != old:
            problems.append("docs/architecture.md is stale: run python .ci/map.py")
        elif page != old:
            PAGE.write_text(page)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
