"""The service `write.layouts`: the layouts that were chosen for the values of a line."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Collection, Optional

from gluon_cli.launched import forms
from gluon_cli.output import UsageError, source_of
from gluon_core.layouts import SharedLayout
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_write.explicit import chosen_for
from gluon_write.solver.prices import reasons
from gluon_write.text.syntax import nodes_in

__all__ = ["Chosen", "layouts_of"]


@dataclass(frozen=True)
class Chosen:
    """Hold the layout of a value.

    Attributes:
        kernel: its name. name: of the value.
        notes: the reasons, and the cost of the next best choice.
    """

    kernel: str
    name: str
    layout: Any
    shape: tuple[int, ...]
    bits: int
    notes: list[str] = field(default_factory=list)


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
    except (SyntaxError, ValueError) as error:
        raise UsageError("no Python source", argument="LAYOUT", got=f"{file}: {error}") from None
    names, around = _names(tree, line), _function_at(tree, line)
    chosen: list[Chosen] = []
    known: set[str] = set()
    written = {node.id for node in nodes_in(tree) if isinstance(node, ast.Name)}
    launched = forms(file, registry().target(target), None, {}, {})
    inside = around in [form.name for form in launched]  # else a function that kernels call
    for form in launched:
        fn: Any = form.source.fn
        if getattr(fn, "layouts", None) and (form.name == around or not inside):
            on = registry().target(target)
            chosen += [c for c in _of_kernel(form, on, written, known) if c.name in names]
    if not known:
        raise UsageError(
            'the file launches no kernel with layouts="auto"', argument="LAYOUT", got=file
        )
    unique = {(c.kernel, c.name, c.layout): c for c in chosen}
    if not unique:
        raise UsageError(
            "no value of this line has a layout",
            argument="LAYOUT",
            expected=f"a line with one of {', '.join(_first_lines(tree, known))}",
            got=f"{file}:{line}",
        )
    return sorted(unique.values(), key=lambda c: names.index(c.name))


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
    nodes = [
        node
        for node in nodes_in(tree)
        if isinstance(node, ast.Name) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return list(
        dict.fromkeys(node.id for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)))
    )


def _first_lines(tree: ast.Module, names: Collection[str]) -> list[str]:
    """Return each name with the line that assigns it first."""
    lines: dict[str, int] = {}
    nodes = [node for node in nodes_in(tree) if isinstance(node, ast.Name) and node.id in names]
    for node in sorted(nodes, key=lambda node: node.lineno):
        if isinstance(node.ctx, ast.Store):
            lines.setdefault(node.id, node.lineno)
    return [f"{name} (line {line})" for name, line in lines.items()] or sorted(names)


def _own(name: str, written: Collection[str]) -> str:
    """Return the name in the source of a value of a changed kernel: `x` of `x_ring`."""
    while name not in written and "_" in name:
        name = name.rpartition("_")[0]
    return name


def _of_kernel(
    form: Any, target: Target, written: Collection[str], known: set[str]
) -> list[Chosen]:
    """Return the layouts of a kernel's values by their names in the source, and add the names to `known`."""
    source, options = form.source, registry().backend(target.backend).compiler
    graph, solution = chosen_for(
        source.fn, source.signature, source.constants, source.attrs, target,
        options.options(target, dict(form.options)),
    )  # fmt: skip
    layouts = []
    for one in graph.unknowns:
        layout: Any = solution.chosen[one.number]
        shape = one.shape[-layout.rank :] if isinstance(layout, SharedLayout) else one.shape
        notes = [f"demanded by {one.demanded_by}"] if one.fixed is not None else []
        if not notes and not isinstance(layout, SharedLayout):
            notes = reasons(layout, one, graph.jits)
        other = solution.next_best(one.number) if one.accesses or one.reductions else None
        if other is not None:
            more = 100 * (other[1] / solution.price - 1)
            notes.append(f"next best: {other[0]}, costs {more:.1f}% more")
        if not solution.exact:
            notes.append(solution.words())
        for name in filter(str.isidentifier, one.names):
            own = _own(name, written)
            known.add(own)
            held = [] if own == name else [f"as {name}"]
            layouts.append(Chosen(form.name, own, layout, shape, one.bits, held + notes))
    return layouts
