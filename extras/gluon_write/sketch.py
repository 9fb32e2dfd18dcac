"""Trace a kernel whose layouts are left out: its ops, and the expression of each operand."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from gluon_core import portable
from gluon_core._triton import tl, unwrap
from gluon_core.errors import CapabilityError
from gluon_core.frontend.generator import KernelGenerator
from gluon_core.frontend.trace import trace
from gluon_core.language.reductions import dot_fma
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.semantic.base import shape_of

__all__ = ["Place", "Sketch", "place_of", "sketch"]

Place = tuple[str, int, int, int, int]  # kind of node, first line and column, last line and column


@dataclass
class Sketch:
    """Hold a traced kernel.

    Attributes:
        program: the recorded ops, with `AutoLayout` wherever a layout was left out.
        nodes: id of an op of the kernel itself -> the expression that was evaluated.
        returned: place of an expression -> the values that it had.
        within: place of an expression -> places of the expressions in it, outermost first.
        functions: place of a call -> public name of the function.
    """

    program: Any = None
    nodes: dict[int, Place] = field(default_factory=dict)
    returned: dict[Place, list[Any]] = field(default_factory=dict)
    within: dict[Place, list[Place]] = field(default_factory=dict)
    functions: dict[Place, str] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # ops, so that no id is used twice


def place_of(node: Any) -> Optional[Place]:
    """Return the place of an expression, by which another parse of the source finds it."""
    if not isinstance(node, ast.expr) or getattr(node, "lineno", None) is None:
        return None
    last = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return (type(node).__name__, node.lineno, node.col_offset, *last)


class _Sketcher(KernelGenerator):
    """Record which expression each op and each value belongs to."""

    drawn: Sketch

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.path: list[Place] = []
        if self.is_kernel:
            type(self).top = self
        semantic: Any = self.semantic
        semantic._check_split = lambda value, shape: None  # only a chosen layout can be checked
        builder: Any = self.builder
        record = builder.record

        def recorded(*args: Any, **kwargs: Any) -> Any:
            op = record(*args, **kwargs)
            path = self.path
            if self.is_kernel and path:
                self.drawn.nodes[id(op)] = path[-1]
                self.drawn.kept.append(op)
            return op

        builder.record = recorded

    def visit(self, node: Any) -> Any:
        place = place_of(node) if self.is_kernel else None
        if place is None:
            return super().visit(node)
        for outer in self.path:
            inner = self.drawn.within.setdefault(outer, [])
            if place not in inner:
                inner.append(place)
        self.path.append(place)
        try:
            value = super().visit(node)
        finally:
            self.path.pop()
        if isinstance(value, tl.tensor):
            self.drawn.returned.setdefault(place, []).append(value.handle)
        return value

    def visit_Call(self, node: Any) -> Any:
        if not self.is_kernel:
            return super().visit_Call(node)
        called = unwrap(self.visit(node.func))
        name = getattr(called, "public", None) or getattr(called, "__name__", "")
        place = place_of(node)
        if place is not None:
            self.drawn.functions[place] = str(name)
        if called not in (portable.mma, dot_fma):
            return super().visit_Call(node)
        named = dict(zip(("a", "b", "acc"), (self.visit(arg) for arg in node.args)))
        named |= {word.arg: self.visit(word.value) for word in node.keywords}
        values = [self.semantic.require_tensor(named.get(n), n, rank=2) for n in ("a", "b", "acc")]
        a, b, acc = values
        (m, k), (_, n) = shape_of(a), shape_of(b)
        op = self.builder.record("mma", tuple(v.handle for v in values), [acc.handle.type])
        if called is portable.mma:
            layouts_of: Any = portable.mma_layouts
            layouts = layouts_of(
                m, n, k, a.dtype, b.dtype, acc.dtype,
                input_precision=named.get("input_precision"), operands="registers",
                _semantic=self.semantic,
            )  # fmt: skip
            chosen = unwrap(layouts)
            op.attrs["layouts"] = [unwrap(getattr(chosen, f)) for f in ("a", "b", "accumulator")]
        return self.semantic.make_tensor(op.results[0], acc.type)


def sketch(
    fn: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], Any],
    target: Target,
    options: Any,
) -> Sketch:
    """Trace a kernel on the simulator's builder for `target`, layouts left out.

    Raises:
        CapabilityError: the simulator is not installed.
        GluonError: the kernel is wrong, whatever its layouts; with its line.
    """
    backend = registry().backends.get("sim")
    if backend is None:
        raise CapabilityError(
            "layouts are chosen from a trace that the simulator records",
            argument="layouts",
            remedy="Install gluon-sim, or write the layouts.",
        )
    twin = Target("sim", target.architecture)
    asked = {"num_warps": int(options.num_warps), "num_ctas": int(options.num_ctas)}
    asked["sanitize_overflow"] = False  # its checks are no ops of the kernel
    drawn = Sketch()
    kind = type("Sketcher", (_Sketcher,), {"drawn": drawn})
    drawn.program = trace(
        fn, signature, constexprs, attrs, backend=backend, target=twin,
        options=backend.compiler.options(twin, asked), kind=kind,
    )  # fmt: skip
    return drawn
