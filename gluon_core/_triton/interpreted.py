"""Triton's library where it was made for Triton's interpreter.

Under TRITON_INTERPRET=1 the functions of `triton.language` run on NumPy and cannot be traced. Ours are
traced all the same, so that a program with both kinds of kernels runs.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from triton.runtime.jit import JITFunction

__all__ = ["traceable"]

_made: dict[Any, Any] = {}
_namespaces: dict[int, dict[str, Any]] = {}


def traceable(fn: Any) -> Any:
    """`fn` in the form that kernels trace; anything else than an interpreter's function as it is."""
    if type(fn) is MethodType:
        return _traceable_method(fn)
    if type(fn).__name__ != "InterpretedFunction":
        return fn
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


def _traceable_method(method: MethodType) -> Any:
    """Methods of tensors that are written in the language, such as `sum`."""
    for cell in getattr(method.__func__, "__closure__", None) or ():
        found = traceable(cell.cell_contents)
        if found is not cell.cell_contents:
            from triton.compiler.code_generator import BoundJITMethod

            return BoundJITMethod(method.__self__, found)
    return method


def _traceable_names(names: dict[str, Any]) -> dict[str, Any]:
    """What the functions of a module see, those of the library in their traceable form."""
    found = _namespaces.get(id(names))
    if found is None:
        found = _namespaces[id(names)] = dict(names)
        for name, value in names.items():
            found[name] = traceable(value)
    return found
