"""Explain a failure of Python itself in the middle of an op: which values it cannot work with."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any, Optional

from gluon_core import _triton
from gluon_core.errors import (
    ArgumentError,
    DtypeError,
    GluonError,
    KernelSyntaxError,
    ShapeError,
    TraceError,
    did_you_mean,
)
from gluon_core.features import VARIADIC
from gluon_core.frontend.host_calls import is_library
from gluon_core.frontend.scope import make_constant, value_of
from gluon_core.values import shared_memory_descriptor
from gluon_core.values.tensors import describe

__all__ = ["no_item", "no_variadic", "unfit_attribute", "unfit_call", "unfit_item", "unfit_number"]

_RAW = re.compile(
    r"object is not|unsupported operand|NoneType|not supported between|cannot unpack|to tensor$"
)


def _is_raw(root: Any) -> bool:
    """Return True if Python failed over a value of another kind than expected: others say more."""
    if isinstance(root, GluonError):
        return False
    if isinstance(root, (TypeError, ValueError)):
        return _RAW.search(str(root)) is not None
    return isinstance(root, (AttributeError, IndexError, KeyError)) or (
        isinstance(root, AssertionError) and not str(root)
    )


def _shown(node: Any, value: Any) -> str:
    """Return an argument and its kind, where both are known and say different things."""
    text = ast.unparse(node)
    if value is None and not isinstance(node, ast.Constant):
        return text
    if isinstance(node, ast.Constant) or callable(_triton.unwrap(value)):
        return text
    shape = getattr(value, "shape", None)
    if isinstance(value, _triton.tensor) and shape:
        return f"{text} = {value.dtype}[{', '.join(map(str, map(_triton.unwrap, shape)))}]"
    return f"{text} = {describe(value)}"


def unfit_call(generator: Any, node: ast.Call, root: Any) -> Optional[GluonError]:
    """Return a call of the language that Python's own error came out of."""
    if not _is_raw(root):
        return None
    function = _triton.unwrap(value_of(generator, node.func))
    code = getattr(getattr(function, "fn", function), "__code__", None)
    builtin = getattr(function, "__triton_builtin__", False)
    if not builtin and not (code is not None and is_library(code.co_filename)):
        return None
    called = ast.unparse(node.func)
    arguments = [*node.args, *(word.value for word in node.keywords)]
    values = [value_of(generator, argument) for argument in arguments]
    names = [f"{word.arg}=" for word in node.keywords if word.arg]
    names = [*[""] * len(node.args), *names, *[""] * len(arguments)]
    if any(isinstance(value, shared_memory_descriptor) for value in values):
        return DtypeError(
            f"{called.rpartition('.')[2]} takes tensors, and one of these is a buffer",
            got=", ".join(map(ast.unparse, arguments)),
            remedy="Load the buffer first: buffer.load(layout).",
        )
    if re.search(r"no attribute '(?:fn|signature|arg_names|bind)'", str(root)):
        functions = [
            a
            for a, v in zip(arguments, values)
            if isinstance(_triton.unwrap(v), _triton.JITCallable)
        ]
        if not functions:
            return ArgumentError(
                f"{called} combines with a function of a kernel",
                argument="combine_fn",
                expected="the name of a function with @gluon.jit of two values, not a call of it",
                got=ast.unparse(node),
            )
    shown = ", ".join(
        name + _shown(argument, value) for name, argument, value in zip(names, arguments, values)
    )
    parameters = inspect.signature(function).parameters.values() if builtin else ()
    names = [p.name for p in parameters if not p.name.startswith("_")]
    return DtypeError(
        f"{called} cannot work with one of these arguments",
        expected=f"{called}({', '.join(names)})" if names else None,
        got=shown or "none",
        remedy=make_constant(generator, arguments) or None,
    )


def unfit_attribute(generator: Any, node: ast.Attribute, root: Any) -> Optional[GluonError]:
    """Return an attribute of something that is no tensor."""
    if not isinstance(root, AttributeError):
        return None
    text = ast.unparse(node.value)
    owner = _triton.unwrap(value_of(generator, node.value))
    near = None
    if owner is not None:
        near = did_you_mean(node.attr, [n for n in dir(owner) if not n.startswith("_")])
    return TraceError(
        f"{text!r} has no {node.attr!r}",
        got=None if owner is None or callable(owner) else describe(owner),
        remedy=near,
    )


def no_item(node: ast.Subscript, count: int) -> GluonError:
    """Return the error of an index of a tuple with `count` items."""
    expected = f"{-count} to {count - 1}" if count else "an index of a tuple with items"
    return ShapeError("no such item in a tuple", expected=expected, got=ast.unparse(node))


def no_variadic(name: str) -> GluonError:
    """Return the error of a parameter `*name` for a Triton that takes none."""
    return KernelSyntaxError(
        VARIADIC.refusal(f"the parameter `*{name}`", _triton.VERSION),
        remedy=f"Leave the `*` out, and pass a tuple as {name}.",
    )


def unfit_item(generator: Any, node: ast.Subscript, root: Any) -> Optional[GluonError]:
    """Return an index of a literal, or of a value without items."""
    if isinstance(node.value, (ast.Tuple, ast.List)) and not isinstance(root, GluonError):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            return no_item(node, len(node.value.elts))
        return DtypeError(
            "the index of a tuple is a compile-time integer",
            got=ast.unparse(node),
            remedy=make_constant(generator, [node.slice]) or None,
        )
    value = _triton.unwrap(value_of(generator, node.value))
    if value is None or hasattr(value, "__getitem__"):
        return None
    return DtypeError(
        f"{ast.unparse(node.value)!r} has no items",
        expected="a tuple, or a tensor with `:` and `None`",
        got=describe(value),
    )


def unfit_number(node: ast.BinOp, root: Any) -> Optional[GluonError]:
    """Arithmetic of compile-time numbers that has no result."""
    if isinstance(root, ZeroDivisionError):
        return ArgumentError("a division by zero", got=ast.unparse(node))
    if isinstance(root, OverflowError) or "shift count" in str(root):
        return ArgumentError(f"no number comes of this: {root}", got=ast.unparse(node))
    return None
