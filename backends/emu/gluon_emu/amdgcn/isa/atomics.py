"""Atomic operations on memory and on LDS.

ISA: CDNA3 12.12-12.14, RDNA3 and RDNA4 16.13-16.16.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import Operand, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa.addresses import buffer_address, counters, flat_address, locate
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import max_number, min_number, to_bf16
from gluon_emu.amdgcn.isa.memory import put
from gluon_emu.amdgcn.isa.table import Op, Step, pattern

__all__ = ["apply", "operation"]

_U32, _U64 = np.uint32, np.uint64


def _typed(function: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    def compute(old: Any, value: Any) -> Any:
        return function(old.view(dtype), value.view(dtype)).view(old.dtype)

    return compute


def _halves(
    function: Callable[..., Any], to: Callable[..., Any], back: Callable[..., Any]
) -> Callable[..., Any]:
    """On both halves of a word."""

    def compute(old: Any, value: Any) -> Any:
        parts = []
        for shift in (_U32(0), _U32(16)):
            x = to((old >> shift).astype(np.uint16))
            y = to((value >> shift).astype(np.uint16))
            parts.append(back(function(x, y)).astype(_U32))
        return parts[0] | (parts[1] << _U32(16))

    return compute


def _widen_bf16(bits: Any) -> Any:
    return (bits.astype(_U32) << _U32(16)).view(np.float32)


def _wrap_inc(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _wrap_dec(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def operation(name: str) -> Optional[tuple[Callable[..., Any], int]]:
    """Return (function of old and new, bytes) by the name behind `atomic_`."""
    name = {"fadd": "add_f32", "fmin": "min_f32", "fmax": "max_f32"}.get(name, name)
    pairs = {
        "pk_add_f16": _halves(np.add, lambda x: x.view(np.float16), lambda x: x.view(np.uint16)),
        "pk_add_bf16": _halves(np.add, _widen_bf16, to_bf16),
    }
    if name in pairs:
        return pairs[name], 4
    stem, _, kind = name.rpartition("_")
    old_form = {  # before gfx11: the operation alone, `_x2` for 64 bits
        "add": "add_u32", "sub": "sub_u32", "swap": "swap_b32", "cmpswap": "cmpswap_b32",
        "smin": "min_i32", "smax": "max_i32", "umin": "min_u32", "umax": "max_u32",
        "and": "and_b32", "or": "or_b32", "xor": "xor_b32", "inc": "inc_u32", "dec": "dec_u32",
    }  # fmt: skip
    if name.endswith("_x2") and name[:-3] in old_form:
        stem, _, kind = old_form[name[:-3]].rpartition("_")
        kind = kind[0] + "64"
    elif name in old_form:
        stem, _, kind = old_form[name].rpartition("_")
    stem = {"min_num": "min", "max_num": "max"}.get(stem, stem)
    dtypes = {"u32": _U32, "i32": np.int32, "b32": _U32, "f32": np.float32, "u64": _U64,
              "i64": np.int64, "b64": _U64, "f64": np.float64}  # fmt: skip
    if kind not in dtypes:
        return None
    floating = kind[0] == "f"
    functions: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "sub": np.subtract,
        "min": min_number if floating else np.minimum,
        "max": max_number if floating else np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "swap": lambda old, value: value,
        "inc": _wrap_inc,
        "dec": _wrap_dec,
        "cmpswap": lambda old, value: value,
    }
    if stem not in functions:
        return None
    return _typed(functions[stem], dtypes[kind]), int(kind[1:]) // 8


def apply(words: np.ndarray, index: np.ndarray, value: Any, compare: Any, function: Any) -> Any:
    """Set `words[index] = function(words[index], value)` for each element of `index` in order; return the old ones.

    Elements that share an address take turns in their order; all else happens at once.
    """
    old = np.empty(index.size, words.dtype)
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    starts = (
        np.concatenate(([True], ranked[1:] != ranked[:-1])) if index.size else np.zeros(0, bool)
    )
    first = np.maximum.accumulate(np.where(starts, np.arange(index.size), 0))
    turn = np.empty(index.size, np.int64)
    turn[order] = np.arange(index.size) - first
    for number in range(int(turn.max()) + 1 if index.size else 0):
        now = turn == number
        place = index[now]
        before = words[place]
        after = function(before, value[now])
        if compare is not None:
            after = np.where(before == compare[now], after, before)
        words[place] = after
        old[now] = before
    return old


_NAME = re.compile(r"(global|flat|buffer)_atomic_(.+)$")


def returns(ins: Instruction) -> bool:
    """Return whether an atomic asks for the old value."""
    flags = ins.modifiers
    return "glc" in flags or "sc0" in flags or "RETURN" in flags.get("th", "")


@pattern
def _atomic(name: str) -> Optional[Op]:
    match = _NAME.match(name)
    known = operation(match[2]) if match else None
    if match is None or known is None:
        return None
    space, (function, size) = match[1], known
    swaps = match[2].startswith("cmpswap")

    def bind(ins: Instruction, ctx: Context) -> Step:
        """Memory = op(memory, S), of all lanes in some order; D = the old value, if asked for."""
        wanted = returns(ins)
        operands = list(ins.operands)
        if space == "buffer":
            data = operands[0]
            destination: Optional[Operand] = data
            find = buffer_address(ins, ctx, operands[1:], size)
        else:
            destination = operands.pop(0) if wanted else None
            address, data = operands[:2]
            base = operands[2] if len(operands) > 2 else None
            find = flat_address(ins, ctx, address, base, size)
        data = register(data)
        words = size // 4
        rows = [ctx.row(data, i) for i in range(words * (2 if swaps else 1))]
        into = [ctx.row(destination, i) for i in range(words)] if wanted else []  # type: ignore[arg-type]
        keys = counters(ctx, not wanted, space == "flat")

        def step(b: Any) -> None:
            address, mask = find(b)
            address = locate(b, ins, address, mask, size, True)
            place = address[mask]
            memory = b.machine.memory
            array = memory.words if words == 1 else memory.longs
            index = ((place - np.uint64(memory.low)) // np.uint64(size)).astype(np.int64)
            value = joined(b, rows[:words], mask)
            compare = joined(b, rows[words:], mask) if swaps else None
            old = apply(array, index, value, compare, function)
            if into:
                for row, part in zip(into, parted(old, words)):
                    full = np.zeros(mask.shape, _U32)
                    full[mask] = part
                    put(b, [row], [full], mask)
            number, *_ = [b.outstanding.issue(*key, into, ins.index) for key in keys]
            if b.machine.order is not None:
                wrote = np.ones(old.size, bool) if compare is None else old == compare
                b.machine.order.change(b, ins, address, size, mask, number, wanted, wrote)
            b.machine.moved(ins.index, size * int(mask.sum()))

        return step

    return Op(bind, "vmem", 0, doc=bind.__doc__ or "")


def joined(b: Any, rows: Any, mask: Any) -> Any:
    """Return registers of the lanes in `mask`, two of them as one of 64 bits."""
    low = b.v[rows[0]][mask]
    if len(rows) == 1:
        return low
    return low.astype(_U64) | (b.v[rows[1]][mask].astype(_U64) << _U64(32))


def parted(value: Any, words: int) -> list[Any]:
    if words == 1:
        return [value]
    return [value.astype(_U32), (value >> _U64(32)).astype(_U32)]
