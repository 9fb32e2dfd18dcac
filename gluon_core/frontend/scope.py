"""Evaluate the names in a failed expression of a kernel."""

from __future__ import annotations

import ast
from typing import Any, Iterator

from gluon_core import _triton
from gluon_core._triton import tl

__all__ = ["as_operand", "make_constant", "value_of"]


def value_of(generator: Any, node: Any) -> Any:
    """Return the value of a name, or of an attribute of one; None where it takes more to know."""
    if isinstance(node, ast.Name):
        for scope in (generator.lscope, generator.gscope, generator.builtin_namespace):
            if node.id in scope:
                return scope[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _triton.unwrap(value_of(generator, node.value))
        try:
            return None if owner is None else getattr(owner, node.attr, None)
        except ValueError:  # Triton's tuples, of a name that they do not have
            return None
    return None


def make_constant(generator: Any, nodes: Any) -> str:
    """Return the remedy that makes the first scalar variable in `nodes` a compile-time value."""
    for name in _scalars(generator, nodes):
        if name in generator.jit_fn.arg_names:
            params = generator.jit_fn.params
            if params[generator.jit_fn.arg_names.index(name)].is_constexpr:
                return f"{name} is a gl.constexpr already: call it with a compile-time value."
            return f"Annotate the parameter: {name}: gl.constexpr."
        if _declared_constant(generator, name):
            return f"Set {name!r}, a gl.constexpr, to a compile-time value."
        return f"Annotate {name!r} where it is set: {name}: gl.constexpr = ..."
    return ""


def _declared_constant(generator: Any, name: str) -> bool:
    """Return True if a line of the kernel declares a variable as a `gl.constexpr`."""
    return any(
        isinstance(node, ast.AnnAssign)
        and ast.unparse(node.target) == name
        and ast.unparse(node.annotation).split(".")[-1] == "constexpr"
        for node in ast.walk(generator.jit_fn.parse())
    )


def _scalars(generator: Any, nodes: Any) -> Iterator[str]:
    for tree in nodes:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name):
                continue
            value = generator.lscope.get(node.id)
            if isinstance(value, tl.constexpr):  # a variable that got a run-time value, too
                value = value.value
            if isinstance(value, tl.tensor):
                if not value.type.is_block() and not value.dtype.is_ptr():
                    yield node.id
            elif isinstance(value, _triton.tl_tuple):
                yield node.id


def as_operand(node: ast.expr) -> str:
    """Return an expression as text that an attribute may follow."""
    plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return ast.unparse(node) if plain else f"({ast.unparse(node)})"
