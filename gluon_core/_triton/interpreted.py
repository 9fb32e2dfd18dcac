"""Triton's library where it was made for Triton's interpreter.

Under TRITON_INTERPRET=1 the functions of `triton.language` run on NumPy and cannot be traced. Ours are
traced all the same, so that a program with both kinds of kernels runs.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from triton.language import standard
from triton.runtime.jit import JITFunction

__all__ = ["traceable"]

_KIND = "InterpretedFunction"
_METHODS = type(standard.sum).__name__ == _KIND  # whether those of tensors are the interpreter's
_made: dict[Any, Any] = {}
_namespaces: dict[int, dict[str, Any]] = {}


def traceable(fn: Any) -> Any:
    """`fn` in the form that kernels trace; anything else than an interpreter's function as it is."""
    if type(fn).__name__ == _KIND:
        return _function(fn)
    if _METHODS and type(fn) is MethodType:
        return _method(fn)
    return fn


def _function(fn: Any) -> Any:
    if fn not in _made:
        body = fn.fn
        names = _traceable_names(body.__globals__)
        copy = FunctionType(
            body.__code__, names, body.__name__, body.__defaults__, body.__closure__
        )
        copy.__kwdefaults__ = body.__kwdefaults__
        copy.__annotations__ = body.__annotations__
        copy.__module__, copy.__qualname__ = body.__module__, body.__qualname__
        copy.__doc__ = body.__doc__
        _made[fn] = JITFunction(copy)
    return _made[fn]


def _method(method: MethodType) -> Any:
    """A method of tensors; one that is written in the language, such as `sum`, wraps its function."""
    for cell in getattr(method.__func__, "__closure__", None) or ():
        if type(cell.cell_contents).__name__ == _KIND:
            from triton.compiler.code_generator import BoundJITMethod

            return BoundJITMethod(method.__self__, _function(cell.cell_contents))
    return method


def _traceable_names(names: dict[str, Any]) -> dict[str, Any]:
    """What the functions of a module see, those of the library in their traceable form."""
    found = _namespaces.get(id(names))
    if found is None:
        found = _namespaces[id(names)] = dict(names)
        for name, value in names.items():
            found[name] = traceable(value)
    return found
