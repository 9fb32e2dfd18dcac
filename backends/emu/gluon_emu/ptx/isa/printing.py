"""Functions of the runtime: printf, assertions, and memory of the device."""

from __future__ import annotations

import re
import sys
from typing import Any, Callable

import numpy as np

from gluon_emu.errors import TrapError
from gluon_emu.ptx.isa.table import Step
from gluon_emu.ptx.machine.access import LOCAL_WINDOW

__all__ = ["RUNTIME"]

_DIRECTIVE = re.compile(
    r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])"
)


def _value(group: Any, name: str, row: int, lane: int) -> int:
    value = group.values.get(f"{name}@0")
    return 0 if value is None else int(group.full(value)[row, lane])


def _bytes(group: Any, address: int, row: int, size: int) -> bytes:
    """Return memory at a generic address that holds a thread's variable, or global memory."""
    memory = group.machine.memory
    if address >> 56:
        raise TrapError("a text outside of global memory")
    start = address - memory.arrays.low
    if not 0 <= start < memory.arrays.bytes.size:
        raise TrapError(f"a text at {address:#x}: {memory.arrays.nearest(address, 1)}")
    return bytes(memory.arrays.bytes[start : start + size])


def _text(group: Any, address: int, row: int) -> str:
    raw = _bytes(group, address, row, 4096)
    return raw.partition(b"\0")[0].decode(errors="replace")


def _local(group: Any, address: int, row: int, lane: int, offset: int, size: int) -> bytes:
    memory = group.machine.memory
    if address >> 56 != LOCAL_WINDOW >> 56:
        return _bytes(group, address + offset, row, size)
    thread = int(group.rows[row]) * 32 + lane
    start = thread * memory.local_bytes + (address & (1 << 56) - 1) + offset
    return bytes(memory.local[start : start + size])


def _printf(call: Any, results: list[str], arguments: list[str]) -> Step:
    def run(group: Any) -> None:
        group.machine.changes += 1
        lines = []
        lanes = group.lanes()
        counts = np.zeros(lanes.shape, np.uint32)
        for row, lane in np.argwhere(lanes):
            text = _text(group, _value(group, arguments[0], row, lane), row)
            buffer = _value(group, arguments[1], row, lane)
            counts[row, lane] = sum(m[5] != "%" for m in _DIRECTIVE.finditer(text))
            lines.append(_formatted(group, text, buffer, int(row), int(lane)))
        sys.stdout.write("".join(lines))
        for name in results:
            group.write(f"{name}@0", 32, counts)

    return run


def _formatted(group: Any, text: str, buffer: int, row: int, lane: int) -> str:
    offset = 0

    def take(size: int) -> bytes:
        nonlocal offset
        offset = -(-offset // size) * size
        raw = _local(group, buffer, row, lane, offset, size)
        offset += size
        return raw

    def put(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        if width == "*":
            width = str(int.from_bytes(take(4), "little", signed=True))
        if precision == "*":
            precision = str(int.from_bytes(take(4), "little", signed=True))
        spec = "%" + flags + (width or "") + (f".{precision}" if precision is not None else "")
        wide = 8 if length in ("l", "ll", "j", "z", "t") else 4
        if kind in "di":
            return (spec + "d") % int.from_bytes(take(wide), "little", signed=True)
        if kind in "ouxX":
            letter = "d" if kind == "u" else kind
            return (spec + letter) % int.from_bytes(take(wide), "little")
        if kind == "c":
            return (spec + "c") % chr(int.from_bytes(take(4), "little") & 255)
        if kind == "s":
            return (spec + "s") % _text(group, int.from_bytes(take(8), "little"), row)
        if kind == "p":
            address = int.from_bytes(take(8), "little")
            return f"{address:#x}" if address else "(nil)"
        value = float(np.frombuffer(take(8), np.float64)[0])
        return value.hex() if kind in "aA" else (spec + kind) % value

    return _DIRECTIVE.sub(put, text)


def _assertfail(call: Any, results: list[str], arguments: list[str]) -> Step:
    def run(group: Any) -> None:
        row, lane = (int(i) for i in np.argwhere(group.lanes())[0])
        message, file, line, function = (_value(group, name, row, lane) for name in arguments[:4])
        text = _text(group, message, row)
        error = TrapError(f"assertion failed: {text} ({_text(group, file, row)}:{line})")
        error.place = (row, lane)  # type: ignore[attr-defined]
        raise error

    return run


# Name -> arguments, results, and what makes a step of a call.
RUNTIME: dict[str, tuple[int, int, Callable[[Any, list[str], list[str]], Step]]] = {
    "vprintf": (2, 1, _printf),
    "__assertfail": (5, 0, _assertfail),
}
