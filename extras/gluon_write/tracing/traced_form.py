"""Read a function of a traced kernel: its text, and the values that its expressions had."""

from __future__ import annotations

import ast
from typing import Any, Optional, Sequence

from gluon_core import portable
from gluon_write.text.form import Form, rewritten
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.sketch import Place, Sketch, place_of

__all__ = ["TracedForm"]


class TracedForm(Form):
    """Hold the source of a function of a traced kernel. Classes that change it have `text()`: the new source, None for the same.

    Args:
        number: of the function in the traced kernel `drawn`.
    """

    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn)
        self.number, self.drawn = number, drawn

    @classmethod
    def rewrite(cls, fn: Any, drawn: Sketch, *args: Any, **words: Any) -> Any:
        """Return a kernel whose functions have the texts of `text(**words)`, which is None for the same; itself if all are.

        Args:
            args: of the class, behind the trace.
        """
        kind: Any = cls
        return rewritten(fn, drawn.jits, lambda jit, n: kind(jit, n, drawn, *args).text(**words))

    def place_of(self, node: Any) -> Optional[Place]:
        """Return the place of an expression of the function."""
        return place_of(node, self.number)

    def values_of(self, node: Any) -> Sequence[Any]:
        """Return the values that an expression had, once for each time that it was traced."""
        return self.drawn.values_of(node, self.number)

    def shapes_of(self, node: Any) -> set[tuple[int, ...]]:
        """Return the shapes of an expression's values, () of scalars."""
        return {tuple(getattr(value.type, "dims", ())) for value in self.values_of(node)}

    def ranks_of(self, node: Any) -> set[int]:
        """Return the ranks of an expression's values, 0 of scalars."""
        return set(map(len, self.shapes_of(node)))

    def elements_of(self, node: Any) -> set[str]:
        """Return the types of the elements of an expression's values."""
        return {str(getattr(value.type, "element", "")) for value in self.values_of(node)}

    def is_tensor(self, node: Any) -> bool:
        """Return True if an expression was a tensor."""
        return any(self.shapes_of(node))

    def dtype_and_shape(self, node: Any) -> Optional[tuple[str, tuple[int, ...]]]:
        """Return the dtype and shape of an expression's value; None where they are not known."""
        kinds = {(str(v.type.element), tuple(v.type.dims)) for v in self.values_of(node)}
        return kinds.pop() if len(kinds) == 1 else None

    def has_products(self, tree: ast.AST) -> bool:
        """Return True if a tree has a product."""
        return any(self.called(node) is portable.mma for node in nodes_in(tree))

    def loops_of_products(self) -> list[ast.For]:
        """Return the innermost loops of products, the last first."""
        loops = [loop for loop in self.for_loops() if self.has_products(loop)]
        inner = [n for n in loops if not any(m is not n and m in loops for m in nodes_in(n))]
        return sorted(inner, key=lambda loop: loop.lineno, reverse=True)
