"""Shapes, element types and layouts of the values that a kernel names, at their places in the source: inlay hints for editors.

A kernel is traced for the simulator, as its file launches it; no device and no compiler takes part. Names get the types that they have
at each assignment, parameter and loop.

Source: Language Server Protocol 3.17, textDocument/inlayHint.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

from gluon_cli.check import simulated_twin
from gluon_cli.launched import Form, forms
from gluon_cli.output import Exit, file_and_kernel, print_json
from gluon_cli.parse import parse_assignments
from gluon_core.compiler import compile
from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_report.inlay import Hint

__all__ = ["hints", "show"]

_DESCRIPTOR = re.compile(r"descriptor<tensor<([\dx]+)x(\w+)>, \w+, (.*)>$")
_TYPES = 3  # of one name that a label shows


def hints(kernels: Sequence[Form], target: Target) -> list[Hint]:
    """Return the hints of kernels, in the order of their places.

    A kernel without layouts that is written anew, its loops pipelined, has lines that its file does not have: it gets
    the types of its source, and the layouts of the values that have the same names.

    Args:
        kernels: with the types of their arguments.
        target: a simulated one, or one that has a simulated twin.
    """
    types: dict[_Key, dict[str, None]] = {}
    layouts: dict[_Key, dict[str, None]] = {}
    places: dict[str, _Places] = {}
    chosen: set[_Key] = set()
    for form in kernels:
        fn: Any = form.source.fn
        free = bool(getattr(fn, "layouts", None))
        names: Any = registry().service("write.names")(form, target) if free else None
        if names is None:
            text: Any = compile(form.source, simulated_twin(str(target)), form.options).asm
        bound = list(_bound(text["program"].program if names is None else names.program))
        for file in {where.file for _, _, where in bound if where.file} - set(places):
            places[file] = _Places(file)
        for full, value, where in bound:
            name, part, _ = full.partition("[")
            if part and not getattr(value.type, "dims", None):
                continue  # sizes and phases of a tuple's or an aggregate's members
            known = places.get(where.file)
            place = known.of(name, where.line) if known is not None else None
            if place is None:
                continue
            line, column = place
            key = (where.file, line - 1, column, name)
            label, layout = _described(value.type)
            types.setdefault(key, {})[label] = None
            listed = [layout] if layout else []
            if names is not None:
                listed = names.layouts(name, where.file, where.line)
            for one in listed:
                layouts.setdefault(key, {})[one] = None
                chosen |= {key} if free else set()
    return [
        Hint(*key, _joined(list(types[key])), tuple(layouts.get(key, ())), key in chosen)
        for key in sorted(types)
    ]


_Key = tuple[str, int, int, str]


def _joined(labels: list[str]) -> str:
    return " | ".join([*labels[:_TYPES], *(["..."] if len(labels) > _TYPES else [])])


def _described(type: Any) -> tuple[str, str]:
    """Return a type's label, and its layout as text."""
    descriptor = _DESCRIPTOR.match(str(type))
    if descriptor:
        extents = ", ".join(descriptor[1].split("x"))
        return f"{descriptor[2]}[{extents}] descriptor", descriptor[3]
    shape = list(getattr(type, "dims", ()) or ())
    layout, space = getattr(type, "layout", None), getattr(type, "space", "")
    if not shape:
        return str(type), ""
    label = f"{type.elem}{shape}" + (f" in {space} memory" if space else "")
    return label, "" if layout is None else str(layout)


def _bound(program: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the value and the place of each assignment of values."""
    for function in program.functions.values():
        yield from _in_region(function.body)


def _in_region(region: Any) -> Iterator[tuple[str, Any, Any]]:
    for block in region.blocks:
        for _, name, value, where in block.bindings:
            if hasattr(value, "type"):
                yield name, value, where
        for op in block.ops:
            for inner in op.regions:
                yield from _in_region(inner)


class _Places:
    """The places of names in a file: targets of assignments and loops, parameters.

    Args:
        file: of Python source.
    """

    def __init__(self, file: str):
        self._targets: list[tuple[str, int, int, tuple[int, int]]] = []
        try:
            text = Path(file).read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, SyntaxError, UnicodeDecodeError):
            return
        self._lines = text.split("\n")
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                last = (node.iter if isinstance(node, ast.For) else node).end_lineno or node.lineno
                for one in (inner for target in targets for inner in ast.walk(target)):
                    if isinstance(one, ast.Name):
                        self._add(one.id, node.lineno, last, one)
            elif isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                last = max(first, node.body[0].lineno - 1)
                for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    if one.annotation is None:
                        self._add(one.arg, first, last, one)

    def _add(self, name: str, first: int, last: int, node: Any) -> None:
        before = self._lines[node.end_lineno - 1].encode()[: node.end_col_offset]
        place = (int(node.end_lineno), len(before.decode()))
        self._targets.append((name, first, last, place))

    def of(self, name: str, line: int) -> Optional[tuple[int, int]]:
        """Return line and column behind a name that a statement around `line` binds; the innermost one's."""
        fits = [
            (last - first, place)
            for known, first, last, place in self._targets
            if known == name and first <= line <= last
        ]
        return min(fits)[1] if fits else None


def show(
    kernel: str,
    target: Optional[str],
    signature: Optional[str],
    constexpr: Optional[Sequence[str]],
    json: bool,
) -> Exit:
    """Print the hints of a file, and the error of a kernel that ends its run.

    Returns:
        The exit code: that of a failure where a kernel has an error.
    """
    chosen = registry().target(target)
    constants = parse_assignments(constexpr or (), "--constexpr")
    file = file_and_kernel(kernel)[0]
    ended: list[BaseException] = []
    known = hints(forms(kernel, chosen, signature, constants, {}, ended), chosen)
    failed = [e for e in ended if isinstance(e, GluonError) and e.span is not None]
    here = [hint for hint in known if Path(hint.file).resolve() == Path(file).resolve()]
    if json:
        inlays = [hint.as_inlay() for hint in here]
        print_json({"error": failed[0].as_dict(), "hints": inlays} if failed else inlays)
        return Exit.FAILED if failed else Exit.OK
    for hint in here:
        layout = f"  {'; '.join(hint.layouts)}" if hint.layouts else ""
        print(f"{file}:{hint.line + 1}:{hint.column}: {hint.name}: {hint.label}{layout}")
    if failed:
        raise failed[0]
    return Exit.OK
