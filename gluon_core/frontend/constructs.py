"""Name the constructs of Python that kernels lack, each with a replacement."""

from __future__ import annotations

import ast
from typing import Mapping, Optional, Sequence

from gluon_core.errors import KernelSyntaxError, SourceSpan

__all__ = ["INSTEAD", "ends", "iteration", "no_else", "refusal"]

_COLLECT = "Loop over gl.static_range, or write the items out as a tuple."
_RECORD = "Use a tuple, a named tuple or a class decorated with @gl.aggregate."
_ASYNC = "Asynchronous copies have ops of their own: start them, and wait where the data is needed."

_CONSTRUCTS: Mapping[str, tuple[str, str]] = {
    "AsyncFor": ("`async for`", _ASYNC),
    "AsyncFunctionDef": ("`async def`", _ASYNC),
    "AsyncWith": ("`async with`", _ASYNC),
    "Await": ("`await`", _ASYNC),
    "Break": ("`break`", "Put the end of the loop into the test of a `while` loop."),
    "ClassDef": ("a `class` statement", "Define it outside, decorated with @gl.aggregate."),
    "Continue": ("`continue`", "Put the rest of the loop's body under an `if`."),
    "Delete": ("`del`", "Leave it out: a value that nothing uses costs nothing."),
    "Dict": ("a dictionary", _RECORD),
    "DictComp": ("a dictionary comprehension", _RECORD),
    "FunctionDef": (
        "`def`, a function within a kernel,",
        "Define it at the top of the file, decorated with @gluon.jit.",
    ),
    "GeneratorExp": ("a generator expression", _COLLECT),
    "Global": ("`global`", "Return the value, or store it to memory."),
    "Import": ("`import`", "Import at the top of the file."),
    "ImportFrom": ("`import`", "Import at the top of the file."),
    "Lambda": ("`lambda`", "Write a function decorated with @gluon.jit at the top of the file."),
    "Match": ("`match`", "Use `if` and `elif`."),
    "NamedExpr": ("`:=`", "Set the name on a line of its own."),
    "Nonlocal": ("`nonlocal`", "Return the value, or store it to memory."),
    "Raise": (
        "`raise`",
        "Use gl.static_assert for values known while compiling, gl.device_assert for the rest.",
    ),
    "Set": ("a set", _RECORD),
    "SetComp": ("a set comprehension", _COLLECT),
    "Starred": ("a starred expression", "Name the items one by one, or add lists."),
    "Try": ("`try`", "Nothing is raised while a kernel runs: test the condition with `if`."),
    "TryStar": ("`try`", "Nothing is raised while a kernel runs: test the condition with `if`."),
    "Yield": ("`yield`", "Return the values as a tuple."),
    "YieldFrom": ("`yield`", "Return the values as a tuple."),
}

# Python's functions that a kernel has under another name, or not at all.
INSTEAD: Mapping[str, str] = {
    "abs": "Use gl.abs.",
    "all": "Use gl.min, or gl.reduce with a function of your own.",
    "any": "Use gl.max or gl.reduce_or.",
    "bool": "Compare with 0, or convert with x.to(gl.int1).",
    "divmod": "Use // and %.",
    "enumerate": "Loop over gl.static_range and index the tuple.",
    "input": "Pass it as an argument of the launch.",
    "map": "Call the function on each tensor; ops work on all elements at once.",
    "open": "Do it in host code.",
    "pow": "Use gl.exp2(y * gl.log2(x)), or multiply.",
    "reversed": "Loop over gl.static_range and index the tuple from its end.",
    "round": "Use gl.floor(x + 0.5).",
    "set": _RECORD,
    "dict": _RECORD,
    "sorted": "Sort in host code.",
    "str": "Texts are compile-time values: write f-strings of constants.",
    "sum": "Use gl.sum.",
    "tuple": "Write the tuple: (a, b).",
    "type": "Ask a tensor for its dtype, shape or type.",
    "zip": "Loop over gl.static_range and index both tuples.",
}


def refusal(node: ast.AST, span: Optional[SourceSpan]) -> KernelSyntaxError:
    """Return the error for a construct that kernels do not have."""
    kind = type(node).__name__
    name, remedy = _CONSTRUCTS.get(kind, (f"Python's {kind}", ""))
    return KernelSyntaxError(
        f"{name} is not supported in kernels", remedy=remedy or None, span=span
    )


def iteration(node: ast.For, span: Optional[SourceSpan]) -> Optional[KernelSyntaxError]:
    """Return the error for a loop over an object that kernels cannot loop over, or with an `else`."""
    if node.orelse:
        return no_else(span)
    called = node.iter.func if isinstance(node.iter, ast.Call) else None
    if called is not None and ast.unparse(called).split(".")[-1] in ("range", "static_range"):
        return None
    return KernelSyntaxError(
        "kernels loop over `range` and `gl.static_range` alone",
        got=f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}",
        remedy="For the items of a tuple: for i in gl.static_range(len(items)), then items[i].",
        span=span,
    )


def no_else(span: Optional[SourceSpan]) -> KernelSyntaxError:
    """Return the error for a loop with an `else`."""
    return KernelSyntaxError(
        "`else` after a loop is not supported in kernels",
        remedy="Write the statements of `else` below the loop.",
        span=span,
    )


def ends(body: Sequence[ast.stmt]) -> bool:
    """Return True if every path through statements comes to a `return`."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return ends(last.body) and ends(last.orelse)
    return any(isinstance(statement, ast.Return) for statement in body)
