"""Name the pointers of accesses in the reasons for layouts: lines change when a kernel gets another form."""

from __future__ import annotations

import ast
from typing import Any, Optional, Sequence

from gluon_write.tracing.sketch import Place

__all__ = ["pointer_name"]

_SECOND = (
    "async_load",
    "async_copy",
    "buffer_load_to_shared",
    "global_load_to_shared",
    "global_to_shared",
)


def pointer_name(jits: Sequence[Any], place: Optional[Place]) -> str:
    """Return the name with which the address of an access begins, "" where it has none.

    Args:
        jits: the functions of the kernel. place: of the call.
    """
    if place is None or not 0 <= place[-1] < len(jits):
        return ""
    lines = [line.encode() for line in jits[place[-1]].src.split("\n")[place[1] - 1 : place[3]]]
    lines[-1] = lines[-1][: place[4]]
    lines[0] = lines[0][place[2] :]
    try:
        call = ast.parse(b"\n".join(lines).decode(), mode="eval").body
    except SyntaxError:
        return ""
    if not isinstance(call, ast.Call):
        return ""
    second = isinstance(call.func, ast.Attribute) and call.func.attr in _SECOND
    words = {word.arg: word.value for word in call.keywords}
    address: Any = words.get("ptr", words.get("pointer"))
    if address is None:
        address = call.args[second] if len(call.args) > second else None
    while not isinstance(address, ast.Name):
        if isinstance(address, ast.BinOp):
            address = address.left
        elif isinstance(address, ast.Call) and address.args:
            address = address.args[0]
        elif isinstance(address, (ast.Attribute, ast.Subscript)):
            address = address.value
        else:
            return ""
    return address.id
