"""Video instructions, on parts of registers: PTX ISA 9.7.17 and 9.7.18."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Part

__all__: list[str] = []

_WORD = TYPES["b32"]
_SECOND: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "vadd": lambda a, b: a + b, "vsub": lambda a, b: a - b, "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum, "vmax": np.maximum, "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}  # fmt: skip
_KINDS = ("u32", "s32")


def _split(call: Any, operand: Any) -> tuple[Any, str]:
    if isinstance(operand, Part):
        return operand.base, operand.selector
    return operand, ""


def _field(raw: np.ndarray, shift: int, bits: int, signed: bool) -> np.ndarray:
    field: np.ndarray = (raw >> shift) & ((1 << bits) - 1)
    return field - ((field >> (bits - 1) & 1) << bits) if signed else field


def _clipped(value: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return np.asarray(np.clip(value, low, high))


def _place(selector: str) -> tuple[int, int]:
    """Return the first bit and the number of bits of a single byte or half."""
    bits = {"b": 8, "h": 16}.get(selector[:1], 32)
    return int(selector[1:] or 0) * bits, bits


def _reader(call: Any, operand: Any, signed: bool) -> Callable[[Any], np.ndarray]:
    """Return a function that gives a part of an operand as int64."""
    base, selector = _split(call, operand)
    if len(selector) > 2:
        raise call.refuse(f"`.{selector}` is no single byte or half")
    shift, bits = _place(selector)
    get = call.get(base, _WORD)
    return lambda group: _field(get(group).astype(np.int64), shift, bits, signed)


def _word(value: np.ndarray) -> np.ndarray:
    return np.asarray(value & 0xFFFFFFFF).astype(np.uint32)


def _types(call: Any, count: int) -> list[bool]:
    """Take the leading types; return whether each is signed."""
    kinds = [m for m in call.left if m in _KINDS]
    if len(kinds) != count:
        raise call.refuse(f"`{call.name}` has {count} types")
    call.left = [m for m in call.left if m not in _KINDS]
    return [kind == "s32" for kind in kinds]


def _done(call: Any) -> None:
    if call.left:
        raise call.refuse(f"`.{call.left[0]}` of `{call.name}` is not known")


@instruction("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vset")
def scalar(call: Any) -> Step:
    """Compute with one part of each operand, then combine with a third one."""
    sets, shifts = call.name == "vset", call.name in ("vshl", "vshr")
    result, left, right = [False, *_types(call, 2)] if sets else _types(call, 3)
    compare = _COMPARE.get(call.one_of(*_COMPARE) or "") if sets else None
    if sets and compare is None:
        raise call.refuse("`vset` takes a comparison")
    saturates = call.flag("sat")
    mode = call.one_of("clamp", "wrap")
    second = call.one_of(*_SECOND)
    _done(call)
    d, selector = _split(call, call.operands[0])
    call.count(4 if second or selector else 3)
    get_a, get_b = _reader(call, call.operands[1], left), _reader(call, call.operands[2], right)
    third = call.get(call.operands[3], _WORD) if len(call.operands) == 4 else None
    put = call.put(d, _WORD)
    shift, bits = _place(selector)

    def run(group: Any) -> None:
        a, b = get_a(group), get_b(group)
        if compare is not None:
            value = compare(a, b).astype(np.int64)
        elif shifts:
            by = b & 31 if mode == "wrap" else np.clip(b, 0, 32)
            value = a << by if call.name == "vshl" else a >> by
        else:
            value = _OPERATIONS[call.name](a, b)
        if saturates:
            value = _clipped(value, bits, result)
        if second:
            c = _field(third(group).astype(np.int64), 0, 32, result)  # type: ignore[misc]
            value = _SECOND[second](_field(value, 0, 32, result), c)
        elif selector:
            keep = third(group).astype(np.int64) & ~(((1 << bits) - 1) << shift)  # type: ignore[misc]
            value = keep | (value & ((1 << bits) - 1)) << shift
        put(group, _word(value))

    return run


@instruction("vmad")
def vmad(call: Any) -> Step:
    """Multiply parts, add, and shift."""
    result, left, right = _types(call, 3)
    one_more, saturates = call.flag("po"), call.flag("sat")
    scale = {"shr7": 7, "shr15": 15}.get(call.one_of("shr7", "shr15") or "", 0)
    _done(call)
    call.count(4)
    get_a, get_b = _reader(call, call.operands[1], left), _reader(call, call.operands[2], right)
    get_c, put = call.get(call.operands[3], _WORD), call.put(call.operands[0], _WORD)
    signed = left or right or result

    def run(group: Any) -> None:
        c = _field(get_c(group).astype(np.int64), 0, 32, signed)
        value = (get_a(group) * get_b(group) + c + one_more) >> scale
        put(group, _word(_clipped(value, 32, result) if saturates else value))

    return run


def _lanes(
    call: Any, operand: Any, count: int, signed: bool, default: str
) -> Callable[[Any, Any], list[np.ndarray]]:
    """Return a function that picks the parts of two words that an operand selects, first lane first."""
    base, selector = _split(call, operand)
    chosen = [int(digit) for digit in reversed(selector[1:] or default)]
    if len(chosen) != count:
        raise call.refuse(f"`.{selector}` selects {len(chosen)} parts of {count}")
    bits = 32 // count

    def read(a: Any, b: Any) -> list[np.ndarray]:
        words = (a, b)
        return [_field(words[n // count], n % count * bits, bits, signed) for n in chosen]

    return read


@instruction(
    *(f"{name}{n}" for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "vset") for n in (2, 4))
)  # fmt: skip
def lanes(call: Any) -> Step:
    """Compute with two halves or four bytes of each operand."""
    name, count = call.name[:-1], int(call.name[-1])
    sets = name == "vset"
    result, left, right = [False, *_types(call, 2)] if sets else _types(call, 3)
    compare = _COMPARE.get(call.one_of(*_COMPARE) or "") if sets else None
    if sets and compare is None:
        raise call.refuse(f"`{call.name}` takes a comparison")
    saturates, adds = call.flag("sat"), call.flag("add")
    _done(call)
    call.count(4)
    d, mask = _split(call, call.operands[0])
    written = {int(digit) for digit in mask[1:]} or set(range(count))
    order = "10" if count == 2 else "3210"
    upper = "32" if count == 2 else "7654"
    pick_a = _lanes(call, call.operands[1], count, left, order)
    pick_b = _lanes(call, call.operands[2], count, right, upper)
    get_a, get_b = (call.get(_split(call, o)[0], _WORD) for o in call.operands[1:3])
    get_c, put = call.get(call.operands[3], _WORD), call.put(d, _WORD)
    bits = 32 // count
    operation = compare or _OPERATIONS[name]

    def run(group: Any) -> None:
        a, b, c = (get(group).astype(np.int64) for get in (get_a, get_b, get_c))
        values = [operation(x, y).astype(np.int64) for x, y in zip(pick_a(a, b), pick_b(a, b))]
        if saturates:
            values = [_clipped(value, bits, result) for value in values]
        total = c
        for lane in sorted(written):
            if adds:
                total = total + values[lane]
                continue
            field = ((1 << bits) - 1) << lane * bits
            total = total & ~field | (values[lane] << lane * bits) & field
        put(group, _word(total))

    return run
