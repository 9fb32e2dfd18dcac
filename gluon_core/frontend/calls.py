"""Mistakes in calls, in the words of the language; see `explain`."""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType
from typing import Any, Optional

from gluon_core import _triton
from gluon_core.errors import (
    ArgumentError,
    DtypeError,
    GluonError,
    HostFunctionError,
    KernelSyntaxError,
    ShapeError,
    did_you_mean,
)
from gluon_core.features import VARIADIC
from gluon_core.frontend.host_calls import host_call, host_function, is_library
from gluon_core.frontend.scope import as_operand, make_constant, value_of
from gluon_core.frontend.unfit import no_variadic, unfit_call
from gluon_core.values.tensors import describe

__all__ = ["explain_call"]


def explain_call(generator: Any, node: ast.Call, root: Any) -> Optional[GluonError]:
    called = ast.unparse(node.func)
    if any(isinstance(arg, ast.Starred) for arg in node.args) and isinstance(root, AssertionError):
        return DtypeError(
            "only a tuple can be spread over arguments",
            got=ast.unparse(node),
            remedy="Pass the arguments one by one.",
        )
    if isinstance(node.func, ast.Subscript):
        function = value_of(generator, node.func.value)
        if isinstance(function, _triton.JITCallable):
            name = ast.unparse(node.func.value)
            return HostFunctionError(
                f"a kernel cannot launch {name!r}",
                remedy=f"Call it as a function: {name}(...).",
            )
    narrow = re.match(r"Expected dtype \[(.*)\] but got (\w+)", str(root))
    if narrow is not None:
        first = f"{as_operand(node.args[0])}.to(gl.float32)" if node.args else None
        return DtypeError(
            f"{called} does not take this dtype",
            expected=narrow[1].replace("'", "").replace(", ", " or "),
            got=narrow[2],
            remedy=f"Convert it: {first}." if first and "fp32" in narrow[1] else None,
        )
    axis = re.match(r"invalid axis (-?\d+)\. Expected (-?\d+) <= axis < (\d+)", str(root))
    if axis is not None:
        return ShapeError(
            "the axis is out of range",
            argument="axis",
            expected=f"{axis[2]} to {int(axis[3]) - 1}",
            got=axis[1],
        )
    function = _triton.unwrap(value_of(generator, node.func))
    operands = [*node.args, *(word.value for word in node.keywords)]
    if called.endswith("static_assert"):
        return KernelSyntaxError(
            "the condition of gl.static_assert is not known while compiling",
            got=ast.unparse(node.args[0]) if node.args else None,
            remedy=f"{make_constant(generator, operands)} Or use gl.device_assert.".strip(),
        )
    if "noinline" in str(root):
        return DtypeError(
            f"{called} is a function of its own (noinline=True), which takes and returns scalars only",
            got=ast.unparse(node),
            remedy="Leave noinline out, or pass scalars and pointers.",
        )
    code = getattr(getattr(function, "fn", None), "__code__", None)
    library = code is not None and is_library(code.co_filename)
    if library or "constexpr[" in str(root):
        remedy = make_constant(generator, operands)
        if remedy:
            return DtypeError(
                f"{called} takes a compile-time value where a run-time one is given",
                got=ast.unparse(node),
                remedy=remedy,
            )
    if isinstance(function, _triton.JITFunction) and "Unsupported function" in str(root):
        return host_call(function)
    if isinstance(function, _triton.JITCallable):
        return _arguments(called, function.signature, node, root)
    if getattr(function, "__triton_builtin__", False) and isinstance(root, TypeError):
        if re.search(r"\w+\(\) (?:takes|missing|got)", str(root)):
            return _arguments(called, inspect.signature(function), node, root)
    if "'function' object" in str(root) and not re.search("'(?:fn|arg_names)'", str(root)):
        names = (n for tree in operands for n in ast.walk(tree) if isinstance(n, ast.Attribute))
        for attribute in names:
            if getattr(value_of(generator, attribute), "__triton_builtin__", False):
                shown = ast.unparse(attribute)
                message = f"{shown!r} is a function, and was not called"
                return DtypeError(message, remedy=f"Call it: {shown}().")
    own = _PYTHON.get(called)
    if own is not None:
        return DtypeError(
            f"Python's {called}() does not take this in a kernel",
            got=ast.unparse(node),
            remedy=own,
        )
    if called.split(".")[-1] in ("to", "cast") and isinstance(root, AttributeError):
        shown = ", ".join(map(ast.unparse, operands))
        return DtypeError("not a dtype", expected="a dtype such as gl.float16", got=shown)
    if re.search(r"Shape element \d+ must have type|not iterable", str(root)):
        return ShapeError(
            f"{called}: not a shape",
            expected="a tuple of compile-time integers",
            got=ast.unparse(node),
        )
    host = host_function(called, function)
    if host is not None:
        host.span = generator._span(node.func)
        return host
    literal = isinstance(node.func, (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set))
    lost = function is None and ("is not callable" in str(root) or literal)
    if lost or isinstance(function, ModuleType):
        kind = "a module" if isinstance(function, ModuleType) else None
        return DtypeError(f"{called} cannot be called", got=kind)
    if function is not None and not callable(function):
        return DtypeError(
            f"{called!r} cannot be called",
            expected="a function of the language, or one decorated with @gluon.jit",
            got=describe(function),
        )
    return unfit_call(generator, node, root)


# Python's functions that a kernel may call on compile-time values.
_PYTHON = {
    "float": "Convert with x.to(gl.float32).",
    "getattr": "Write the attribute.",
    "int": "Convert with x.to(gl.int32).",
    "len": "The length of a tensor is x.shape[0].",
    "max": "Give two or more values, or use gl.max for the elements of a tensor.",
    "min": "Give two or more values, or use gl.min for the elements of a tensor.",
}


def _arguments(called: str, signature: Any, node: ast.Call, root: Any) -> Optional[GluonError]:
    """Return the error for a call whose arguments do not fit the parameters of a function."""
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    variadic = [name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL]
    if variadic and not _triton.has(VARIADIC) and not isinstance(root, GluonError):
        return no_variadic(variadic[0])
    if not isinstance(root, (TypeError, AssertionError, ValueError)):
        return None
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    if variadic:
        return None
    names = [parameter.name for parameter in parameters]
    unknown = [word.arg for word in node.keywords if word.arg and word.arg not in names]
    shown = f"{called}{inspect.Signature(parameters)}"
    if unknown:
        return ArgumentError(
            f"{called} has no parameter {unknown[0]!r}",
            expected=shown,
            remedy=did_you_mean(unknown[0], names),
        )
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return None
    places = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    if len(node.args) > len(places):
        by_place = " by place" if len(places) < len(names) else ""
        return ArgumentError(
            f"{called} is called with too many arguments{by_place}",
            expected=f"at most {len(places)}: {shown}",
            got=len(node.args),
        )
    twice = [word.arg for word in node.keywords if word.arg in names[: len(node.args)]]
    if twice:
        message = f"{called} is given {twice[0]!r} by place and by name"
        return ArgumentError(message, expected=shown, got=ast.unparse(node))
    passed = {*names[: len(node.args)], *(word.arg for word in node.keywords)}
    lacking = [p.name for p in parameters if p.default is p.empty and p.name not in passed]
    if lacking:
        message = f"{called} is called without {', '.join(map(repr, lacking))}"
        return ArgumentError(message, expected=shown, got=ast.unparse(node))
    return None
