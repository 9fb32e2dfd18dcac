"""Store the result of products through one buffer in shared memory, which the rings of their loop have left.

    gl.store(c_ptrs, c, mask=c_mask)

becomes

    c_buffer = gl.allocate_shared_memory(c.dtype, [128, 256])
    c_buffer.store(c)
    gl.store(c_ptrs, c_buffer.load(), mask=c_mask)

A conversion takes less memory, and passes through it in rounds with two barriers each.
"""

from __future__ import annotations

import ast
from typing import Any, Iterator

from gluon_core import language
from gluon_write.loops.loops import Edit, Loop, behind
from gluon_write.text.form import free_name
from gluon_write.text.syntax import argument

__all__ = ["stored_in_one"]

# Bytes of a result, in elements of 16 bits. On an H200 products of 128x256 and 256x128 take 0.99 and 0.95 of the time;
# four warps with 128x128 take 1.01 and, of few steps, 1.08; elements of 32 bits 1.01.
_LEAST, _BITS = 64 << 10, 16


def stored_in_one(reader: Any, loop: Loop, room: int, taken: set[str]) -> Iterator[Edit]:
    """Yield the edits of the stores behind a loop of a kernel: first and last line, and the new lines.

    Args:
        reader: of the kernel's loops. room: bytes of the loop's rings. taken: names that are no longer free.
    """
    for statement in behind(reader, loop):
        call = statement.value if isinstance(statement, ast.Expr) else None
        value = argument(call, 1, "value") if isinstance(call, ast.Call) else None
        if not isinstance(value, ast.Name) or reader.called(call) is not language.store:
            continue
        kind = reader.type_of(value)
        if (
            kind is None
            or kind[0] not in _results(reader, loop)
            or value.lineno != value.end_lineno
        ):
            continue
        shape, bits = kind
        if bits != _BITS or not _LEAST <= shape[0] * shape[1] * bits // 8 <= room:
            continue
        buffer, indent = free_name(f"{value.id}_buffer", taken), " " * statement.col_offset
        make = f"{reader.space}.allocate_shared_memory({value.id}.dtype, {list(shape)})"
        yield (
            statement.lineno,
            statement.lineno - 1,
            [
                f"{indent}# Through one buffer: a conversion would take several rounds, with barriers.",
                f"{indent}{buffer} = {make}",
                f"{indent}{buffer}.store({value.id})",
            ],
        )
        line = reader.encoded[value.lineno - 1]
        first, last = line[: value.col_offset], line[value.end_col_offset :]
        new = (first + f"{buffer}.load()".encode() + last).decode()
        yield value.lineno, value.lineno, [new]


def _results(reader: Any, loop: Loop) -> set[tuple[int, ...]]:
    """Return the shapes of the sums of a loop."""
    kinds = (reader.type_of(statement.value) for statement in loop.issued)  # type: ignore[attr-defined]
    return {kind[0] for kind in kinds if kind is not None}
