"""Compare the columns of a masked step with one bound of each thread.

    columns = start + gl.arange(0, 128)
    score = gl.where(columns[None, :] < length, score * scale, -1e30)

compares 32 columns of each thread, which ptxas holds in as many registers through the loop before, spills, and orders that
loop for few registers. But for its place in a group of four, the columns of a thread of a product are constants:

    pairs = (score * scale).reshape([score.shape[0], 16, 4, 2])
    bound = length - start - 2 * gl.arange(0, 4)[None, :][:, None, :][:, :, :, None]
    ... gl.where(8 * i + j < bound, pairs, -1e30)  # i and j along the second and the last axis
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.text.form import factor, free_name, one_line
from gluon_write.text.step_masks import is_place
from gluon_write.text.syntax import argument, names_in, stores

__all__ = ["ColumnMask", "column_mask"]

_LANES = 4  # that hold a row of a product (PTX 9.7.15)
_WIDTH = 2  # adjacent elements of each
_EIGHT = _LANES * _WIDTH
_BITS = 32
_ROWS = 64  # of a product of a warp group


@dataclass(frozen=True)
class ColumnMask:
    """Hold a statement with a mask of columns alone.

    Attributes:
        statement: `name = gl.where(mask, value, other)`. makers: the statements that make the mask, for nothing else.
        lines: of the statement with a bound of each thread.
    """

    statement: ast.stmt
    makers: tuple[ast.stmt, ...]
    lines: tuple[str, ...]


def column_mask(
    reader: LoopReader, statements: Sequence[ast.stmt], taken: set[str]
) -> Optional[ColumnMask]:
    """Return the only mask of columns in the statements of a step; None without one.

    Args:
        taken: names in use, to which those of the lines are added.
    """
    if not reader.space:
        return None
    for statement in statements:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or reader.called(call) is not language.where:
            continue
        mask, value, other = (
            argument(call, i, name) for i, name in enumerate(("condition", "x", "y"))
        )
        kind = reader.type_of(call)
        if mask is None or value is None or other is None or kind is None or not _is_number(other):
            continue
        (rows, columns), bits = kind
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name) or target.id not in {n.id for n in names_in(value)}:
            continue
        if not isinstance(value, ast.Name) and reader.type_of(value) != kind:
            continue
        if rows != _ROWS or columns < _EIGHT or columns & columns - 1 or bits != _BITS:
            continue
        before = statements[: statements.index(statement)]
        makers, comparison = _makers_of(mask, statements, before)
        limit = _limit(reader, comparison, before, columns)
        if limit is not None:
            text, low = (one_line(reader.text_of(part)) for part in (value, other))
            lines = _lines(reader.space, target.id, text, low, limit, columns, taken)
            return ColumnMask(statement, makers, tuple(lines))
    return None


def _makers_of(
    mask: ast.expr, statements: Sequence[ast.stmt], before: Sequence[ast.stmt]
) -> tuple[tuple[ast.stmt, ...], ast.expr]:
    """Return the statements that make a mask for one other alone, and the expression that they make it with."""
    if not isinstance(mask, ast.Name):
        return (), mask
    makers = [s for s in before if mask.id in stores(s)]
    whole = [s for s in makers if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
    never = [s for s in makers if isinstance(s, ast.If) and not s.orelse and _never(s.test)]
    readers = [s for s in statements if mask.id in {n.id for n in names_in(s)} and s not in makers]
    if len(whole) != 1 or len(whole) + len(never) < len(makers) or len(readers) != 1:
        return (), mask
    return tuple(makers), whole[0].value


def _never(test: ast.expr) -> bool:
    """Return True for two numbers that are said to be equal, and differ."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, *test.comparators]
    known = [side.value for side in sides if isinstance(side, ast.Constant)]
    return len(sides) == len(known) == 2 and known[0] != known[1]


def _limit(
    reader: LoopReader, mask: ast.expr, before: Sequence[ast.stmt], columns: int
) -> Optional[str]:
    """Return the number of columns of a step in front of the first hidden one, for `(start + range)[None, :] < end`; None of other masks."""
    if (
        not isinstance(mask, ast.Compare)
        or len(mask.ops) != 1
        or not isinstance(mask.ops[0], ast.Lt)
    ):
        return None
    view, end = mask.left, mask.comparators[0]
    if not isinstance(view, ast.Subscript) or ast.unparse(view.slice) != "(None, :)":
        return None
    places: ast.expr = view.value
    if isinstance(places, ast.Name):
        name = places.id
        values = [s.value for s in before if isinstance(s, ast.Assign) and name in stores(s)]
        places = values[0] if len(values) == 1 else places
    if not isinstance(places, ast.BinOp) or not isinstance(places.op, ast.Add):
        return None
    sides = (places.left, places.right), (places.right, places.left)
    for start, along in sides:
        call = is_place(reader, ast.unparse(along))
        if call is None or [_value(reader, arg) for arg in call.args] != [0, columns]:
            continue
        if call.keywords or not all(
            isinstance(part, (ast.Name, ast.Constant)) for part in (start, end)
        ):
            return None
        return f"{factor(reader.text_of(end))} - {factor(reader.text_of(start))}"
    return None


def _value(reader: LoopReader, node: ast.expr) -> Any:
    """Return the value of a literal, or of a constant of the kernel; None of others."""
    if isinstance(node, ast.Name) and reader.number == 0 and node.id not in stores(reader.tree):
        return unwrap(reader.drawn.constants.get(node.id))
    return node.value if isinstance(node, ast.Constant) else None


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, (int, float))


def _lines(
    gl: str, target: str, value: str, other: str, limit: str, columns: int, taken: set[str]
) -> list[str]:
    words = ("parts", "eighth", "lane", "element", "place", "bound", "score_pairs")
    parts, eighth, lane, element, place, bound, pairs = (free_name(word, taken) for word in words)
    eighths = [[0, 1 << i, 0, 0] for i in range((columns // _EIGHT).bit_length() - 1)]
    shape = f"[{_ROWS}, {columns // _EIGHT}, {_LANES}, {_WIDTH}]"

    def slices(name: str, *dims: int) -> str:
        """Return the line of a layout without some dimensions of the parts'."""
        text = parts
        for dim in dims:
            text = f"{gl}.SliceLayout({dim}, {text})"
        return f"{name}: {gl}.constexpr = {text}"

    return [
        "# Columns of a thread have constant distances: it compares them with one bound.",
        f"{parts}: {gl}.constexpr = {gl}.DistributedLinearLayout(",
        f"    reg_bases={[[0, 0, 0, 1], [8, 0, 0, 0], *eighths]},",
        "    lane_bases=[[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],",
        f"    warp_bases=[[16, 0, 0, 0], [32, 0, 0, 0]], block_bases=[], shape={shape}",
        ")",
        slices(eighth, 3, 2, 0),
        slices(lane, 3, 1, 0),
        slices(element, 2, 1, 0),
        f"{place} = {_EIGHT} * {gl}.arange(0, {columns // _EIGHT}, layout={eighth})[None, :][:, :, None][:, :, :, None]",
        f"{place} = {place} + {gl}.arange(0, {_WIDTH}, layout={element})[None, :][:, None, :][:, :, None, :]",
        f"{bound} = {limit} - {_WIDTH} * {gl}.arange(0, {_LANES}, layout={lane})[None, :][:, None, :][:, :, :, None]",
        f"{pairs} = {gl}.convert_layout(({value}).reshape({shape}), {parts})",
        f"{target} = {gl}.convert_layout({gl}.where({place} < {bound}, {pairs}, {other}).reshape([{_ROWS}, {columns}]))",
    ]
