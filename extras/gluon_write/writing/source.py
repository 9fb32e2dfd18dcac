"""Write the chosen layouts into the text of a kernel's file."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, Iterable, Mapping, Optional

from gluon_core import language
from gluon_core.layouts import SharedLayout
from gluon_core.layouts.base import Layout
from gluon_write.solver.prices import counted, dearer, reasons
from gluon_write.solver.solve import Solution
from gluon_write.solver.unknowns import AnyLayout, Graph, Unknown
from gluon_write.text.syntax import first_of, nodes_in
from gluon_write.text.tidy import tidied
from gluon_write.tracing.buffers import conflicts_of, matrices_of
from gluon_write.tracing.sketch import Place, partition_of, place_of
from gluon_write.writing.edits import Edits, of_triton, partitions_of, space_in
from gluon_write.writing.layout_names import layout_names

__all__ = ["explicit_text", "launched_early", "relaunched", "replaced", "spelled"]

_SHORT = ("BlockedLayout", "SliceLayout")  # readers know the order of their arguments
# Line, column in bytes, order there, the text, and the end of what it takes the place of.
Insertion = tuple[int, int, int, int, str, tuple[int, int]]


@dataclass(frozen=True)
class Space:
    """Hold how a kernel's file spells the names of the language.

    Attributes:
        name: of the language. modules: those that the file imports, by name.
    """

    name: str
    modules: tuple[tuple[str, ModuleType], ...]

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Space:
        modules = [(n, value) for n, value in scope.items() if isinstance(value, ModuleType)]
        return cls(space_in(scope), tuple(modules))

    def of_layout(self, kind: type) -> str:
        """Return the expression for a class of layouts; the language has most of them itself."""
        name = kind.__name__
        if getattr(language, name, None) is kind:
            return f"{self.name}.{name}"
        for prefix, module in self.modules:
            if getattr(module, name, None) is kind:
                return f"{prefix}.{name}"
        return f"{self.name}.{name}"


def explicit_text(edits: Edits, graph: Graph, solution: Solution) -> str:
    """Return a function's definition, without decorators, with its layouts, conversions and reasons."""
    fn = edits.fn
    space = Space.of(fn.get_capture_scope())
    number = next(i for i, one in enumerate(graph.jits) if one is fn)
    names = layout_names(fn.src, edits.names, graph, solution)
    lines = [line.encode() for line in fn.src.splitlines()]
    for line, column, _, _, text, (last, end) in sorted(
        _insertions(edits, names, lines, space, number), reverse=True
    ):
        rest = lines[last - 1][end:]
        lines[line - 1] = lines[line - 1][:column] + text.encode() + rest
        lines[line:last] = [b""] * (last - line)
    body = ast.parse(fn.src).body[0]
    assert isinstance(body, ast.FunctionDef)
    first = first_of(body.body)
    indent = " " * first.col_offset
    definitions = [
        f"{indent}{line}".encode()
        for layout, name in names.items()
        for line in _definition(layout, name, names, space, graph, solution)
    ]
    start = first.lineno - 1
    while lines[start - 1].lstrip().startswith(b"#"):  # its comments stay with it
        start -= 1
    text = b"\n".join([*lines[:start], *definitions, *lines[start:]]).decode() + "\n"
    text = re.sub(rf"\bdef {fn.__name__}\b", f"def {edits.name}", text, count=1)
    user = inspect.getsource(fn.fn) if not getattr(fn, "written", False) else ""
    return tidied(text, user, space.name)


def _insertions(
    edits: Edits,
    names: Mapping[AnyLayout, str],
    lines: list[bytes],
    space: Space,
    number: int,
) -> Iterable[Insertion]:
    named: dict[Place, ast.expr] = {}
    ends: dict[tuple[int, int], ast.expr] = {}
    for node in nodes_in(ast.parse(edits.fn.src)):
        place = place_of(node, number)
        if isinstance(node, ast.Call):
            ends[(node.end_lineno or 0, node.end_col_offset or 0)] = node.func
        if isinstance(node, ast.Call) and place is not None:
            named[place] = node.func
            named |= {partition_of(place, index): name for index, name in partitions_of(node)}
    for place, called in edits.calls.items():
        name = named[place]
        # Before a conversion of the call's result, which begins at the same place.
        last = name.end_lineno or name.lineno, name.end_col_offset or 0
        yield name.lineno, name.col_offset, 3, 0, called.name, last
    for (_, _, _, line, column, _), layout in edits.layouts.items():
        before = b" ".join([*lines[: line - 1], lines[line - 1][: column - 1]]).rstrip()
        comma = "" if before.endswith(b"(") else " " if before.endswith(b",") else ", "
        yield line, column - 1, 0, 0, f"{comma}layout={names[layout]}", (line, column - 1)
        maker = ends.get((line, column))
        word = None if maker is None else of_triton(maker, edits.fn)
        if maker is not None and word is not None:
            last = maker.end_lineno or maker.lineno, maker.end_col_offset or 0
            yield maker.lineno, maker.col_offset, 3, 0, f"{space.name}.{word}", last
    for (_, line, column, below, end, _), layout in edits.conversions.items():
        size = (below - line) * 10_000 + end - column
        # Written from the back: of those at one place, what is written first ends up last.
        yield line, column, 2, size, f"{space.name}.convert_layout(", (line, column)
        yield below, end, 1, size, f", {names[layout]})", (below, end)


def _definition(
    layout: AnyLayout,
    name: str,
    names: Mapping[AnyLayout, str],
    space: Space,
    graph: Graph,
    solution: Solution,
) -> list[str]:
    """Return the lines that define a layout, with the reasons for it."""
    words: list[str] = []
    others: list[tuple[float, AnyLayout]] = []
    for one in graph.unknowns:
        if solution.chosen[one.number] != layout:
            continue
        if one.fixed is not None:
            words.append(f"demanded by {one.demanded_by}")
            continue
        if isinstance(layout, SharedLayout):
            words += _passes(graph, solution, one)
        else:
            words += reasons(layout, one, graph.jits)
        other = solution.next_best(one) if one.accesses or one.reductions else None
        if other is not None:
            others.append((other[1], other[0]))
    if others:
        price, best = min(others, key=lambda one: one[0])
        more = dearer(price, solution.price)
        words.append(f"next best: {_spelled(best, names, space)}, {more}")
    notes = [
        line
        for word in dict.fromkeys(words)
        for line in textwrap.wrap(word, 92, initial_indent="# ", subsequent_indent="#   ")
    ]
    return [*notes, f"{name}: {space.name}.constexpr = {_spelled(layout, names, space)}"]


def _passes(graph: Graph, solution: Solution, buffer: Unknown) -> list[str]:
    """Describe the accesses to a buffer of shared memory."""
    words = []
    for relation in graph.relations:
        if relation.kind != "view" or relation.result is not buffer:
            continue
        view, registers = relation.detail, solution.chosen[relation.source.number]
        chosen = registers, solution.chosen[buffer.number], view
        matrices = matrices_of(*chosen)
        vector, extra = matrices or conflicts_of(*chosen)
        kind = "copy to" if view.copied else "load from" if "load" in view.name else "store to"
        conflicts = f"{counted(extra, 'extra pass')} for banks" if extra else "no bank conflicts"
        moved = counted(vector * view.bits // 8, "byte")
        words.append(
            f"{kind} it: {moved} a thread{' by matrices' if matrices else ''}, {conflicts}"
        )
    return words


def _spelled(layout: Layout, names: Mapping[Any, str], space: Space) -> str:
    """Return the expression that makes a layout, its parts by name."""
    parts = []
    home = space.of_layout(type(layout))
    if home.rpartition(".")[0] != space.name and layout == type(layout)():  # a barrier's
        return f"{home}()"
    for field in fields(layout):  # type: ignore[arg-type]
        value = getattr(layout, field.name)
        if field.name == "cga_layout" and not value or field.default == value:
            continue
        if isinstance(value, Layout):
            text = names.get(value) or _spelled(value, names, space)
        else:
            text = repr(value)
        short = type(layout).__name__ in _SHORT
        parts.append(text if short else f"{field.name}={text}")
    return f"{home}({', '.join(parts)})"


def spelled(layout: Layout, scope: Mapping[str, Any]) -> str:
    """Return the expression that makes a layout in a kernel's file."""
    return _spelled(layout, {}, Space.of(scope))


def relaunched(text: str, kernel: str, warps: Mapping[int, int]) -> Optional[str]:
    """Return a file's text whose launches of a kernel ask for other warps; None where they do not write the number.

    Args:
        warps: number that launches ask for -> the one to ask for.
    """
    numbers = [
        word.value
        for node in _launches(text, kernel)
        for word in node.keywords
        if word.arg == "num_warps"
    ]
    asked = [number.value for number in numbers if isinstance(number, ast.Constant)]
    if len(asked) < len(numbers) or any(w not in asked for w in warps if warps[w] != w):
        return None
    lines = [line.encode() for line in text.splitlines()]
    for number in sorted(numbers, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        line, count = lines[number.lineno - 1], warps.get(getattr(number, "value", 0))
        if count is not None:
            before, after = line[: number.col_offset], line[number.end_col_offset :]
            lines[number.lineno - 1] = before + str(count).encode() + after
    return b"\n".join(lines).decode() + "\n"


def _launches(text: str, kernel: str) -> list[ast.Call]:
    """Return the calls `kernel[grid](...)` of a file."""
    calls = []
    for node in nodes_in(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            name = node.func.value
            called = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", None)
            calls += [node] if called == kernel else []
    return calls


def launched_early(text: str, kernel: str) -> str:
    """Return a file's text whose launches of a kernel let it begin while the kernel in front ends."""
    lines = [line.encode() for line in text.splitlines()]
    launches = [n for n in _launches(text, kernel) if isinstance(n.func.value, ast.Name)]  # type: ignore[attr-defined]
    ends = [
        max((arg.end_lineno or 0, arg.end_col_offset or 0) for arg in passed)
        for node in launches
        if all(word.arg != "launch_pdl" for word in node.keywords)
        if (passed := [*node.args, *(word.value for word in node.keywords)])
    ]
    for line, column in sorted(ends, reverse=True):
        held = lines[line - 1]
        lines[line - 1] = held[:column] + b", launch_pdl=True" + held[column:]
    return b"\n".join(lines).decode() + "\n"


def replaced(text: str, kernel: str, line: int, head: str, definition: str) -> str:
    """Return a file's text with a kernel's definition replaced, and without its `layouts="auto"`.

    Args:
        line: one within the definition. head: comments above it.
    """
    tree = ast.parse(text)
    node = next(
        n
        for n in nodes_in(tree)
        if isinstance(n, ast.FunctionDef)
        and n.name == kernel
        and min([n.lineno, *(d.lineno for d in n.decorator_list)]) <= line + 1
        and line <= (n.end_lineno or n.lineno)
    )
    indent, lines = " " * node.col_offset, text.splitlines()
    start = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    decorators = lines[start : node.lineno - 1]
    for decorator in reversed(node.decorator_list):
        words = decorator.keywords if isinstance(decorator, ast.Call) else []
        kept = [word for word in words if word.arg != "layouts"]
        if not isinstance(decorator, ast.Call) or len(kept) == len(words):
            continue
        decorator.keywords = kept
        shown = ast.unparse(decorator if kept or decorator.args else decorator.func)
        first, last = (n - start for n in (decorator.lineno, decorator.end_lineno or 0))
        before = decorators[first - 1].encode()[: decorator.col_offset].decode()
        after = decorators[last - 1].encode()[decorator.end_col_offset :].decode()
        decorators[first - 1 : last] = [before + shown + after]
    body = textwrap.indent(definition, indent).rstrip("\n").splitlines()
    above = textwrap.indent(head, indent).splitlines()
    whole = [*lines[:start], *above, *decorators, *body, *lines[node.end_lineno :]]
    return "\n".join(whole) + "\n"
