"""The figures of the house that `python .ci/map.py --report` prints, and their limits."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import imports
import walks
from imports import ROOT, Graph, within

# Figure -> its most.
LIMITS = {
    "lines of gluon_core": 33_000,
    "lines of gluon_core.plugin": 3_300,
    "lines of gluon_core.registry": 1_100,
    "lines of the launch engine": 4_000,
    "lines of the vendor in tests/plugin_acme": 249,
    "names that gluon_nvidia takes from the core": 60,
    "names that gluon_amd takes from the core": 60,
    "private attributes of the semantic layer that plugins use": 0,
    "parameters `semantic: Any`": 0,
    "circles of files": 0,
    "arrows upward": 0,
    "arrows against a contract": 0,
    "excused arrows": 0,
    "stays of (b) launch, miss": 30,
    "returns of (b) launch, miss": 15,
    "stays of (c) simulated launch": 38,
    "returns of (c) simulated launch": 14,
}
# The launch engine as a review counted it: eleven files of 7c1b16f2 (`dispatch`, `specialize`, `place` and `foreign` of the
# core, `kernel`, `select`, `native` and `values` of the runtime, `_launch.c`, `_call.h` and `gluon_bundle.c`). Their
# counterparts are all files of these folders but for those that had counterparts outside of the eleven.
# The limit is the goal of the review, 1,962 lines less: 1,792 lines are the engine in C and what the loader has in common
# with it, 452 the rest of the loader, 975 bundles and calls in Python, 777 the decisions of the core. The engine took over
# work of files outside of the eleven, the launch in Python of gluon_nvidia and the launches of `pack` and `cuda`: counted
# with both (TAKEN_OVER), it is 2,590 lines less. Launches of operators with other tensors (`refill`, `signature`) and of
# descriptors that are made again (`descriptors.h`) came after the review, about 140 lines. The last 400 were promises that
# few need, which the commits of runtime/ name, such as errors that list each argument that does not fit, and sha256 in C. Maps that launches
# make of other arguments (`made_maps.h`) had no counterpart: kernels made them.
REVIEWED = 5_962
# `launcher`, `driver` and `native` of gluon_nvidia, `pack` and `cuda` of the runtime then; these now.
WITH_TAKEN_OVER = REVIEWED + 445 + 386 + 55 + 112 + 347
TAKEN_OVER = (
    "backends/nvidia/gluon_nvidia/launcher.py",
    "backends/nvidia/gluon_nvidia/driver.py",
    "runtime/gluon_runtime/cuda.py",
    "runtime/gluon_runtime/libcuda.py",
)
ENGINE = ("gluon_core/launch", "runtime/gluon_runtime")
AROUND = {
    "gluon_core/launch": "__init__ ahead arguments device jit opaque placeholder",
    "runtime/gluon_runtime": (
        "__init__ bundle conditions container cuda driver drivers errors grid hip libcuda manifest schema"
    ),
}
AROUND_IN_C = ("gluon_bundle.h", "made_maps.h")
LARGEST = 8

Table = list[tuple[str, int]]


def lines_of(file: Path) -> int:
    return len(file.read_text().splitlines())


def sizes(graph: Graph, package: str) -> Table:
    """Return the rooms of a package and their lines, the largest first."""
    rooms: Counter[str] = Counter()
    for module in graph:
        if within(module, package):
            rooms[".".join(module.split(".")[:2])] += lines_of(imports.file_of(module))
    return rooms.most_common()


def engine_files(around: bool = False) -> list[Path]:
    """Return the files of the launch engine, or those of its surroundings."""
    python = [
        file
        for folder in ENGINE
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (file.stem in AROUND[folder].split()) == around
    ]
    c = sorted([*ROOT.glob("backends/*/gluon_*/_*.[ch]"), *ROOT.glob("runtime/**/*.[ch]")])
    return python + [file for file in c if (file.name in AROUND_IN_C) == around]


def acme_files() -> list[Path]:
    """Return the files of docs/plugins.md's vendor: compiler, device, ops, and pyproject.toml; not its tile maps."""
    folder = ROOT / "tests" / "plugin_acme"
    files = [file for kind in ("*.py", "*.toml") for file in folder.rglob(kind)]
    return [file for file in files if file.stem != "tiles"]


def taken(package: str) -> set[str]:
    """Return the names that a package imports from the core."""
    names: set[str] = set()
    for _, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and within(node.module or "", "gluon_core"):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names if within(alias.name, "gluon_core")}
    return names


def trees(package: str, text: str = "") -> Iterator[tuple[str, ast.Module]]:
    """Yield the path and the syntax tree of each file of a package that contains `text`."""
    folder = imports.file_of(package).parent
    for file in sorted(folder.rglob("*.py")):
        source = file.read_text()
        if text in source:
            yield str(file.relative_to(ROOT)), ast.parse(source)


def private_uses(package: str) -> int:
    """Count attributes with an underscore of objects called a semantic layer."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and getattr(node.value, "id", getattr(node.value, "attr", "")) in ("semantic", "_semantic")
        for _, tree in trees(package, "semantic._")
        for node in ast.walk(tree)
    )


def untyped_semantics(package: str) -> int:
    """Count parameters `semantic: Any`."""
    return sum(
        isinstance(node, ast.arg)
        and node.arg in ("semantic", "_semantic")
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Any"
        for _, tree in trees(package, "semantic: Any")
        for node in ast.walk(tree)
    )


def functions(package: str) -> Iterator[tuple[str, int]]:
    for file, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{file}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def print_table(title: str, rows: Table) -> None:
    print(f"\n{title}")
    for name, number in rows:
        print(f"{number:>8,}  {name}")


def beyond(figures: dict[str, int]) -> list[str]:
    """Name each figure that is beyond its limit, of those that are known."""
    return [
        f"{name}: {figures[name]:,}, at most {most:,}"
        for name, most in LIMITS.items()
        if name in figures and figures[name] > most
    ]


def counted(graph: Graph) -> dict[str, int]:
    """Return the figures that need no run: lines, and names that vendors take from the core."""
    core, plugins = dict(sizes(graph, "gluon_core")), ("gluon_nvidia", "gluon_amd")
    return {
        "lines of gluon_core": sum(core.values()),
        **{f"lines of {room}": core[room] for room in ("gluon_core.plugin", "gluon_core.registry")},
        "lines of the launch engine": sum(map(lines_of, engine_files())),
        "lines of the vendor in tests/plugin_acme": sum(map(lines_of, acme_files())),
        **{f"names that {p} takes from the core": len(taken(p)) for p in plugins},
        "private attributes of the semantic layer that plugins use": sum(
            map(private_uses, plugins)
        ),
        "parameters `semantic: Any`": sum(map(untyped_semantics, imports.packages())),
    }


def report(graph: Graph, figures: dict[str, int]) -> list[str]:
    """Print all figures; return those beyond their limits.

    Args:
        graph: the arrows between files.
        figures: figures of the graph that are known already.
    """
    packages = imports.packages()
    totals = {package: sum(n for _, n in sizes(graph, package)) for package in packages}
    print_table("Lines per package", sorted(totals.items(), key=lambda pair: -pair[1]))
    for package in packages:
        print_table(f"Lines per room of {package}", sizes(graph, package))
    figures = {**counted(graph), **figures}
    engine = f"Files of the launch engine, {REVIEWED:,} lines in the review"
    for title, around in ((engine, False), ("Its surroundings", True)):
        listed = [(str(f.relative_to(ROOT)), lines_of(f)) for f in engine_files(around)]
        print_table(f"{title}: {sum(n for _, n in listed):,} lines", listed)
    launched = sum(map(lines_of, [*engine_files(), *map(ROOT.joinpath, TAKEN_OVER)]))
    print(
        f"\nWith the launches that the engine took over: {launched:,} of {WITH_TAKEN_OVER:,} lines"
    )
    files = [(str(imports.file_of(module).relative_to(ROOT)), module) for module in graph]
    largest = sorted(
        ((file, lines_of(ROOT / file)) for file, _ in files), key=lambda pair: -pair[1]
    )
    print_table("Largest files", largest[:LARGEST])
    longest = sorted((f for p in packages for f in functions(p)), key=lambda pair: -pair[1])
    print_table("Longest functions", longest[:LARGEST])
    print("\nWalks (walks.py says how they are counted)")
    for name in walks.WALKS:
        for label, walk in walks.measured(name).items():
            print(f"    {label}: {walk}")
            figures[f"stays of {label}"] = len(walk.stays)
            figures[f"returns of {label}"] = len(walk.stays) - walk.files
    print("\nLimits")
    for name, most in LIMITS.items():
        mark = "" if figures[name] <= most else "  <- beyond"
        print(f"{figures[name]:>8,} of {most:>6,}  {name}{mark}")
    return beyond(figures)
