"""The errors of kernels that no layouts fit."""

from __future__ import annotations

import ast
import re
from typing import Any

from gluon_core.errors import GluonError, LayoutError, SourceSpan
from gluon_core.layouts import BlockedLayout
from gluon_write.solver.conflict import conflict_of
from gluon_write.solver.solve import Solution
from gluon_write.solver.unknowns import Relation, Unknown

__all__ = ["agree", "of_conflict", "of_plain_function", "of_solution"]


def _span(fn: Any, line: int) -> SourceSpan:
    import linecache

    file = fn.fn.__code__.co_filename
    text = linecache.getline(file, line).rstrip("\n")
    return SourceSpan(file, line, len(text) - len(text.lstrip()), None, text or None)


def agree(fn: Any, line: int, one: Any, other: Any) -> None:
    """Check that an expression has one layout each time that it is evaluated.

    Raises:
        LayoutError: it has two.
    """
    if one != other:
        raise LayoutError(
            "an expression has tensors of several shapes, and would need several layouts",
            argument="layouts",
            expected=str(one),
            got=str(other),
            remedy="Write its layout, or write the expression once for each shape.",
            span=_span(fn, line),
        )


def of_conflict(fn: Any, one: Unknown) -> GluonError:
    """Return the error of a value that two ops demand in different layouts."""
    layout, by = one.conflict or (None, "")
    names = [name for name in one.names if name.isidentifier()]
    call = _converted(names[0] if names else "value", layout)
    return LayoutError(
        "two ops demand different layouts of one value",
        argument=one.names[0] if one.names else "layouts",
        expected=f"{one.fixed} for {one.fixed_by}{f', line {one.fixed_line}' if one.fixed_line else ''}",
        got=f"{layout} for {by}",
        remedy=f"Write 1 layout by hand, for the second op: {call}.",
        span=_span(fn, one.line),
    )


def of_solution(fn: Any, solution: Solution) -> GluonError:
    """Return the error of a kernel without solution: the ops in conflict, and the layouts to write."""
    conflict = conflict_of(solution)
    if not conflict.core:
        return _of_value(fn, solution)
    first, *others = conflict.core
    ops = dict.fromkeys(f"{r.op} in line {r.line}" for r in conflict.core)
    calls = [
        f"{_converted(_name_of(r.result, r.op), result)} behind {r.op} in line {r.line}"
        for r, _, result in conflict.written
    ]
    calls = list(dict.fromkeys(calls))
    last = others[-1] if others else first
    demands = [
        f"{one.fixed} for {one.fixed_by}, line {one.fixed_line or one.line}"
        for r in conflict.core
        for one in (r.result, r.source)
        if one.fixed is not None
    ]
    return LayoutError(
        f"no layouts fit these {len(ops)} ops together: {', '.join(ops)}"
        if len(ops) > 1
        else f"no layouts fit {first.op} and the ops around it",
        argument="layouts",
        expected=f"for {first.op}, line {first.line}: {_ends(first)}",
        got=f"for {last.op}, line {last.line}: {_ends(last)}"
        if len(ops) > 1 or not demands
        else demands[0],
        remedy=f"Write {len(calls)} layout{'s' if len(calls) > 1 else ''} by hand: {', '.join(calls)}."
        if calls
        else "Write the layouts of the values of these lines.",
        span=_span(fn, first.line),
    )


def _converted(name: str, layout: Any) -> str:
    """Return the call that gives a value a layout, as text."""
    written = re.sub(r"[A-Z][A-Za-z]*Layout[(]", r"gl.\g<0>", str(layout))
    return f"gl.convert_layout({name}, {written})"


def _name_of(one: Unknown, op: str) -> str:
    """Return the name of the result of an op, or words for it."""
    if op.endswith("split"):
        return f"each result of {op}"  # both have one layout
    return next((name for name in one.names if name.isidentifier()), f"the result of {op}")


def _of_value(fn: Any, solution: Solution) -> GluonError:
    """Return the error of a kernel of which one value alone has no layout that its ops take."""
    unknowns = solution.problem.graph.unknowns
    scanned = [one for one in unknowns if one.scans and one.fixed is not None]
    one = next((u for u in scanned if not isinstance(u.fixed, BlockedLayout)), None)
    if one is None:
        return LayoutError(
            "no layouts fit the kernel's ops",
            argument="layouts",
            remedy="Write the layouts of its products and reductions.",
            span=_span(fn, fn.fn.__code__.co_firstlineno),
        )
    alike = [u.fixed_line for u in unknowns if u.fixed == one.fixed and u.fixed_line]
    known = one.fixed_line or min(alike, default=0)
    line = f", line {known}" if known else ""
    return LayoutError(
        "a scan accepts only blocked layouts",
        argument="layouts",
        expected="gl.BlockedLayout",
        got=f"{one.fixed}, which {one.fixed_by}{line} demands",
        remedy="Put gl.convert_layout in front of the scan.",
        span=_span(fn, one.line or known or fn.fn.__code__.co_firstlineno),
    )


def _ends(relation: Relation) -> str:
    """Return the names of the values that an op relates, and the lines where they begin."""
    ends = []
    for one in (relation.source, relation.result):
        name = next((n for n in one.names if n.isidentifier()), "a value")
        ends.append(f"{name} of shape {list(one.shape)} (line {one.line})")
    return " -> ".join(ends)


def of_plain_function(fn: Any, line: int) -> GluonError:
    """Return the error of a call of a function of plain Triton whose layouts nobody writes."""
    own: int = ast.parse(fn.src).body[0].lineno
    first: int = fn.fn.__code__.co_firstlineno
    offset = next(n for n, text in enumerate(fn.raw_src) if text.lstrip().startswith("def "))
    return LayoutError(
        "a function of plain Triton makes tensors, whose layouts are left out",
        argument="layouts",
        expected="functions of @gluon.jit",
        got="one of @triton.jit",
        remedy="Port the file that defines it: gluon port FILE.",
        span=_span(fn, first + offset + line - own),
    )
