"""Tell whether the mask of a load already excludes the steps behind the last one of its loop.

    for k in range(0, gl.cdiv(K, BK)):
        x = gl.load(pointers, mask=gl.arange(0, BK)[None, :] < K - k * BK)

Copies that run ahead of such a loop need no other mask: K - k * BK is at most zero there.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from typing import Any, Optional, Sequence

from gluon_core import language
from gluon_write.text.form import Form
from gluon_write.text.syntax import argument, nodes_in, parts_of, sides_of, stores

__all__ = ["Terms", "ends_with", "excludes_later_steps", "is_place", "terms_of"]

Product = tuple[str, ...]  # the factors of a term, sorted
Terms = Counter[Product]


def excludes_later_steps(form: Form, mask: Optional[ast.expr], loop: ast.For) -> bool:
    """Return True if a mask is false in every step from the end of a loop on.

    Args:
        form: the function with the loop, which counts up to its end.
    """
    bounds = loop.iter
    if mask is None or not isinstance(bounds, ast.Call) or not isinstance(loop.target, ast.Name):
        return False
    names = {
        node.id for part in (mask, bounds) for node in nodes_in(part) if isinstance(node, ast.Name)
    }
    if names & {name for statement in loop.body for name in stores(statement)}:
        return False
    end = bounds.args[0] if len(bounds.args) == 1 else bounds.args[1]
    extent, step = end, ""  # (the elements of all steps, the factors of those of one)
    if form.called(end) is language.cdiv and isinstance(end, ast.Call) and len(end.args) == 2:
        extent, step = end.args[0], ast.unparse(end.args[1])
    consumed = tuple(sorted([loop.target.id, *(_factors(step) if step else [])]))
    limit = terms_of(extent)
    return any(_excludes(form, part, limit, consumed) for part in parts_of(mask, ast.BitAnd))


def ends_with(form: Form, call: ast.Call, loop: ast.For) -> bool:
    """Return True if the mask of a load of a loop is false in every step from its end on.

    Args:
        form: the function with the loop, which counts up to its end.
    """
    mask = argument(call, 1, "mask")
    if mask is None:
        return False
    earlier = [s for s in loop.body if (s.end_lineno or 0) < call.lineno]
    return excludes_later_steps(form, _Written(earlier).visit(copy.deepcopy(mask)), loop)


def _excludes(form: Form, condition: ast.expr, limit: Terms, consumed: Product) -> bool:
    """Return True for `consumed + places < limit`, in any order of its terms, of places that are not negative."""
    sides = sides_of(condition)
    if sides is None:
        return False
    low, high = sides
    rest = Counter(terms_of(low))
    rest.subtract(terms_of(high))
    rest.update(limit)
    rest.subtract(Counter([consumed]))
    return all(
        count == 0 or count > 0 and len(product) == 1 and is_place(form, product[0]) is not None
        for product, count in rest.items()
    )


def terms_of(node: ast.expr) -> Terms:
    """Return the terms of a sum, how often each is added."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        terms = Counter(terms_of(node.left))
        (terms.update if isinstance(node.op, ast.Add) else terms.subtract)(terms_of(node.right))
        return terms
    return Counter([tuple(sorted(_factors(ast.unparse(node))))])


def _factors(text: str) -> list[str]:
    """Return the factors of a product; views of a vector count as the vector."""
    node = ast.parse(text, mode="eval").body
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(ast.unparse(node.left)), *_factors(ast.unparse(node.right))]
    return [ast.unparse(node)]


def is_place(form: Form, text: str) -> Optional[ast.Call]:
    """Return the call of `gl.arange` that a text is, or a name of nothing else; None of others."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Name):
        stored = [n for n in nodes_in(form.tree) if isinstance(n, ast.Name)
                  and n.id == node.id and isinstance(n.ctx, ast.Store)]  # fmt: skip
        values = [s.value for s in nodes_in(form.tree) if isinstance(s, ast.Assign)
                  and len(s.targets) == 1 and s.targets[0] in stored]  # fmt: skip
        return is_place(form, ast.unparse(values[0])) if len(stored) == 1 == len(values) else None
    called = isinstance(node, ast.Call) and form.called(node) is language.arange
    return node if called and isinstance(node, ast.Call) else None


class _Written(ast.NodeTransformer):
    """Write an expression with the values of names that a step assigns, and without views of vectors.

    Args:
        earlier: the statements of the step before it.
    """

    def __init__(self, earlier: Sequence[ast.stmt]):
        self.values = {
            s.targets[0].id: s.value
            for s in earlier
            if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
            and sum(s.targets[0].id in stores(one) for one in earlier) == 1
        }  # fmt: skip

    def visit_Name(self, node: ast.Name) -> Any:
        value = self.values.get(node.id)
        return node if value is None else self.visit(copy.deepcopy(value))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return self.visit(node.value)
