"""Write the loads of a loop for other steps: under a condition, or with a name in place of the load."""

from __future__ import annotations

import ast
from typing import Sequence

from gluon_write.loops.loop_reader import LoopReader
from gluon_write.text.form import one_line

__all__ = ["MOST_WORDS", "masked", "replaced"]

#: Registers of a thread for the loads of the next step: blocks share a multiprocessor.
MOST_WORDS = 8


def masked(reader: LoopReader, call: ast.Call, inside: str) -> str:
    """Return the text of a load that is executed in the steps of a loop alone.

    Args:
        inside: the condition that a step is one of the loop.
    """
    words = {w.arg: one_line(reader.text_of(w.value)) for w in call.keywords if w.arg}
    listed = ("pointer", "mask", "other")
    words |= {n: one_line(reader.text_of(arg)) for n, arg in zip(listed, call.args)}
    mask = words.pop("mask", None)
    pointer, other = words.pop("pointer"), words.pop("other", "0")
    mask = inside if mask in (None, "None") else f"({mask}) & ({inside})"
    more = "".join(f", {word}={text}" for word, text in words.items())
    other = "0" if other == "None" else other
    return f"{reader.space}.load({pointer}, mask={mask}, other={other}{more})"


def replaced(reader: LoopReader, statement: ast.stmt, calls: Sequence[tuple[ast.Call, str]]) -> str:
    """Return the text of a statement with calls replaced, without its indent."""
    first, last = reader.range_of(statement)
    data, text, copied = reader.source.encode(), b"", first
    for call, new in sorted(calls, key=lambda pair: reader.range_of(pair[0])):
        start, end = reader.range_of(call)
        text += data[copied:start] + new.encode()
        copied = end
    whole = (text + data[copied:last]).decode().splitlines()
    indent = statement.col_offset
    rest = [line[min(indent, len(line) - len(line.lstrip())) :] for line in whole[1:]]
    return "\n".join([whole[0], *rest])
