"""Machine code that reads a descriptor of `wgmma` from registers which some path to it has not written.

Uniform registers hold descriptors: `gdesc[UR8]` is UR8 and UR9 for the first tile, which may be in other registers instead, UR10 and UR11 for the second.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple, Optional

__all__ = ["reads_undefined"]

_CODE = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+(?:(?P<if>@\S+)\s+)?(?P<name>[A-Z]\S*)\s*(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"(\.L\w+):")
_TARGETS = re.compile(r"`\((\.L\w+)\)")
_TABLE = re.compile(r'BRANCH_TARGETS ([^"]*)')
_FUNCTION = re.compile(r"^\.text\.\S+:$", re.M)
_RESULT = re.compile(r"UR(\d+)\b")
_PRODUCT = re.compile(r"R(?:\d+|Z), (?P<tile>R\d+[^,]*, )?gdesc\[UR(?P<first>\d+)\]")
_ENDS = frozenset(["EXIT", "RET", "BRA", "BRX", "JMP", "JMX"])


class _Line(NamedTuple):
    written: frozenset[int]
    read: frozenset[int]
    goes_on: bool
    targets: tuple[str, ...]


def reads_undefined(listing: str) -> bool:
    """Return True if a product's descriptor is undefined on some path.

    Args:
        listing: what `nvdisasm -c` writes.
    """
    return any(map(_undefined, _FUNCTION.split(listing)[1:]))


def _undefined(function: str) -> bool:
    lines: list[_Line] = []
    labels: dict[str, int] = {}
    for text in function.splitlines():
        label, code = _LABEL.match(text.strip()), _CODE.match(text)
        if label:
            labels[label[1]] = len(lines)
        elif code:
            lines.append(_line(code, text))
    before: list[Optional[frozenset[int]]] = [None] * len(lines)
    waiting = deque([(0, frozenset[int]())])
    while waiting:
        number, known = waiting.popleft()
        if number >= len(lines):
            continue
        merged = before[number]
        merged = known if merged is None else merged & known
        if merged == before[number]:
            continue
        before[number] = merged
        line = lines[number]
        after = merged | line.written
        waiting.extend((labels[target], after) for target in line.targets if target in labels)
        if line.goes_on:
            waiting.append((number + 1, after))
    return any(known is not None and not line.read <= known for line, known in zip(lines, before))


def _line(code: re.Match[str], text: str) -> _Line:
    first, *modifiers = code["name"].split(".")
    rest = code["rest"]
    result = _RESULT.match(rest)
    wide = 2 if {"64", "WIDE"} & set(modifiers) else 1
    written = frozenset(range(int(result[1]), int(result[1]) + wide) if result else ())
    product = _PRODUCT.match(rest) if first.endswith("GMMA") else None
    read = frozenset[int]()
    if product:
        begin = int(product["first"])
        read = frozenset(range(begin + (2 if product["tile"] else 0), begin + 4))
    targets = tuple(_TARGETS.findall(rest)) if first in ("BRA", "JMP") else ()
    table = _TABLE.search(text)
    if table:
        targets += tuple(target.strip() for target in table[1].split(","))
    conditional = code["if"] is not None or re.match(r"!?U?P\d", rest) is not None
    return _Line(written, read, first not in _ENDS or conditional, targets)
