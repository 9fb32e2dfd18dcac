"""Barriers of warps, blocks and clusters: PTX ISA 9.7.13.1 to 9.7.13.4."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.code import SWITCH
from gluon_emu.ptx.program import TYPES

__all__ = ["synchronous"]

_U32, _PRED = TYPES["u32"], TYPES["pred"]


def synchronous(step: Step, members: Optional[Callable[[Any], np.ndarray]] = None) -> Step:
    """Return a step that waits until all threads of a warp that it is for are there.

    Args:
        members: gives the masks of these threads; None for all.
    """

    def run(group: Any) -> Any:
        if group.active is None and group.mask is None:
            return step(group)
        named = None if members is None else members(group)
        here = group.machine.complete(group, named)
        if here is not None:
            return group.machine.await_warps(group, here)
        return step(group)

    return run


def _uniform(group: Any, value: np.ndarray, words: str) -> Optional[int]:
    """Return the number that all threads have; None after the group was parted by it."""
    if value.size == 1:
        return int(value.flat[0])
    every = group.full(value)
    lanes = group.lanes()
    numbers = np.unique(every[lanes])
    if numbers.size == 1:
        return int(numbers[0])
    parts = [group.part(lanes & (every == number)) for number in numbers]
    if any((p.rows.size == group.rows.size) and p.active is not None for p in parts):
        raise EmulatorError(f"threads of a warp have {words} {', '.join(map(str, numbers))}")
    group.machine.place(*parts)
    return None


@instruction("bar", "barrier")
def barrier(call: Any) -> Step:
    if call.flag("warp"):
        return _warp(call)
    if call.name == "barrier" and call.flag("cluster"):
        return _cluster(call)
    call.flag("cta"), call.flag("aligned")
    kind = call.one_of("sync", "arrive", "red")
    if kind is None:
        raise call.refuse("a barrier is `.sync`, `.arrive` or `.red`")
    reduction = call.one_of("popc", "and", "or") if kind == "red" else None
    call.flag("aligned")
    operands = list(call.operands)
    put: Any = None
    vote: Any = None
    if kind == "red":
        type = call.type()
        put = call.put(operands.pop(0), type)
        predicate = operands.pop()
        vote = call.get(predicate, _PRED)
    elif call.left:
        raise call.refuse(f"`.{call.left[0]}` of `{call.name}` is not known")
    if not 1 <= len(operands) <= 2:
        raise call.refuse("a barrier takes its number, and how many threads it is for")
    number = call.get(operands[0], _U32)
    threads = call.get(operands[1], _U32) if len(operands) == 2 else None

    def run(group: Any) -> Any:
        if group.passed:
            group.passed = False
            if put is not None:
                put(group, _reduced(group, _first(number(group)), reduction))
            return None
        which = _uniform(group, number(group), "barriers")
        if which is None:
            return SWITCH
        wanted = None
        if threads is not None:
            wanted = _uniform(group, threads(group), "numbers of threads")
            if wanted is None:
                return SWITCH
        elif kind == "arrive":
            raise EmulatorError("an arrival needs the number of threads")
        votes = None if vote is None else vote(group)
        return group.machine.barriers.arrive(group, which, wanted, kind != "arrive", votes)

    return run


def _warp(call: Any) -> Step:
    call.flag("sync")
    call.count(1)
    members = call.get(call.operands[0], TYPES["b32"])

    def meet(group: Any) -> None:
        if group.machine.observer is not None:
            group.machine.observer.warps(group, members(group))

    return synchronous(meet, members)


def _first(value: np.ndarray) -> int:
    return int(np.asarray(value).flat[0])


def _reduced(group: Any, number: int, reduction: Optional[str]) -> np.ndarray:
    every, true = group.machine.barriers.outcome[:, number][:, group.block]
    if reduction == "popc":
        return np.asarray(true.astype(np.uint32)[:, None])
    return np.asarray((true == every if reduction == "and" else true > 0)[:, None])


def _cluster(call: Any) -> Step:
    kind = call.one_of("arrive", "wait")
    ordered = call.one_of("release", "acquire", "relaxed") != "relaxed"
    call.flag("aligned")
    call.count(0)
    if kind is None or call.left:
        raise call.refuse("the cluster's barrier is `.arrive` or `.wait`")

    def run(group: Any) -> Any:
        barriers, observer = group.machine.barriers, group.machine.observer
        if kind == "arrive":
            if observer is not None:
                (observer.arrive if ordered else observer.relaxed)(group, "cluster")
            return barriers.cluster_arrive(group)
        outcome = barriers.cluster_wait(group)
        if outcome is None and observer is not None and ordered:
            observer.passed(group, "cluster")
        return outcome

    return synchronous(run)
