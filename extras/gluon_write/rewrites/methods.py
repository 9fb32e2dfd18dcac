"""Call the methods of a kernel's structs as functions.

    places, inside = span.at(step)

becomes

    places, inside = at(span, step)

A copy of the method with layouts then takes its place as that of any other function does.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Mapping, Optional

from gluon_write.text.form import free_name, function_of, rewritten
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["methods_called"]


def methods_called(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel that calls methods of structs as functions, or the kernel."""
    methods = {id(one): one for one in drawn.methods.values() if one is not None}
    if not methods:
        return fn
    taken = {word for jit in drawn.jits for word in re.findall(r"\w+", jit.src)}
    taken |= {name for jit in drawn.jits for name in jit.get_capture_scope()}
    names = {key: free_name(one.__name__, taken) for key, one in methods.items()}
    more = {names[key]: _function(one, names[key]) for key, one in methods.items()}
    return rewritten(
        fn, drawn.jits, lambda jit, number: _Caller(jit, number, drawn, names).text(), more
    )


def _function(method: Any, name: str) -> Any:
    """Return a method as a function of another name, which explicit source gets, too."""
    text = re.sub(rf"\bdef {method.__name__}\b", f"def {name}", method.src, count=1)
    return function_of(text, name, method.get_capture_scope())


class _Caller(TracedForm):
    def __init__(self, fn: Any, number: int, drawn: Sketch, names: Mapping[int, str]):
        super().__init__(fn, number, drawn)
        self.names = names

    def text(self) -> Optional[str]:
        """Return the text of the function; None where it calls no method."""
        lines = [line.encode() for line in self.source.splitlines()]
        edits: list[tuple[int, int, int, int, str]] = []  # first and last byte, and the new text
        for node in nodes_in(self.tree):
            place = self.place_of(node)
            method = self.drawn.methods.get(place) if place is not None else None
            if method is None or not isinstance(node, ast.Call):
                continue
            assert isinstance(node.func, ast.Attribute)
            edits.append(
                (
                    node.lineno,
                    node.col_offset,
                    node.lineno,
                    node.col_offset,
                    f"{self.names[id(method)]}(",
                )
            )
            line, column = node.func.end_lineno or 0, node.func.end_col_offset or 0
            first, start = line, lines[line - 1].rfind(b".", 0, column)
            while b"(" not in lines[line - 1][column:]:
                line, column = line + 1, 0
            end = lines[line - 1].index(b"(", column) + 1
            edits.append((first, start, line, end, ", " if node.args or node.keywords else ""))
        for first, start, last, end, new in sorted(edits, reverse=True):
            joined = lines[first - 1][:start] + new.encode() + lines[last - 1][end:]
            lines[first - 1 : last] = [joined, *[b""] * (last - first)]
        return b"\n".join(lines).decode() + "\n" if edits else None
