"""Loads, stores and atomics of global memory: PTX ISA 9.7.9.8, 9.7.9.12, 9.7.13.5."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import ml_dtypes
import numpy as np

from gluon_core.errors import ArgumentError
from gluon_emu.ptx.numbers import uint
from gluon_emu.ptx.program import (
    TYPES,
    Call,
    Frame,
    Program,
    Step,
    Type,
    lanes_of,
    opcode,
    packed,
)
from gluon_emu.ptx.text import Address, Operand, Vector

__all__: list[str] = []

_SCOPES = ("cta", "cluster", "gpu", "sys")
_ELSEWHERE = ("shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
_HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "L2::cache_hint",
    "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
)  # fmt: skip


def _space(call: Call) -> None:
    """Accept global memory only; ignore hints."""
    other = call.one_of(*_ELSEWHERE)
    if other is not None:
        raise call.refuse(
            f"`{call.name}.{other}` of inline assembly is not simulated",
            "Shared memory is reached by gl.allocate_shared_memory and its load and store.",
        )
    call.order = call.one_of("acquire", "release", "acq_rel", "relaxed", "volatile", "mmio")
    call.flag("global")
    scope = call.one_of(*_SCOPES)
    if call.order is not None or call.name in ("atom", "red"):
        _orders(call, call.order or "relaxed", scope)
    call.hinted = "L2::cache_hint" in call.left
    while call.one_of(*_HINTS):
        pass
    call.program.is_data = False
    call.program.reaches_memory = True


def _orders(call: Call, order: str, scope: Optional[str]) -> None:
    """Add to the effect of the text's atomics: the simulator has one order for all of them."""
    program = call.program
    if order in ("volatile", "mmio"):
        order, scope = "relaxed", "sys"
    _add_order(program, order, scope)
    if call.name != "st":
        program.looked = True
    if call.name != "ld" and program.released is not None:
        _add_order(program, "release", program.released)


def _add_order(program: Program, order: str, scope: Optional[str]) -> None:
    before = program.orders
    if before:
        both = {before[0], order} - {"relaxed"}
        # A fence and the relaxed access that it is for order others only where both reach them (PTX ISA 8.7).
        reach = min if both and "relaxed" in (before[0], order) else max
        order = both.pop() if len(both) == 1 else "acq_rel" if both else "relaxed"
        scope = reach(before[1], _scoped(scope), key=_WIDER.index)
    program.orders = (order, _scoped(scope))


@opcode("fence", "membar")
def fence(call: Call) -> Step:
    """Between the proxies, or among threads: then it is a part of the atomics of its text. Their earlier reads are acquired, and their later writes are released."""
    program = call.program
    program.is_data = False
    if call.name == "fence" and call.flag("proxy"):
        if not call.flag("async"):
            raise call.refuse("this `fence` of inline assembly is not simulated")
        return lambda frame: frame.machine.fence()
    call.count(0)
    kind = call.one_of("sc", "acq_rel", "acquire", "release")
    scope = call.one_of(*(_SCOPES if call.name == "fence" else ("cta", "gl", "sys")))
    if scope is None or call.left:
        raise call.refuse(f"this `{call.name}` of inline assembly is not simulated")
    scope = "gpu" if scope == "gl" else scope
    if kind != "release" and program.looked:
        _add_order(program, "acquire", scope)
    if kind != "acquire":
        program.released = max(_scoped(scope), program.released or "cta", key=_WIDER.index)
    program.fence = call.refuse(
        f"a `{call.name}` of inline assembly is simulated only together with atomics of the same text",
        "Put it into the text of the atomic that it is for, or use gl.atomic_add, gl.atomic_cas or "
        "gl.atomic_xchg with `sem`.",
    )
    return lambda frame: None


_WIDER = ("cta", "gpu", "sys")


def _scoped(scope: Optional[str]) -> str:
    return "gpu" if scope in (None, "cluster") else str(scope)


def _addresses(call: Call, operand: Operand) -> Callable[[Frame], np.ndarray]:
    if not isinstance(operand, Address):
        raise call.refuse(f"`{call.name}` takes an address, `[$1]`")
    get = call.get(operand.base, TYPES["s64"])
    offset = operand.offset
    return lambda frame: get(frame) + np.int64(offset)


def _vector(call: Call, operand: Operand) -> list[Operand]:
    count = {"v2": 2, "v4": 4, "v8": 8}.get(call.one_of("v2", "v4", "v8") or "", 1)
    items: list[Operand] = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers where the instruction has {count}")
    return items


def _aligned(frame: Frame, address: np.ndarray, size: int, count: int) -> None:
    live = (
        address
        if frame.mask is None
        else np.broadcast_arrays(address, frame.mask)[0][_live(frame, address)]
    )
    if count > 1 and (live % (size * count)).any():
        raise ArgumentError(
            f"inline assembly moves {count} times {size} bytes from an address that is no multiple "
            f"of {size * count}",
            argument="args",
            expected=f"addresses that are multiples of {size * count}",
        )


def _live(frame: Frame, address: np.ndarray) -> Any:
    assert frame.mask is not None
    return np.broadcast_arrays(frame.mask, address)[0]


def _plain(call: Call, type: Type) -> np.dtype:
    if type.kind in "hp":
        raise call.unknown_type(type)
    return np.dtype(f"i{type.bits // 8}")


def _hint(call: Call, count: int) -> None:
    call.count(count + call.hinted)
    if call.hinted:
        call.get(call.operands[count], TYPES["b64"])


def _update(frame: Frame, kind: str, address: np.ndarray, value: np.ndarray) -> np.ndarray:
    mask = frame.mask
    if mask is not None:
        mask, address, value = np.broadcast_arrays(mask, address, value)
    return frame.machine.atomic_global(kind, address, value, mask)


@opcode("ld")
def ld(call: Call) -> Step:
    _space(call)
    items = _vector(call, call.operands[0])
    type = call.type()
    dtype = _plain(call, type)
    _hint(call, 2)
    where = _addresses(call, call.operands[1])
    puts = [call.put(item, type, wider=True) for item in items]
    atomic = call.order is not None

    def load(frame: Frame, address: np.ndarray) -> np.ndarray:
        if not atomic:
            return frame.machine.load_global(address, dtype, frame.mask)
        return _update(frame, "or", address, np.zeros(address.shape, dtype))

    def run(frame: Frame) -> None:
        address = where(frame)
        _aligned(frame, address, dtype.itemsize, len(puts))
        for i, put in enumerate(puts):
            put(frame, load(frame, address + i * dtype.itemsize).view(type.dtype))

    return run


@opcode("st")
def st(call: Call) -> Step:
    _space(call)
    if len(call.operands) < 2:
        raise call.refuse("`st` takes an address and a value")
    items = _vector(call, call.operands[1])
    type = call.type()
    dtype = _plain(call, type)
    _hint(call, 2)
    where = _addresses(call, call.operands[0])
    gets = [call.get(item, type, wider=True) for item in items]
    atomic = call.order is not None

    def run(frame: Frame) -> None:
        address = where(frame)
        _aligned(frame, address, dtype.itemsize, len(gets))
        for i, get in enumerate(gets):
            value = get(frame).view(dtype)
            there, value = np.broadcast_arrays(address + i * dtype.itemsize, value)
            if atomic:
                _update(frame, "xchg", there, value)
            else:
                frame.machine.store_global(there, value, frame.mask)

    return run


_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@opcode("atom", "red")
def atom(call: Call) -> Step:
    """Update each element of a pair or a vector by itself."""
    _space(call)
    call.flag("noftz")
    kind = call.one_of(*_ATOMIC)
    if kind is None:
        raise call.refuse(f"this kind of `{call.name}` of inline assembly is not simulated")
    returns = call.name == "atom"
    call.program.each_thread = True
    values = call.operands[1 + returns : 2 + returns]
    items = _vector(call, values[0] if values else call.operands[0])
    type = call.type()
    name, store = _update_of(call, kind, type)
    swaps = kind == "cas"
    _hint(call, 2 + returns + swaps)
    where = _addresses(call, call.operands[returns])
    gets = [call.get(item, type) for item in items]
    if swaps:
        compare = call.get(values[0], type)
        gets = [call.get(call.operands[2 + returns], type)]
    puts: list[Callable[[Frame, np.ndarray], None]] = []
    if returns:
        puts = [call.put(item, type) for item in _vector_like(call.operands[0], len(items))]
    size = store.itemsize

    def update(frame: Frame, address: np.ndarray, value: np.ndarray) -> np.ndarray:
        raw = [lane.view(store) for lane in lanes_of(value, type)]
        if swaps:
            held = compare(frame).view(store)
            every = np.ones((1,) * address.ndim, bool) if frame.mask is None else frame.mask
            mask, there, held, new = np.broadcast_arrays(every, address, held, raw[0])
            return frame.machine.compare_and_swap(there, held, new, mask).view(type.dtype)
        old = []
        for k, lane in enumerate(raw):
            there, lane = np.broadcast_arrays(address + k * size, lane)
            old.append(np.asarray(_update(frame, name, there, lane)))
        if len(old) == 1:
            return old[0].view(type.dtype)
        return packed([o.view(uint(8 * size)) for o in old], type)

    def run(frame: Frame) -> None:
        address = where(frame)
        step = type.bits // 8
        _aligned(frame, address, step, len(gets))
        olds = [update(frame, address + i * step, get(frame)) for i, get in enumerate(gets)]
        for put, old in zip(puts, olds):
            put(frame, old)

    return run


def _vector_like(operand: Operand, count: int) -> Sequence[Operand]:
    return operand.items if isinstance(operand, Vector) and count > 1 else [operand]


def _update_of(call: Call, kind: str, type: Type) -> tuple[str, np.dtype]:
    """Return the simulator's name of an update, and the type of its elements."""
    element = type.element if type.lanes > 1 else type.name
    size = type.bits // type.lanes // 8
    floats = type.kind in "fh" and element not in ("s16", "u16")
    store = np.dtype(f"i{size}")
    if floats:
        store = np.dtype(ml_dtypes.bfloat16) if element == "bf16" else np.dtype(f"f{size}")
    if kind == "exch" or kind == "cas":
        return "xchg", np.dtype(f"i{type.bits // 8}") if type.lanes == 1 else store
    if type.lanes > 1 and not floats or floats and kind != "add":
        raise call.unknown_type(type)
    if kind == "add":
        return "fadd" if floats else "add", store
    return f"u{kind}" if kind in ("min", "max") and type.kind == "u" else kind, store


@opcode("cvta")
def cvta(call: Call) -> Step:
    """Global addresses are the same everywhere."""
    call.flag("to")
    if not call.flag("global"):
        raise call.refuse("`cvta` of inline assembly is of global memory here")
    type = call.type()
    return call.plain(type, [type], lambda a: a)
