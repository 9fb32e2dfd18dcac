"""Exchange between the threads of a warp, and barriers: PTX ISA 9.7.9.6 and 9.7.13.

The simulator makes the runs of such a text for all threads, duplicates included: by
thread, and for each thread one after the other. The nth runs of a warp's threads meet.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_emu.ptx.program import TYPES, Call, Frame, Step, Type, opcode
from gluon_emu.ptx.runs import Warps
from gluon_emu.ptx.text import Operand, Pair

__all__ = ["match", "redux", "shfl", "vote"]

_WARP = 32
_EVERY = np.uint32(0xFFFFFFFF)
_LANES = np.arange(_WARP)
_BITS = np.uint32(1) << _LANES.astype(np.uint32)
_B32, _U32, _PRED = TYPES["b32"], TYPES["u32"], TYPES["pred"]


def _members(call: Call, warps: Warps, frame: Frame, mask: np.ndarray) -> np.ndarray:
    """Return the lanes that each lane waits for, as bits.

    Raises:
        ArgumentError: some of them do not come, for which hardware waits or does anything.
    """
    named = warps.apart(mask)
    guard = frame.mask
    runs = np.ones((1, 1, _WARP), bool) if guard is None else warps.apart(guard)
    if runs.all() and (named == _EVERY).all():
        return named
    named, runs = np.broadcast_arrays(named, runs)
    awaited = runs[..., None] & ((named[..., None] & _BITS) != 0)
    comes = runs[..., None, :] & (named[..., None] == named[..., None, :])
    missing = awaited & ~comes
    alone = runs & ((named & _BITS) == 0)
    if missing.any() or alone.any():
        where = np.argwhere(missing if missing.any() else alone)[0]
        lane, other = int(where[2]), int(where[-1])
        reason = (
            f"lane {other} does not run it with that mask" if missing.any() else "has not itself"
        )
        raise ArgumentError(
            f"lane {lane} runs `{call.statement.text}` of inline assembly for the lanes "
            f"{int(named[tuple(where[:3])]):#x}, and {reason}",
            argument="asm",
            expected="all lanes of the mask to run it with the same mask",
        )
    return named


def _synchronous(call: Call) -> None:
    if not call.flag("sync"):
        raise call.refuse(f"`{call.name}` is there with `.sync` alone")
    call.program.is_data = False
    call.program.each_thread = True


def _step(
    call: Call,
    results: list[tuple[Operand, Type]],
    arguments: list[tuple[Operand, Type]],
    fn: Callable[..., Any],
) -> Step:
    """Apply `fn` to arguments by warps; the last one is the mask. `fn` takes the members first."""
    gets = [call.get(operand, type) for operand, type in arguments]
    puts = [call.put(operand, type) for operand, type in results]

    def run(frame: Frame) -> None:
        warps = frame.warps()
        *values, mask = (get(frame) for get in gets)
        members = _members(call, warps, frame, mask)
        outputs = fn(members, *map(warps.apart, values))
        for put, value in zip(puts, outputs if isinstance(outputs, tuple) else (outputs,)):
            put(frame, warps.together(value))

    return run


@opcode("shfl")
def shfl(call: Call) -> Step:
    """Read the value of another lane; of one that does not take part, any value."""
    _synchronous(call)
    mode = call.one_of("up", "down", "bfly", "idx")
    if mode is None or call.type() != _B32:
        raise call.refuse("`shfl.sync` is .up, .down, .bfly or .idx, of .b32")
    call.count(5)
    d = call.operands[0]
    results: list[tuple[Operand, Type]] = [(d, _B32)]
    if isinstance(d, Pair):
        results = [(d.first, _B32), (d.second, _PRED)]

    def run(members: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Any:
        far, clamp = (b & np.uint32(31)).astype(np.int64), (c & np.uint32(31)).astype(np.int64)
        segment = ((c >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
        least = _LANES & segment
        most = least | (clamp & ~segment)
        if mode == "up":
            source = _LANES - far
            valid = source >= most
        else:
            source = {
                "down": _LANES + far,
                "bfly": _LANES ^ far,
                "idx": least | (far & ~segment),
            }[mode]
            valid = source <= most
        source = np.where(valid, source, _LANES)
        a, source, members = np.broadcast_arrays(a, source, members)
        taken = np.take_along_axis(a, source, -1)
        taken = np.where((members & _BITS[source]) != 0, taken, _EVERY)
        return (taken, np.broadcast_to(valid, taken.shape)) if len(results) == 2 else taken

    arguments = [(o, t) for o, t in zip(call.operands[1:], (_B32, _U32, _U32, _B32))]
    return _step(call, results, arguments, run)


def _ballot(truth: np.ndarray) -> np.ndarray:
    """Lanes along the last axis as bits."""
    ballot: np.ndarray = np.where(truth, _BITS, np.uint32(0)).sum(-1, dtype=np.uint32)
    return ballot


@opcode("vote")
def vote(call: Call) -> Step:
    _synchronous(call)
    mode = call.one_of("all", "any", "uni", "ballot")
    type = call.type()
    if mode is None or type != (_B32 if mode == "ballot" else _PRED):
        raise call.refuse("`vote.sync` is .all.pred, .any.pred, .uni.pred or .ballot.b32")
    call.count(3)

    def run(members: np.ndarray, truth: np.ndarray) -> np.ndarray:
        those = _ballot(truth)[..., None] & members
        if mode == "ballot":
            return np.asarray(those)
        every, none = those == members, those == 0
        return np.asarray({"all": every, "any": ~none}.get(str(mode), every | none))

    d, a, mask = call.operands
    return _step(call, [(d, type)], [(a, _PRED), (mask, _B32)], run)


@opcode("match")
def match(call: Call) -> Step:
    """Which lanes hold the same."""
    mode = call.one_of("any", "all")
    _synchronous(call)
    type = call.type()
    if mode is None or type.name not in ("b32", "b64"):
        raise call.refuse("`match` is .any.sync or .all.sync, of .b32 or .b64")
    call.count(3)
    d, a, mask = call.operands
    results = [(d, _B32)]
    if isinstance(d, Pair):
        if mode == "any":
            raise call.refuse("`match.any` has one result")
        results = [(d.first, _B32), (d.second, _PRED)]

    def run(members: np.ndarray, a: np.ndarray) -> Any:
        those = _ballot(a[..., None] == a[..., None, :]) & members
        if mode == "any":
            return np.asarray(those)
        every = those == members
        matching = np.where(every, members, np.uint32(0))
        return (matching, every) if len(results) == 2 else matching

    return _step(call, results, [(a, type), (mask, _B32)], run)


_REDUCED: dict[str, tuple[Any, str]] = {
    "add": (np.add, "us"), "min": (np.minimum, "us"), "max": (np.maximum, "us"),
    "and": (np.bitwise_and, "b"), "or": (np.bitwise_or, "b"), "xor": (np.bitwise_xor, "b"),
}  # fmt: skip


@opcode("redux")
def redux(call: Call) -> Step:
    """Reduce integers; those of f32, which sm_100a has, are not here."""
    _synchronous(call)
    kind = call.one_of(*_REDUCED)
    type = call.type()
    if kind is None or type.bits != 32 or type.kind not in _REDUCED[kind][1]:
        raise call.refuse(f"`redux.sync` of `.{type.name}` is not known here")
    fn = _REDUCED[kind][0]
    info = np.iinfo(type.dtype)
    neutral = {"min": info.max, "max": info.min, "and": info.max}.get(kind, 0)

    def run(members: np.ndarray, a: np.ndarray) -> np.ndarray:
        if (members == _EVERY).all():
            whole = fn.reduce(a, axis=-1, keepdims=True, dtype=type.dtype)
            return np.asarray(np.broadcast_to(whole, a.shape))
        those = (members[..., None] & _BITS) != 0
        held = np.where(those, a[..., None, :], type.dtype.type(neutral))
        reduced: np.ndarray = fn.reduce(held, axis=-1, dtype=type.dtype)
        return reduced

    call.count(3)
    d, a, mask = call.operands
    return _step(call, [(d, type)], [(a, type), (mask, _B32)], run)


@opcode("activemask")
def activemask(call: Call) -> Step:
    """Threads of a warp go together, but for a guard."""
    call.count(1)
    if call.type() != _B32:
        raise call.refuse("`activemask` is of .b32")
    put = call.put(call.operands[0], _B32)
    call.program.is_data = False
    if call.statement.guard is None:
        return lambda frame: put(frame, np.full((1, 1), _EVERY))
    call.program.each_thread = True

    def run(frame: Frame) -> None:
        warps = frame.warps()
        assert frame.mask is not None
        runs = warps.apart(frame.mask)
        active = np.broadcast_to(_ballot(runs)[..., None], runs.shape)
        put(frame, warps.together(active))

    return run


@opcode("elect")
def elect(call: Call) -> Step:
    """Return the first lane of the mask; the ISA leaves open which."""
    if not call.flag("sync") or call.left:
        raise call.refuse("`elect` is there with `.sync` alone")
    call.count(2)
    d = call.operands[0]
    if not isinstance(d, Pair):
        raise call.refuse("`elect.sync` has two results, `_|p`")
    call.program.is_data = False
    mask = call.get(call.operands[1], _U32)
    puts = [call.put(d.first, _U32), call.put(d.second, _PRED)]

    def run(frame: Frame) -> None:
        named = mask(frame)
        first = named & (~named + np.uint32(1))
        own = np.uint32(1) << (frame.threads() % _WARP).astype(np.uint32)
        lane = np.log2(np.maximum(first, 1)).astype(np.uint32)
        puts[0](frame, np.broadcast_arrays(lane, own)[0])
        puts[1](frame, own == first)

    return run


# ---- barriers ----------------------------------------------------------------------------------


@opcode("bar", "barrier")
def barrier(call: Call) -> Step:
    """Synchronize a warp, or all threads that run the text. They run in lockstep here, so no wait is needed."""
    if call.flag("warp"):
        _synchronous(call)
        call.count(1)
        return _step(call, [], [(call.operands[0], _B32)], lambda members: ())
    call.flag("cta"), call.flag("aligned")
    if not call.flag("sync") or call.left:
        raise call.refuse(
            "this barrier of inline assembly is not simulated",
            "Use gl.barrier(), gl.barrier(cluster=True) or an mbarrier.",
        )
    call.count(1, 2)
    call.program.is_data = False
    call.get(call.operands[0], _U32)
    count: Optional[Callable[[Frame], np.ndarray]] = None
    if len(call.operands) == 2:
        count = call.get(call.operands[1], _U32)

    def run(frame: Frame) -> None:
        machine = frame.machine
        threads = _WARP * machine.num_warps
        if frame.mask is not None and not frame.mask.all():
            words = "only some of the threads come"
        elif count is None and machine.specialized:
            words = (
                "it waits for all threads of the block, and those of other partitions do not come"
            )
        elif count is not None and (count(frame) != threads).any():
            wanted = int(count(frame)[count(frame) != threads][0])
            words = f"{wanted} threads are waited for, and {threads} come"
        else:
            return
        raise ArgumentError(
            f"`{call.statement.text}` of inline assembly: {words}",
            argument="asm",
            expected="a barrier among all threads that run the text",
            remedy="Between partitions use mbarriers.",
        )

    return run
