"""Functions of Triton's library: parsed once, and traced also where they were made for the interpreter.

Under TRITON_INTERPRET=1 the functions of `triton.language` run on NumPy and cannot be traced. Ours are
traced all the same, so that a program with both kinds of kernels runs.

The interpreter also exchanges the ops of `triton.language` while a kernel runs, and leaves the
functions that the kernel calls, `tl.sum` or the user's, exchanged.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import functools
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Optional

import triton.language as tl
from triton.language import core, standard
from triton.runtime.jit import JITFunction

__all__ = ["ParsedOnce", "as_written", "parsed_once", "traceable"]

_MODULE = "triton.runtime.interpreter"
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
    """Return a method of tensors; one that is written in the language, such as `sum`, wraps its function."""
    for cell in getattr(method.__func__, "__closure__", None) or ():
        if type(cell.cell_contents).__name__ == _KIND:
            from triton.compiler.code_generator import BoundJITMethod

            return BoundJITMethod(method.__self__, _function(cell.cell_contents))
    return method


def _traceable_names(names: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a module's functions, those of the library in their traceable form."""
    namespace = _namespaces.get(id(names))
    if namespace is None:
        namespace = _namespaces[id(names)] = dict(names)
        for name, value in names.items():
            namespace[name] = traceable(value)
    return namespace


# -- ops that are the interpreter's -------------------------------------------------------------

_absent = object()


def as_written() -> None:
    """Give the language back the ops that the interpreter has left exchanged."""
    for owner, names in _written.items():
        members = vars(owner)
        for name, value in names.items():
            if members.get(name) is not value and _of_interpreter(members.get(name)):
                setattr(owner, name, value)
        if len(members) > len(names):
            for name in [name for name in members.keys() - names if _of_interpreter(members[name])]:
                delattr(owner, name)


def _of_interpreter(value: Any) -> bool:
    if type(value).__name__ == _KIND:
        return False  # a function of the library, as the interpreter's environment has it
    value = getattr(value, "fget", getattr(value, "func", value))  # properties, partial functions
    return value is builtins.print or getattr(value, "__module__", None) == _MODULE


def _names(owner: Any) -> dict[str, Any]:
    """Return the members of `owner`, without the interpreter's."""
    members = {
        name: _original(owner, name, value) if _of_interpreter(value) else value
        for name, value in vars(owner).items()
    }
    return {name: value for name, value in members.items() if value is not _absent}


def _original(owner: Any, name: str, value: Any) -> Any:
    """Return the interpreter's stand-in for `value` from before this module was imported."""
    kept = getattr(value, "__kwdefaults__", None) or {}
    if "member" in kept:  # its stand-in calls it
        return kept["member"]
    if isinstance(owner, type):
        return vars(_source(owner.__name__)).get(name, _absent)
    other = vars(core if owner is tl else tl).get(name)
    return _source(name) if other is None or _of_interpreter(other) else other


@functools.lru_cache(maxsize=None)
def _source(name: str) -> Any:
    """Return a class or function of the core of Triton's language, made once more of its text."""
    path = Path(str(core.__file__))
    (node,) = [n for n in ast.parse(path.read_text()).body if getattr(n, "name", None) == name]
    flags = __future__.annotations.compiler_flag
    copies: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), str(path), "exec", flags, True), vars(core), copies)
    return copies[name]


_OWNERS = ("tensor", "dtype", "tensor_descriptor_base", "condition")
_written: dict[Any, dict[str, Any]] = {
    owner: _names(owner)
    for owner in (tl, core, tl.math, *(getattr(core, n) for n in _OWNERS if hasattr(core, n)))
}
as_written()


# -- parsed once -----------------------------------------------------------------------------------


class ParsedOnce(JITFunction):  # type: ignore[misc]  # Triton's, without types
    """A jit function whose source is parsed when it is first traced: of a tensor's `max`, say, each
    kernel has use."""

    _parsed: Optional[tuple[str, Any]] = None

    def parse(self) -> Any:
        """Return the syntax tree of the function, which nobody changes."""
        known = self._parsed
        if known is None or known[0] is not self.src:
            known = self._parsed = self.src, super().parse()
        return known[1]


_once: dict[JITFunction, ParsedOnce] = {}


def parsed_once(fn: JITFunction) -> JITFunction:
    """Return a function of Triton's own library as one that is parsed once; others as they are."""
    if type(fn) is not JITFunction or not fn.module.startswith("triton."):
        return fn
    parsed = _once.get(fn)
    if parsed is None:
        parsed = _once[fn] = copy.copy(fn)
        parsed.__class__ = ParsedOnce
    return parsed
