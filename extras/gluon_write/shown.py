"""The services `write.layouts` and `write.names`: the layouts that were chosen for the values of a kernel's source."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterable, Iterator, Optional

from gluon_cli.launched import Form, forms
from gluon_cli.output import UsageError, source_of, unparsed
from gluon_core.layouts import SharedLayout
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_write.explicit import chosen_for
from gluon_write.solver.prices import dearer, reasons
from gluon_write.solver.solve import Solution
from gluon_write.solver.unknowns import Graph
from gluon_write.text.original_places import original_of
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.tracer import Tracer

__all__ = ["Chosen", "Names", "layouts_of", "names_of"]

Home = tuple[str, str]  # file and name of a function


@dataclass(frozen=True)
class Chosen:
    """Hold the layout of a value.

    Attributes:
        kernel: its name. name: of the value.
        notes: the reasons, and the cost of the next best choice.
        homes: functions of the source that name the value, each as (file, name); None of a function that was written.
    """

    kernel: str
    name: str
    layout: Any
    shape: tuple[int, ...]
    bits: int
    notes: list[str] = field(default_factory=list)
    homes: frozenset[Optional[Home]] = frozenset()


@dataclass(frozen=True)
class Names:
    """Hold the names that a kernel's source binds, with the layouts that were chosen for a target.

    Attributes:
        program: the recorded source, whose values have no layouts.
    """

    program: Any
    chosen: list[Chosen]

    def layouts(self, name: str, file: str, line: int) -> list[str]:
        """Return the layouts of the values with a name, in the function around a line."""
        home = (str(Path(file).resolve()), _function_at(_tree(file), line))
        return list(dict.fromkeys(str(one.layout) for one in _at_home(self.chosen, name, home)))


def layouts_of(file: str, line: int, target: Optional[str]) -> list[Chosen]:
    """Return the layouts of the values that a line of a layout-free kernel names.

    The file is run on a simulator of the target, for the kernels' types and constants.

    Raises:
        UsageError: no such file, no layout-free kernel is launched, or the line names no tensor.
    """
    path = Path(file)
    if not path.is_file():
        raise UsageError("no such file", argument="LAYOUT", got=file)
    text = source_of(path)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise unparsed(error, file) from None
    except ValueError as error:  # null bytes
        raise UsageError("no Python source", argument="LAYOUT", got=f"{file}: {error}") from None
    names, around = _names(tree, line), _function_at(tree, line)
    known: list[Chosen] = []
    on = registry().target(target)
    for form in forms(file, on, None, {}, {}):
        if getattr(form.source.fn, "layouts", None):
            known += _of_kernel(form, on)
    if not known:
        raise UsageError(
            'the file launches no kernel with layouts="auto"',
            argument="LAYOUT",
            expected="a program that launches its kernels: their types and constants are those of the launches",
            got=file,
            remedy='Launch them with small arrays below `if __name__ == "__main__":`.',
        )
    home = (str(path.resolve()), around)
    chosen = [one for name in names for one in _at_home(known, name, home)]
    unique = {(c.kernel, c.name, c.layout): c for c in chosen}
    if not unique:
        raise UsageError(
            "no value of this line has a layout",
            argument="LAYOUT",
            expected=f"a line with one of {', '.join(_lines(tree, path, known))}",
            got=f"{file}:{line}",
            remedy="Scalars, tensors that nothing reads, and those that a descriptor replaces have none.",
        )
    return list(unique.values())


def names_of(form: Form, target: Target) -> Optional[Names]:
    """Return the names of a layout-free kernel's source; None where the compiled kernel has the source's statements,
    so that its own values are those of the source."""
    source, options = form.source, _options(form, target)
    facts = source.signature, source.constants, source.attrs, target, options
    graph, solution = chosen_for(source.fn, *facts)
    if all(original_of(jit) == jit.src for jit in graph.jits):
        return None
    return Names(Tracer(*facts)(source.fn).program, _chosen_in(form.name, graph, solution))


def _options(form: Form, target: Target) -> Any:
    return registry().backend(target.backend).compiler.options(target, dict(form.options))


@lru_cache(maxsize=1 << 4)
def _tree(file: str) -> ast.Module:
    """Return the syntax tree of a file that was imported."""
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def _at_home(chosen: Iterable[Chosen], name: str, home: Home) -> list[Chosen]:
    """Return the values that a function of the source names so; those of written functions where it has none."""
    listed = list(chosen)
    if home[1] in [one.kernel for one in listed]:
        listed = [one for one in listed if one.kernel == home[1]]
    listed = [one for one in listed if one.name == name]
    return [c for c in listed if home in c.homes] or [c for c in listed if None in c.homes]


def _function_at(tree: ast.Module, line: int) -> str:
    """Return the name of the function that a line belongs to, "" outside of them."""
    return next(
        (
            node.name
            for node in nodes_in(tree)
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
        ),
        "",
    )


def _names(tree: ast.Module, line: int) -> list[str]:
    """Return the names in the statements of a line, in their order."""
    named = [one for one in _named(tree) if one[0] <= line <= one[1]]
    return list(dict.fromkeys(name for *_, name in sorted(named)))


def _named(tree: ast.Module) -> Iterator[tuple[int, int, int, str]]:
    """Yield (first line, last line, column, name) of each use of a name, and of each parameter."""
    for node in nodes_in(tree):
        if isinstance(node, (ast.Name, ast.arg)):
            name = node.id if isinstance(node, ast.Name) else node.arg
            yield node.lineno, node.end_lineno or node.lineno, node.col_offset, name


def _lines(tree: ast.Module, file: Path, chosen: Iterable[Chosen]) -> Iterator[str]:
    """Yield each name with the first line where a function names a chosen value so."""
    path, seen, listed = str(file.resolve()), set(), list(chosen)
    for line, _, _, name in sorted(_named(tree)):
        if name not in seen and _at_home(listed, name, (path, _function_at(tree, line))):
            seen.add(name)
            yield f"{name} (line {line})"


def _own(name: str, written: Iterable[str]) -> str:
    """Return the name in the source of a value of a changed kernel: `x` of `x_ring`."""
    while name not in written and "_" in name:
        name = name.rpartition("_")[0]
    return name


def _of_kernel(form: Form, target: Target) -> list[Chosen]:
    """Return the layouts of a kernel's values by their names in the source."""
    source = form.source
    facts = source.signature, source.constants, source.attrs, target, _options(form, target)
    return _chosen_in(form.name, *chosen_for(source.fn, *facts))


def _chosen_in(kernel: str, graph: Graph, solution: Solution) -> list[Chosen]:
    written = {name for jit in graph.jits for name in re.findall(r"\w+", original_of(jit))}
    layouts = []
    for one in graph.unknowns:
        layout: Any = solution.chosen[one.number]
        shape = one.shape[-layout.rank :] if isinstance(layout, SharedLayout) else one.shape
        notes = [f"demanded by {one.demanded_by}"] if one.fixed is not None else []
        if not notes and not isinstance(layout, SharedLayout):
            notes = reasons(layout, one, graph.jits)
        other = solution.next_best(one) if one.accesses or one.reductions else None
        if other is not None:
            notes.append(f"next best: {other[0]}, {dearer(other[1], solution.price)}")
        if not solution.exact:
            notes.append(solution.words())
        for name in filter(str.isidentifier, one.names):
            own = _own(name, written)
            held = [] if own == name else [f"as {name}"]
            homes = frozenset(map(_home_of, one.homes[name]))
            layouts.append(Chosen(kernel, own, layout, shape, one.bits, held + notes, homes))
    for name, kind, fn in graph.tiles:
        if name in written and isinstance(kind.layout, SharedLayout):
            facts = kind.layout, kind.shape, kind.element.bits
            notes = ["in shared memory, as its copies and the matrix unit need it"]
            layouts.append(Chosen(kernel, name, *facts, notes, frozenset((_home_of(fn),))))
    return layouts


def _home_of(fn: Any) -> Optional[Home]:
    """Return file and name of a function of the source; None of one that a pass has written."""
    file = Path(fn.fn.__code__.co_filename) if fn is not None else Path()
    return (str(file.resolve()), fn.__name__) if file.is_file() else None
