"""Find the functions of host code that a kernel calls, and distinguish them from those that kernels may call."""

from __future__ import annotations

import ast
import linecache
import os
from types import ModuleType
from typing import Any, Optional

from gluon_core import _triton, language
from gluon_core._triton import tl
from gluon_core.errors import HostFunctionError, SourceSpan

__all__ = ["host_call", "host_function", "is_library"]

# Code that is written in the language, and not by the user.
_LIBRARIES = tuple(os.path.dirname(path) + os.sep for path in (tl.__file__, language.__file__))


def is_library(file: Optional[str]) -> bool:
    """Return True if a file holds functions of the language's own library."""
    return file is not None and file.startswith(_LIBRARIES)


def host_function(called: str, function: Any) -> Optional[HostFunctionError]:
    """Return the error for a call of a function of host code; None for all that kernels may call."""
    if function is None or not callable(function) or isinstance(function, (type, tl.tensor)):
        return None
    if isinstance(getattr(function, "__self__", None), _triton.base_value):
        return None
    function = getattr(function, "__func__", function)
    marked = getattr(function, "__triton_builtin__", False)
    if marked or isinstance(function, (_triton.JITCallable, _triton.constexpr)):
        return None
    module = getattr(function, "__module__", None) or type(function).__module__
    if module.split(".")[0] in ("triton", "builtins") or isinstance(function, ModuleType):
        return None
    code = getattr(function, "__code__", None)
    if module == "gluon_core" or module.startswith("gluon_core."):
        return HostFunctionError(
            f"{called!r} is for host code and was called in a kernel",
            remedy="Call it where the kernel is launched.",
        )
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    if module.split(".")[0] in ("numpy", "math", "torch", "scipy", "random"):
        name = called.split(".")[-1]
        known = f"Use gl.{name}." if name in vars(language) else "Use the ops of gl."
        return HostFunctionError(
            f"{called!r} is a function of {module.split('.')[0]}, which cannot run in a kernel",
            remedy=f"{known} Compute values that are known before the launch there, and pass them.",
        )
    return HostFunctionError(
        f"{called!r}{where} is plain Python, and no function of kernels",
        remedy="Decorate it with @gluon.jit, or with @gluon.constexpr_function if it works on "
        "compile-time values.",
    )


def host_call(jit_function: Any) -> Optional[HostFunctionError]:
    """Return the error for the first call of a host function in a kernel or in its callees; None without."""
    return _search(jit_function, set())


def _search(jit_function: Any, seen: set[int]) -> Optional[HostFunctionError]:
    if id(jit_function) in seen:
        return None
    seen.add(id(jit_function))
    tree = jit_function.parse()
    scope = jit_function.get_capture_scope()
    local = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            local.add(node.id)
    callees = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = _value(node.func, scope, local)
            error = host_function(ast.unparse(node.func), function)
            if error is not None:
                error.span = _span(jit_function, node)
                return error
            if isinstance(function, _triton.JITFunction):
                callees.append(function)
    errors = (_search(function, seen) for function in callees)
    return next((error for error in errors if error is not None), None)


def _value(node: ast.expr, scope: Any, local: set[str]) -> Any:
    if isinstance(node, ast.Name):
        return None if node.id in local else scope.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _triton.unwrap(_value(node.value, scope, local))
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _span(jit_function: Any, node: ast.Call) -> SourceSpan:
    path, first = _triton.source_position(jit_function)
    line = first + node.lineno - 1
    text = linecache.getline(path, line).rstrip("\n")
    column = node.col_offset + len(text) - len(text.lstrip()) - _indent(jit_function, node.lineno)
    name = ast.unparse(node.func)
    return SourceSpan(path, line, column, column + len(name), text)


def _indent(jit_function: Any, line: int) -> int:
    own = jit_function.src.split("\n")[line - 1]
    return len(own) - len(own.lstrip())
