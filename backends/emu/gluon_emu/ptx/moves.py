"""Moves, comparisons and choices: PTX ISA 9.7.6, 9.7.7, 9.7.9."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import GluonError
from gluon_emu.ptx.floats import least_of
from gluon_emu.ptx.numbers import encode, flushed, uint
from gluon_emu.ptx.program import (
    TYPES,
    Call,
    Frame,
    Step,
    Type,
    numbers,
    opcode,
    packed,
)
from gluon_emu.ptx.text import Address, Pair, Vector

__all__: list[str] = []

_PRED = TYPES["pred"]


@opcode("mov")
def mov(call: Call) -> Step:
    vector = call.one_of("v2", "v4")
    type = call.type()
    if type.kind == "h" or type.bits == 8:
        raise call.unknown_type(type)
    call.count(2)
    d, a = call.operands
    if vector is not None:
        if not isinstance(d, Vector) or not isinstance(a, Vector) or len(d.items) != len(a.items):
            raise call.refuse(f"`mov.{vector}` is between two vectors")
        gets = [call.get(item, type) for item in a.items]
        puts = [call.put(item, type) for item in d.items]

        def run(frame: Frame) -> None:
            values = [get(frame) for get in gets]
            for put, value in zip(puts, values):
                put(frame, value)

        return run
    if isinstance(a, Address):  # of a variable, so many bytes behind its beginning
        far = np.array(a.offset & (1 << type.bits) - 1, uint(type.bits)).view(type.dtype)
        return call.step([(d, type)], [(a.base, type)], lambda value: value + far)
    return call.step([(d, type)], [(a, type)], lambda value: value)


@opcode("selp")
def selp(call: Call) -> Step:
    type = call.type()
    if type.kind in "hp" or type.bits == 8:
        raise call.unknown_type(type)
    return call.plain(type, [type, type, _PRED], lambda a, b, p: np.where(p, a, b))


@opcode("slct")
def slct(call: Call) -> Step:
    ftz = call.flag("ftz")
    type, by = call.take_types(2)
    if by.name not in ("s32", "f32"):
        raise call.unknown_type(by)

    def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if ftz:
            c = flushed(c, least_of("f32"))
        return np.where(c >= 0, a, b)

    return call.plain(type, [type, type, by], run)


# ---- comparisons -------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
_FLOATS = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_COMBINE: dict[str, Callable[..., Any]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor
}  # fmt: skip


def _comparison(call: Call, kind: Optional[str], type: Type) -> Callable[..., list[np.ndarray]]:
    """Return a function that compares two values of a type, element by element."""
    floats = type.kind in "fh"
    names = (*_COMPARE, *_FLOATS, "num", "nan") if floats else tuple(_COMPARE)
    if kind not in names or floats and kind in ("lo", "ls", "hi", "hs"):
        raise call.refuse(f"this comparison of `.{type.name}` is not known")
    if type.kind == "b" and kind not in ("eq", "ne") or type.kind == "p":
        raise call.refuse(f"`.{type.name}` is compared by eq and ne alone")
    if not floats:
        return lambda a, b: [_COMPARE[str(kind)](a, b)]

    def one(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        nan = np.isnan(x) | np.isnan(y)
        if kind in ("num", "nan"):
            return np.asarray(nan if kind == "nan" else ~nan)
        if kind in _FLOATS:
            return np.asarray(_COMPARE[_FLOATS[kind]](x, y) | nan)
        return np.asarray(_COMPARE[str(kind)](x, y) & ~nan)

    def run(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        pairs = zip(numbers(a, type), numbers(b, type))
        return [one(flush(x), flush(y)) for x, y in pairs]

    least = least_of(type.element)
    flush: Callable[[np.ndarray], np.ndarray] = lambda x: x  # noqa: E731
    if call.ftz:
        flush = lambda x: flushed(x, least)  # noqa: E731
    return run


@opcode("setp")
def setp(call: Call) -> Step:
    kind = call.left.pop(0) if call.left else None
    combine = call.one_of(*_COMBINE)
    call.ftz = call.flag("ftz")
    type = call.type()
    compare = _comparison(call, kind, type)
    call.count(4 if combine else 3)
    d = call.operands[0]
    results = [d.first, d.second] if isinstance(d, Pair) else [d]
    arguments = [(o, type) for o in call.operands[1:3]]
    if combine:
        arguments.append((call.operands[3], _PRED))
    if type.lanes == 2 and len(results) != 2:
        raise call.refuse(f"`setp` of `.{type.name}` has two results, `p|q`")

    def run(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> Any:
        truths = compare(a, b)
        if len(truths) == 1:  # the second is that of the opposite
            truths = [truths[0], ~truths[0]]
        if combine:
            truths = [_COMBINE[combine](x, c[0]) for x in truths]
        return truths if len(results) == 2 else truths[0]

    return call.step([(r, _PRED) for r in results], arguments, run)


@opcode("set")
def set_(call: Call) -> Step:
    kind = call.left.pop(0) if call.left else None
    combine = call.one_of(*_COMBINE)
    call.ftz = call.flag("ftz")
    result, type = call.take_types(2)
    fit: tuple[str, ...] = ("u32", "s32", "f32", "u16", "s16", "f16", "bf16")
    each = result  # the type of the result of one comparison
    if type.lanes > 1:
        fit = ("u32", "s32", type.name)
        each = TYPES["u16"] if result.kind in "us" else TYPES[type.element]
    if result.name not in fit or type.lanes > 1 and type.name not in ("f16x2", "bf16x2"):
        raise call.refuse("`set` of these types is not known")
    compare = _comparison(call, kind, type)

    def run(a: np.ndarray, b: np.ndarray, *c: np.ndarray) -> np.ndarray:
        lanes = []
        for truth in compare(a, b):
            if combine:
                truth = _COMBINE[combine](truth, c[0])
            if each.kind in "us":
                lanes.append(np.where(truth, ~each.dtype.type(0), each.dtype.type(0)))
            else:
                lanes.append(encode(truth.astype(np.float64), each.element).view(uint(each.bits)))
        return (packed(lanes, type) if type.lanes > 1 else lanes[0]).view(result.dtype)

    return call.plain(result, [type, type] + [_PRED] * (combine is not None), run)


# ---- instructions without values ---------------------------------------------------------------


@opcode("nanosleep")
def nanosleep(call: Call) -> Step:
    """Advance the clock by as many nanoseconds."""
    call.program.is_data = False
    type = call.type()
    if type.name != "u32":
        raise call.unknown_type(type)
    call.count(1)
    duration = call.get(call.operands[0], type)

    def run(frame: Frame) -> None:
        longest = int(duration(frame).max())
        if frame.mask is None or frame.mask.any():
            frame.machine.ticks(min(longest, _LONGEST_SLEEP))

    return run


_LONGEST_SLEEP = 1_000_000  # nanoseconds


@opcode("griddepcontrol", "prefetch", "prefetchu", "discard", "applypriority")
def nothing(call: Call) -> Step:
    """Do nothing: the instruction is about caches, or the start of kernels."""
    call.program.is_data = False
    for operand in call.operands:
        if isinstance(operand, Address):
            call.get(operand.base, TYPES["u64"])
    return lambda frame: None


@opcode("createpolicy")
def policy(call: Call) -> Step:
    """Ignore caches; the simulator has none."""
    return call.step([(call.operands[0], TYPES["b64"])], [], lambda: np.zeros((1, 1), np.uint64))


@opcode("trap")
def trap(call: Call) -> Step:
    call.count(0)
    call.program.is_data = False

    def run(frame: Frame) -> None:
        if frame.mask is None or frame.mask.any():
            raise GluonError(
                f"`{call.statement.text}` of inline assembly ends the kernel",
                expected="no thread to come there",
            )

    return run


_REFUSED = {
    ("bra", "call", "ret", "exit", "brx"): "Branch in the kernel, or use predicates: `@p`, `selp`.",
    ("mma", "wgmma", "tcgen05", "ldmatrix", "stmatrix", "cp", "mbarrier", "tensormap"):
    "The language has an op for it; see gl.nvidia.",
    ("brkpt",): "Use `gluon run --pdb`.",
}  # fmt: skip


def _refusing(remedy: str) -> Callable[[Call], Step]:
    def make(call: Call) -> Step:
        raise call.refuse(f"`{call.name}` of inline assembly is not simulated", remedy)

    return make


for _names, _remedy in _REFUSED.items():
    opcode(*_names)(_refusing(_remedy))
