"""Convert an exception of the code generator to our error: its class, message, span, call chain."""

from __future__ import annotations

import ast
import re
import sys
from typing import Any, Mapping, Optional

from gluon_core import _triton
from gluon_core._triton import CompilationError
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    GluonError,
    KernelSyntaxError,
    ShapeError,
    StaticAssertionError,
    TraceError,
)
from gluon_core.frontend.explain import reworded
from gluon_core.frontend.host_calls import is_library

__all__ = ["kernel_error"]

_TRITON = (
    _triton.CompileTimeAssertionFailure,
    _triton.UnsupportedLanguageConstruct,
    CompilationError,
)


_TOO_DEEP = "too many nested calls"
_FEW_CALLS = 8  # one within the other; functions that call themselves come to many more


def kernel_error(error: CompilationError, fn: Any) -> GluonError:
    """Our error for one that came out of the code generator: its class, message, span, call chain."""
    calls = []
    inner = error
    while isinstance(inner.__cause__, CompilationError):
        calls.append(getattr(inner, "gluon_span", None))
        inner = inner.__cause__
    root = inner.__cause__ or inner.__context__
    while isinstance(root, CompilationError):
        root = root.__cause__ or root.__context__
    cls, message, fields = _classify(inner, root, len(calls), len(set(calls)))
    if message is _TOO_DEEP:
        message = f"the calls below {fn.__name__} are nested too deep"
    kind = next(kind for kind in _TRITON if isinstance(inner, kind))
    combined = _triton.combined(cls, kind)
    result = combined.__new__(combined)
    result.__dict__.update(
        message=message,
        argument=None,
        expected=None,
        got=None,
        remedy=None,
        src=inner.src,
        node=inner.node,
        error_message=message,
    )
    result.__dict__.update(fields)
    note = getattr(root, "gluon_note", None)  # of the lowering whose mistake it is
    if note is not None:
        result.remedy = " ".join(filter(None, (result.remedy, note)))
    spans = [fields.get("span") or getattr(inner, "gluon_span", None), *reversed(calls)]
    if isinstance(root, RecursionError) and calls:
        spans = spans[1:]  # the stack ended anywhere in the innermost
    # A mistake in calling a library function is a mistake at the call.
    own = [span for span in spans if span is not None and not is_library(span.file)] or spans[:1]
    own = own[own[:1] == own[1:2] :]  # an op of the library's has the place of its call
    result.span, result.calls = own[0], tuple(own[1:])
    Exception.__init__(result, message)
    return result


def _is_call(node: Any) -> bool:
    """Return True if an expression, or the value of a statement, calls something."""
    return any(isinstance(inner, ast.Call) for inner in ast.walk(node)) if node else False


def _classify(
    inner: CompilationError, root: Optional[BaseException], calls: int, places: int
) -> tuple[type[GluonError], str, dict[str, Any]]:
    error = getattr(inner, "gluon_error", None) or root
    if isinstance(error, GluonError):
        return (
            type(error),
            reworded(error.message),
            dict(error.__dict__, message=reworded(error.message)),
        )
    if isinstance(inner, _triton.CompileTimeAssertionFailure):
        return StaticAssertionError, reworded(inner.error_message or "static_assert failed"), {}
    if isinstance(inner, _triton.UnsupportedLanguageConstruct):
        return KernelSyntaxError, reworded(inner.error_message or "unsupported construct"), {}
    if root is None and str(getattr(inner, "src", "")).startswith("invalid function identifier"):
        facts = {"expected": "ASCII letters, digits and underscores", "got": str(inner.node)}
        return KernelSyntaxError, "the name of a kernel's function must be ASCII", facts
    if root is None:
        return TraceError, reworded(inner.error_message or "the kernel cannot be compiled"), {}
    text = reworded(str(root) or inner.error_message or type(root).__name__)
    if isinstance(root, AttributeError) and type(root.obj).__module__.startswith("triton._C"):
        lacking = f"the installed Triton ({_triton.VERSION_TEXT}) has no {root.name}"
        return CapabilityError, f"{lacking}, which this operation needs", {}
    # The standard library's `inspect` says of an exhausted stack that something is not supported.
    too_deep = isinstance(root, RecursionError) or isinstance(root.__cause__, RecursionError)
    if too_deep and calls < _FEW_CALLS:
        problem = "statements or expressions are nested too deep"
        return (
            KernelSyntaxError,
            problem,
            {"remedy": "Move inner ones into functions of their own."},
        )
    if too_deep and 2 * places > calls:
        remedy = "Nest fewer calls, or raise sys.setrecursionlimit(...)."
        limit = (
            f"more than Python's stack holds (sys.getrecursionlimit() is {sys.getrecursionlimit()})"
        )
        return KernelSyntaxError, _TOO_DEEP, {"got": limit, "remedy": remedy}
    if too_deep or isinstance(root, KeyError) and _is_call(inner.node):
        problem = "functions of a kernel cannot call themselves"
        return KernelSyntaxError, problem, {"remedy": "Write a loop."}
    if isinstance(root, NameError):
        return KernelSyntaxError, text, {}
    if isinstance(root, ValueError) and "dtype" in text:
        return DtypeError, text, {}
    if isinstance(root, ValueError) and re.search(r"\b(axis|[Ss]hape)\b", text):
        return ShapeError, text, {}
    if isinstance(root, AssertionError) and re.search(r"\b(cast|type|dtype)\b", text):
        return DtypeError, text, {}
    if isinstance(root, TypeError) and "argument" in text:
        return ArgumentError, text, {}
    for kind, cls in _CLASSES.items():
        if isinstance(root, kind) and "incompatible function arguments" not in text:
            return cls, text, {}
    plain = isinstance(root, (AssertionError, AttributeError)) and str(root)
    return TraceError, text if plain else f"{text} ({type(root).__name__})", {}


# Exceptions of Triton's own checks, as our classes.
_CLASSES: Mapping[type, type[GluonError]] = {
    _triton.IncompatibleTypeErrorImpl: DtypeError,
    TypeError: DtypeError,
    IndexError: ShapeError,
    ValueError: ArgumentError,
    NotImplementedError: KernelSyntaxError,
}
