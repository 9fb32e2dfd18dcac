"""The layouts and conversions to write into the functions of a kernel, place by place."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional

from gluon_core import language
from gluon_core._triton import tl, unwrap
from gluon_write.solver.refusals import agree, of_plain_function
from gluon_write.solver.solve import Solution, plan_of
from gluon_write.solver.unknowns import AnyLayout, Graph
from gluon_write.text.form import Form, free_name
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.sketch import Place, place_of

__all__ = ["Edits", "edits_of", "of_triton", "partitions_of", "space_in", "space_of"]


@dataclass
class Edits:
    """Hold the parts that make one function explicit, as it is called in one place.

    Attributes:
        fn: the function. name: of its explicit copy; a kernel keeps its own.
        names: layout -> the name that the function's body has for it.
        layouts: place of a call that makes a tensor -> its layout.
        conversions: place of an expression -> the layout that it is converted to.
        calls: place of a call -> the edits of the function that it calls.
    """

    fn: Any
    name: str
    names: dict[AnyLayout, str] = field(default_factory=dict)
    layouts: dict[Place, Any] = field(default_factory=dict)
    conversions: dict[Place, Any] = field(default_factory=dict)
    calls: dict[Place, Edits] = field(default_factory=dict)

    def name_of(self, layout: AnyLayout) -> str:
        """Return the name of a layout, a new one for a new layout."""
        return self.names.setdefault(layout, f"layout_{len(self.names)}")

    def all(self) -> Iterator[Edits]:
        """Yield the edits of the functions that are called, innermost first and each once, and these."""
        seen: set[int] = set()
        for called in self.calls.values():
            for one in called.all():
                if id(one) not in seen:
                    seen.add(id(one))
                    yield one
        yield self


def edits_of(graph: Graph, solution: Solution, name: Optional[str] = None) -> Edits:
    """Return the layouts and conversions to write, in the order of the source.

    Args:
        name: of the explicit kernel; None for its own.
    """
    kernel = Edits(graph.jits[0], name or graph.jits[0].__name__)
    for inner in graph.contexts:
        _within(kernel, inner, graph)
    for one in graph.unknowns:
        for context, place in one.sites:
            edits, layout = _within(kernel, context, graph), solution.chosen[one.number]
            agree(edits.fn, one.line, edits.layouts.setdefault(place, layout), layout)
    for relation in graph.relations:
        source, result = (solution.chosen[e.number] for e in (relation.source, relation.result))
        pair = plan_of(relation, source, result)[1]
        if pair is not None and relation.wrap is not None:
            context, place = relation.wrap[1]
            edits = _within(kernel, context, graph)
            known = edits.conversions.setdefault(place, pair[1])
            agree(edits.fn, relation.line, known, pair[1])
    _complete(kernel, graph)
    _share(kernel, {})
    for edits in kernel.all():
        for place in sorted({*edits.layouts, *edits.conversions}, key=lambda p: p[1:]):
            for kind in (edits.layouts, edits.conversions):
                if place in kind:
                    edits.name_of(kind[place])
    return kernel


def _complete(kernel: Edits, graph: Graph) -> None:
    """Let calls of written functions in branches that no launch takes name a copy of theirs; all other calls have one."""
    copies: dict[int, Edits] = {}
    for edits in kernel.all():
        copies.setdefault(id(edits.fn), edits)
    for edits in [*kernel.all()]:
        number, form = (
            next(i for i, one in enumerate(graph.jits) if one is edits.fn),
            Form(edits.fn),
        )
        for node in nodes_in(form.tree):
            place = place_of(node, number) if isinstance(node, ast.Call) else None
            called = None if place is None or place in edits.calls else form.called(node)
            copy = copies.get(id(called)) if getattr(called, "changed", False) else None
            if place and copy is not None and all(one is not edits for one in copy.all()):
                edits.calls[place] = copy


def _share(edits: Edits, known: dict[Any, Edits]) -> Edits:
    """Return the first edits of `known` that are the same; let calls of one function share such edits."""
    edits.calls = {place: _share(called, known) for place, called in edits.calls.items()}
    parts = [frozenset(edits.layouts.items()), frozenset(edits.conversions.items())]
    called = frozenset((place, id(one)) for place, one in edits.calls.items())
    return known.setdefault((id(edits.fn), *parts, called), edits)


def _within(kernel: Edits, context: tuple[Place, ...], graph: Graph) -> Edits:
    """Return the edits of the function that a chain of calls enters."""
    edits = kernel
    for call in context:
        if call not in edits.calls:
            fn = graph.called.get(call)
            if fn is None:
                raise of_plain_function(edits.fn, call[1])
            number = 1 + sum(one.fn.__name__ == fn.__name__ for one in kernel.all())
            own = kernel.name == kernel.fn.__name__
            number -= own and getattr(fn, "written", False)  # it is this kernel's alone
            edits.calls[call] = Edits(fn, _name_of(fn, kernel, edits, number))
        edits = edits.calls[call]
    return edits


def _name_of(fn: Any, kernel: Edits, caller: Edits, number: int) -> str:
    """Return the name of a function's copy, which the files of the kernel and of its caller have for nothing else, nor another copy."""
    scopes = [kernel.fn.get_capture_scope(), caller.fn.get_capture_scope()]
    taken = {one.name for one in kernel.all()}
    while True:
        name = f"{fn.__name__}_{kernel.name}" if number else fn.__name__
        name += f"_{number}" if number > 1 else ""
        if name not in taken and all(unwrap(scope.get(name, fn)) is fn for scope in scopes):
            return name
        number += 1


def partitions_of(node: ast.Call) -> Iterator[tuple[int, ast.Name]]:
    """Yield number and name of each function that a call of `gl.warp_specialize` lists."""
    pairs = node.args[0] if node.args else None
    for index, pair in enumerate(pairs.elts if isinstance(pairs, (ast.List, ast.Tuple)) else ()):
        if isinstance(pair, ast.Tuple) and pair.elts and isinstance(pair.elts[0], ast.Name):
            yield index, pair.elts[0]


def space_in(scope: Mapping[str, Any]) -> str:
    """Return the name of the language in a kernel's file, a new one where it has none."""
    return space_of(scope) or free_name("gl", set(scope))


def space_of(scope: Mapping[str, Any]) -> Optional[str]:
    """Return the name under which a kernel's file has the language."""
    return next((name for name, value in scope.items() if value is language), None)


def of_triton(called: ast.expr, fn: Any) -> Optional[str]:
    """Return the name of a function of plain Triton that the language has with a layout, as `tl.arange`; else None."""
    scope = fn.get_capture_scope()
    if isinstance(called, ast.Name):
        value = unwrap(scope.get(called.id))
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        value = getattr(unwrap(scope.get(called.value.id)), called.attr, None)
    else:
        return None
    word = getattr(value, "__name__", "")
    plain = bool(word) and value is getattr(tl, word, None)
    return word if plain and getattr(language, word, value) is not value else None
