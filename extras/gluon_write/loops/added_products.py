"""Multiply behind a loop by the unit that made the loop's sum.

    acc = gl.portable.mma(low, up, acc)

becomes

    up_buffer = gl.allocate_shared_memory(up.dtype, [16, 128], value=up)
    gl.nvidia.hopper.fence_async_shared()
    acc = gl.nvidia.hopper.warpgroup_mma(low, up_buffer, acc)

Other units have sums of another layout: the whole sum would be converted.
"""

from __future__ import annotations

import ast
from math import prod
from typing import Any, Iterator, Optional

from gluon_core import portable
from gluon_write.loops.loops import Edit, Loop, behind
from gluon_write.text.form import free_name, one_line
from gluon_write.text.syntax import argument, operands_of

__all__ = ["added_behind"]

_LEAST_ROWS, _BITS = 64, 16  # of operands that a warp group multiplies


def added_behind(reader: Any, loop: Loop, room: int, taken: set[str]) -> Iterator[Edit]:
    """Yield the edits of products behind a loop of a kernel that add to its sums: first and last line, and the new lines.

    Args:
        reader: of the kernel's loops. room: bytes of the loop's rings. taken: names that are no longer free.
    """
    for statement in behind(reader, loop):
        product = _product(reader, loop, statement)
        if product is None:
            continue
        first, second, acc = product
        rows, depth = reader.type_of(first), reader.type_of(second)
        if rows is None or depth is None or {rows[1], depth[1]} != {_BITS}:
            continue
        if rows[0][0] < _LEAST_ROWS or prod(depth[0]) * _BITS // 8 > room:
            continue
        buffer, space, indent = (
            free_name(f"{second.id}_buffer", taken),
            reader.space,
            " " * statement.col_offset,
        )
        held = f"{second.id}.dtype, {list(depth[0])}, value={second.id}"
        left = one_line(reader.text_of(first))
        new = [
            f"{indent}{buffer} = {space}.allocate_shared_memory({held})",
            f"{indent}{space}.nvidia.hopper.fence_async_shared()",
            f"{indent}{acc} = {space}.nvidia.hopper.warpgroup_mma({left}, {buffer}, {acc})",
        ]
        yield statement.lineno, statement.end_lineno or statement.lineno, new


def _product(
    reader: Any, loop: Loop, statement: ast.stmt
) -> Optional[tuple[ast.expr, ast.Name, str]]:
    """Return the operands of a product that adds to a sum of a loop, and the sum's name; None of others.

    The second operand has a name.
    """
    call = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or reader.called(call) is not portable.mma:
        return None
    assert isinstance(statement, ast.Assign)
    operands, acc, target = operands_of(call), argument(call, 2, "acc"), statement.targets[0]
    if not operands or not isinstance(acc, ast.Name) or not isinstance(target, ast.Name):
        return None
    first, second = operands
    adds = acc.id == target.id and acc.id in loop.issued.values()
    if (
        not adds
        or not isinstance(second, ast.Name)
        or reader.place_of(call) in reader.drawn.unaided
    ):
        return None
    return first, second, acc.id
