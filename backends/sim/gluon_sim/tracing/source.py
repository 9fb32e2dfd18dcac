"""The kernel source behind recorded locations."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import Optional

from gluon_core.errors import SourceSpan
from gluon_core.features import COLUMNS
from gluon_core.layouts.dialect import follows
from gluon_sim.tracing.ir import Location

__all__ = ["in_library", "span_of"]


def in_library(file: str) -> bool:
    """Return whether a file is part of the language itself, not of somebody's kernels."""
    parts = file.replace("\\", "/").split("/")
    return "triton" in parts and "language" in parts or "gluon_core" in parts


def span_of(loc: Optional[Location]) -> Optional[SourceSpan]:
    """Return the kernel line behind a recorded location, with its text where the file can be read."""
    if loc is None or not loc.line:
        return None
    text = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not text.strip():
        return SourceSpan(loc.file, loc.line, loc.column)
    functions, parts = _parts(loc.file, "".join(linecache.getlines(loc.file)))
    here = parts.get(loc.line, [])
    if follows(COLUMNS):
        # Locations count the indentation of the function around them twice.
        around = [indent for first, last, indent in functions if first <= loc.line <= last]
        column = _characters(text, loc.column - 1 - max(around, default=0))
        ends = [end for start, end in here if start == column]
    else:  # somewhere within the statement, and counted from the kernel's own indentation
        starts = [start for start, _ in here]
        column = min(starts, default=len(text) - len(text.lstrip()))
        ends = [end for _, end in here]
    column = max(0, min(column, len(text)))
    return SourceSpan(loc.file, loc.line, column, max(ends, default=len(text)), text)


_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Assert)


def _characters(text: str, column: int) -> int:
    """Return the characters before a column that is counted in bytes."""
    return len(text.encode()[: max(0, column)].decode(errors="ignore"))


_Parts = tuple[list[tuple[int, int, int]], dict[int, list[tuple[int, int]]]]


@lru_cache(maxsize=64)
def _parts(file: str, source: str) -> _Parts:
    """Return (first line, last line, indentation) of each function of a file, and for each line (first
    column, column behind the last) of the statements and expressions that begin there."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return [], {}
    lines = source.splitlines()
    functions: list[tuple[int, int, int]] = []
    begun: dict[int, list[tuple[int, int]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions.append((node.lineno, node.end_lineno or 0, node.col_offset))
        if isinstance(node, (ast.expr, *_STATEMENTS)):
            text = lines[node.lineno - 1]
            end = None if node.end_lineno != node.lineno else node.end_col_offset
            start = _characters(text, node.col_offset)
            stop = len(text) if end is None else _characters(text, end)
            begun.setdefault(node.lineno, []).append((start, stop))
    return functions, begun
