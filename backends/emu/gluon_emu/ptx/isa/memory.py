"""Loads, stores, atomics and addresses: PTX ISA 9.7.9 and 9.7.13.6."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import AccessError
from gluon_emu.ptx.isa.atomics import at_once, update_of
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.access import LOCAL_WINDOW, SHARED_WINDOW
from gluon_emu.ptx.machine.observe import BLOCK, CLUSTER, DEVICE, Order
from gluon_emu.ptx.numbers import uint
from gluon_emu.ptx.program import TYPES, Type
from gluon_emu.ptx.text import Address, Immediate, Operand, Register, Vector

__all__ = ["address_of", "addresses", "order_of", "space_of"]

_SPACES = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "shared",
    "local": "local", "const": "const", "param": "param", "param::entry": "param",
    "param::func": "param",
}  # fmt: skip
_HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "L2::cache_hint",
    "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
)  # fmt: skip
_ORDERS = ("acquire", "release", "acq_rel", "relaxed", "volatile", "sc")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_FENCES = {"cta": "cta", "cluster": "cluster", "gpu": "gpu", "sys": "sys", "gl": "gpu"}


def space_of(call: Any) -> str:
    return _SPACES.get(call.one_of(*_SPACES) or "", "generic")


def addresses(call: Any, operand: Operand) -> Callable[[Any], np.ndarray]:
    """Return a function from a group to addresses as int64."""
    if not isinstance(operand, Address):
        raise call.refuse(f"`{call.name}` takes an address in brackets")
    return address_of(call, operand.base, operand.offset)


def address_of(call: Any, base: Operand, offset: int = 0) -> Callable[[Any], np.ndarray]:
    register = isinstance(base, Register) and call.program.symbol(base.name) is None
    wide = 32 if register and call.width(base) != 64 else 64
    get = call.get(base, TYPES[f"u{wide}"])
    if not offset:
        return lambda group: get(group).astype(np.int64)
    far = np.array(offset, np.int64).astype(f"u{wide // 8}")  # sums wrap as the register does
    return lambda group: (get(group) + far).astype(np.int64)


def order_of(word: Optional[str], scope: Optional[str]) -> Optional[Order]:
    """Return the semantics of a strong access; None for a weak one (PTX ISA 8.4, 8.5)."""
    if word is None:
        return None
    width = {"cta": BLOCK, "cluster": CLUSTER}.get(scope or "gpu", DEVICE)
    every = word in ("acq_rel", "sc")
    return Order(width, every or word == "acquire", every or word == "release")


def _prefix(call: Any) -> tuple[str, Optional[Order]]:
    """Take what all accesses share; return the space, and the order."""
    mapped = call.flag("mmio")  # the same access once, whatever the scope
    word = call.one_of(*_ORDERS) or ("relaxed" if mapped else None)
    space = space_of(call)
    order = order_of(word, call.one_of(*_SCOPES))
    call.hinted = "L2::cache_hint" in call.left
    while call.one_of(*_HINTS):
        pass
    return space, order


def _items(call: Any, operand: Operand) -> list[Operand]:
    count = {"v2": 2, "v4": 4, "v8": 8}.get(call.one_of("v2", "v4", "v8") or "", 1)
    items: list[Operand] = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers where the instruction has {count}")
    return items


def _variable(call: Any, space: str, operand: Any) -> Optional[str]:
    """Return the register that a piece of a variable in .param lives in; None for a kernel's argument."""
    if (
        space != "param"
        or not isinstance(operand, Address)
        or not isinstance(operand.base, Register)
    ):
        return None
    name = operand.base.name
    if name in call.program.parameters or call.program.names.get(name, name) in call.program.widths:
        return None
    return f"{name}@{operand.offset}"


@instruction("ld", "ldu")
def ld(call: Any) -> Step:
    space, order = _prefix(call)
    items = _items(call, call.operands[0])
    type = call.type()
    if type.kind == "p":
        raise call.unknown_type(type)
    call.count(2, 3)
    puts = [call.put(item, type, wider=True) for item in items]
    size = type.bits // 8
    polls = order is not None
    name = _variable(call, space, call.operands[1])
    if name is not None:
        return _load_variable(name, puts, type)
    where = addresses(call, call.operands[1])
    dtype = type.dtype

    def run(group: Any) -> None:
        values = group.machine.memory.load(group, space, where(group), size, len(puts), order)
        if polls:
            group.polled = True
        for put, value in zip(puts, values):
            put(group, value.view(dtype))

    return run


def _load_variable(name: str, puts: list[Any], type: Type) -> Step:
    stem, _, offset = name.partition("@")
    size = type.bits // 8

    def run(group: Any) -> None:
        for i, put in enumerate(puts):
            value = group.values.get(f"{stem}@{int(offset) + i * size}")
            if value is None:
                value = np.zeros((1, 1), uint(type.bits))
            put(group, value.astype(uint(type.bits)).view(type.dtype))

    return run


@instruction("st")
def st(call: Any) -> Step:
    space, order = _prefix(call)
    if len(call.operands) < 2:
        raise call.refuse("`st` takes an address and a value")
    items = _items(call, call.operands[1])
    type = call.type()
    if type.kind == "p":
        raise call.unknown_type(type)
    gets = [call.get(item, type, wider=True) for item in items]
    size, raw = type.bits // 8, uint(type.bits)
    name = _variable(call, space, call.operands[0])
    if name is not None:
        stem, _, offset = name.partition("@")

        def keep(group: Any) -> None:
            for i, get in enumerate(gets):
                value = np.asarray(get(group)).view(raw)
                group.write(f"{stem}@{int(offset) + i * size}", type.bits, value)

        return keep
    where = addresses(call, call.operands[0])

    def run(group: Any) -> None:
        values = [np.asarray(get(group)).view(raw) for get in gets]
        group.machine.memory.store(group, space, where(group), size, values, order)

    return run


@instruction("st.bulk")
def fill(call: Any) -> Step:
    """Set a range of shared memory to zero."""
    call.flag("bulk"), call.flag("weak"), space_of(call)
    call.count(2, 3)
    where, amount = addresses(call, call.operands[0]), call.get(call.operands[1], TYPES["u64"])
    if len(call.operands) == 3 and call.operands[2] != Immediate(0):
        raise call.refuse("`st.bulk` stores zeros alone")
    space = "shared" if call.statement.modifiers[-1].startswith("shared") else "generic"

    def run(group: Any) -> None:
        address, sizes = where(group), group.full(amount(group)).astype(np.int64)
        before, lanes = group.mask, group.lanes()
        wanted = sizes[lanes]
        if (wanted % 8).any() or (group.full(address)[lanes] % 8).any():
            raise AccessError("`st.bulk` at an address or of a size that is no multiple of 8 bytes")
        for offset in range(0, int(wanted.max(initial=0)), 8):
            group.mask = lanes & (sizes > offset)
            zero = [np.zeros((1, 1), np.uint64)]
            group.machine.memory.store(group, space, address + offset, 8, zero)
        group.mask = before

    return run


_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@instruction("atom", "red")
def atom(call: Any) -> Step:
    """Update each element of a pair or a vector by itself, the threads one after the other."""
    returns = call.name == "atom"
    scope = next((word for word in _SCOPES if word in call.left), None)
    space, order = _prefix(call)
    order = order or order_of("relaxed", scope)
    call.flag("noftz")
    kind = call.one_of(*_ATOMIC)
    if kind is None:
        raise call.refuse(f"this kind of `{call.name}` is not known")
    call.flag("noftz")
    values = call.operands[1 + returns :]
    if not values:
        raise call.refuse(f"`{call.name}` takes an address and a value")
    items = _items(call, values[0])
    type = call.type()
    update = update_of(call, kind, type, space)
    where = addresses(call, call.operands[returns])
    swaps = kind == "cas"
    gets = [call.get(item, type) for item in items]
    extra = [call.get(values[1], type)] if swaps else []
    puts: list[Any] = []
    if returns:
        d = call.operands[0]
        parts = d.items if isinstance(d, Vector) and len(items) > 1 else [d]
        puts = [call.put(item, type) for item in parts]
    size, raw = type.bits // 8, uint(type.bits)
    fast = at_once(kind, type, returns)

    def run(group: Any) -> None:
        address = where(group)
        group.polled = group.polled or returns
        olds = []
        for i, get in enumerate(gets):
            new = [np.asarray(g(group)).view(raw) for g in (get, *extra)]
            olds.append(
                group.machine.memory.update(
                    group, space, address + i * size, size, update, new, fast, order
                )
            )
        for put, old in zip(puts, olds):
            put(group, old.view(type.dtype))

    return run


@instruction("cvta")
def cvta(call: Any) -> Step:
    """Between a space's own addresses and generic ones."""
    back = call.flag("to")
    space = space_of(call)
    type = call.type()
    far = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    if space == "param":
        sign = -1 if back else 1
        get, put = call.get(call.operands[1], type), call.put(call.operands[0], type)
        return lambda group: put(
            group,
            (get(group).astype(np.int64) + sign * group.machine.launch.parameters).astype(
                type.dtype
            ),
        )
    if not far:
        same: Step = call.plain(type, [type], lambda a: a)
        return same
    if type.bits != 64:
        raise call.refuse("`cvta` of 32 bits is not known here")
    window = np.uint64(far)
    step: Step = call.plain(type, [type], lambda a: a - window if back else a + window)
    return step


@instruction("isspacep")
def isspacep(call: Any) -> Step:
    kind = call.one_of(*_SPACES) or ""
    call.count(2)
    space = _SPACES.get(kind)
    get = address_of(call, call.operands[1])
    put = call.put(call.operands[0], TYPES["pred"])
    number = {"shared": 1, "local": 2}.get(space or "", 0)

    def run(group: Any) -> None:
        put(group, (get(group) >> 56) == number)

    return run


@instruction("mapa", "getctarank")
def mapa(call: Any) -> Step:
    """Return the address of the same place in another block of the cluster, or whose block it is."""
    space = space_of(call)
    type = call.type()
    low = (1 << 24) - 1
    if call.name == "getctarank":
        call.count(2)
        get = address_of(call, call.operands[1])
        put = call.put(call.operands[0], TYPES["u32"])
        return lambda group: put(group, (get(group) >> 24 & 0xFF).astype(np.uint32))
    call.count(3)
    if isinstance(call.operands[1], Immediate):
        raise call.refuse("`mapa` takes an address")
    get = address_of(call, call.operands[1])
    rank = call.get(call.operands[2], TYPES["u32"])
    put = call.put(call.operands[0], type)
    window = SHARED_WINDOW if space == "generic" else 0

    def run(group: Any) -> None:
        address = (get(group) & low) | (rank(group).astype(np.int64) << 24) | window
        put(group, address.astype(type.dtype))

    return run


@instruction("membar", "fence")
def fence(call: Any) -> Step:
    """Order accesses, which happen in the order of the program here; watchers see it."""
    words = list(call.left)
    scope = next((_FENCES[word] for word in words if word in _FENCES), "gpu")
    proxy, order = "", None
    if "proxy" in words[:-1]:
        proxy = words[words.index("proxy") + 1].partition("::")[0]
    elif "mbarrier_init" in words:
        proxy = "mbarrier_init"
    else:
        order = order_of(next((word for word in words if word in _ORDERS), "sc"), scope)

    def run(group: Any) -> None:
        if group.machine.observer is not None:
            group.machine.observer.fence(group, order, proxy)

    return run


@instruction("createpolicy")
def createpolicy(call: Any) -> Step:
    put = call.put(call.operands[0], TYPES["b64"])
    return lambda group: put(group, np.zeros((1, 1), np.uint64))
