"""Control flow: if, for, while, calls, reductions' regions, warp specialization."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_sim.errors import DeadlockError
from gluon_sim.executor.compile import CompiledBlock, Step
from gluon_sim.executor.frame import Frame, merge, select
from gluon_sim.executor.stepping import run_block, run_function
from gluon_sim.executor.task import Task
from gluon_sim.memory.global_memory import GlobalMemory
from gluon_sim.memory.turns import Turns, Wait
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.tracing.ir import TERMINATORS
from gluon_sim.tracing.source import span_of

__all__ = ["CONTROL"]


def _leave(task: Task, step: Step) -> Turns[None]:
    return
    yield


def _yielded(task: Task, step: Optional[Step], width: int) -> list[Any]:
    """Values of the yield that ended a block; a block without one yields nothing."""
    if step is None or not width:
        return []
    return [task.frame.resolve(a) for a in step.plan[0]]


def _bind(task: Task, step: Step, values: list[Any]) -> None:
    for slot, value in zip(step.outs, values):
        task.frame.put(slot, value)


def call(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    function = task.machine.program.functions[step.plan[0].name]
    args = [frame.get(a) for a in step.plan[1]]
    agent = task.agent if function.function.noinline else None
    if agent is not None:
        task.history.enter(agent)
    task.calls.append(task.op)
    results = yield from run_function(task, function, args, frame.rows)
    task.op = task.calls.pop()
    if agent is not None:
        task.history.leave(agent)
    _bind(task, step, results)


def if_op(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    rows = frame.rows
    condition = frame.get(step.plan[0])
    width = len(step.outs)
    blocks = [region[0] if region else None for region in step.blocks]
    if condition.shape[0] == 1 or condition.all() or not condition.any():
        taken = blocks[0] if condition[0] else blocks[1]
        if taken is not None:
            end = yield from run_block(task, taken)
            _bind(task, step, _yielded(task, end, width))
        return
    parts = []
    for block, live in ((blocks[0], condition), (blocks[1], ~condition)):
        if block is None:
            continue
        positions = np.flatnonzero(live)
        frame.rows = rows.pick(positions)
        try:
            end = yield from run_block(task, block)
            parts.append((positions, _yielded(task, end, width)))
        finally:
            frame.rows = rows
    for i, slot in enumerate(step.outs):
        frame.put(slot, merge([(p, v[i]) for p, v in parts], rows.count))


def for_op(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    low, high, by = (frame.get(a) for a in step.plan[:3])
    carried = [frame.get(a) for a in step.plan[3]]
    body = step.blocks[0][0]
    induction, carry_slots = body.arguments[0], body.arguments[1:]
    width = len(carried)
    if all(b.shape[0] == 1 or (b == b[0]).all() for b in (low, high, by)):
        dtype = low.dtype
        first, last, stride = int(low[0]), int(high[0]), int(by[0])
        if stride <= 0 and first < last:
            _endless(task, np.ones(1, bool), by)
        for i in range(first, last, stride) if stride > 0 else ():
            frame.put(induction, np.full(1, i, dtype))
            for slot, value in zip(carry_slots, carried):
                frame.put(slot, value)
            end = yield from run_block(task, body)
            if width:
                carried = _yielded(task, end, width)
        _bind(task, step, carried)
        return
    rows = frame.rows
    counter = np.array(np.broadcast_to(low, rows.count))
    high, by = np.broadcast_to(high, rows.count), np.broadcast_to(by, rows.count)
    if (by <= 0).any():
        _endless(task, (counter < high) & (by <= 0), by)
    while True:
        live = (counter < high) & (by > 0)
        if not live.any():
            break
        positions = np.flatnonzero(live)
        frame.rows = rows if len(positions) == rows.count else rows.pick(positions)
        try:
            frame.put(induction, counter[positions])
            for slot, value in zip(carry_slots, carried):
                frame.put(slot, select(value, positions))
            end = yield from run_block(task, body)
            new = _yielded(task, end, width)
        finally:
            frame.rows = rows
        carried = _update(carried, new, positions, live, rows)
        counter = counter + np.where(live, by, 0).astype(counter.dtype)
    _bind(task, step, carried)


def _endless(task: Task, live: np.ndarray, by: np.ndarray) -> None:
    """Report a loop that goes on for ever; without the check it has no rounds.

    Args:
        live: programs in which it begins.
        by: its step.
    """
    if not task.machine.settings.deadlocks or not live.any():
        return
    row = int(np.argmax(live))
    raise DeadlockError(
        "the loop never ends: its step is not positive",
        argument="step",
        expected="at least 1",
        got=str(int(by[row])),
        remedy="Pass another step; downwards loops count up, and subtract.",
        report="deadlock.loop",
        program=task.batch.program(int(task.rows.index[row])),
        span=span_of(task.home().loc),
    )


def _unchanging(task: Task, step: Step, row: int) -> DeadlockError:
    """Return the error for a `while` whose rounds change nothing that its condition depends on."""
    return DeadlockError(
        "a loop never comes to its end: nothing that its condition depends on changes in it",
        remedy="Change a variable of the condition in the loop.",
        report="deadlock.loop",
        program=task.batch.program(row),
        span=span_of(step.op.loc),
    )


def _update(
    old: list[Any], new: list[Any], positions: np.ndarray, live: np.ndarray, rows: Rows
) -> list[Any]:
    """Carried values after an iteration that only some programs took part in."""
    if len(positions) == rows.count:
        return new or old
    rest = np.flatnonzero(~live)
    return [merge([(positions, n), (rest, select(o, rest))], rows.count) for o, n in zip(old, new)]


def _same(a: list[Any], b: list[Any]) -> bool:
    for x, y in zip(a, b):
        if isinstance(x, np.ndarray):
            if x.shape != y.shape or x.tobytes() != y.tobytes():
                return False
        elif x is not y:
            return False
    return True


def _changed(memory: GlobalMemory, version: int) -> Callable[[], bool]:
    return lambda: memory.version != version


def while_op(task: Task, step: Step) -> Turns[None]:
    frame = task.frame
    rows = frame.rows
    carried = [frame.get(a) for a in step.plan[0]]
    before, after = step.blocks[0][0], step.blocks[1][0]
    width = len(carried)
    memory = task.memory
    spins = task.machine.program.spins
    active = np.arange(rows.count)
    results = carried
    stuck_since = None
    while True:
        version = memory.version
        start = carried
        frame.rows = rows if len(active) == rows.count else rows.pick(active)
        try:
            for slot, value in zip(before.arguments, carried):
                frame.put(slot, select(value, active))
            end = yield from run_block(task, before)
            assert end is not None
            condition = np.broadcast_to(frame.resolve(end.plan[0]), len(active))
            passed = [frame.resolve(a) for a in end.plan[1]]
        finally:
            frame.rows = rows
        live = np.zeros(rows.count, bool)
        live[active] = True
        results = _update(results, passed, active, live, rows)
        if not condition.any():
            break
        keep = np.flatnonzero(condition)
        inside = active[keep]
        frame.rows = rows if len(inside) == rows.count else rows.pick(inside)
        try:
            for slot, value in zip(after.arguments, passed):
                frame.put(slot, select(value, keep))
            end = yield from run_block(task, after)
            new = _yielded(task, end, width)
        finally:
            frame.rows = rows
        live = np.zeros(rows.count, bool)
        live[inside] = True
        carried = _update(results, new, inside, live, rows)
        results = carried
        active = inside
        if step.closed and _same(start, carried):
            raise _unchanging(task, step, int(rows.index[active[0]]))
        if memory.version == version and _same(start, carried):
            # Nothing changed: the next round would be the same until somebody else writes.
            if stuck_since != version or spins:
                stuck_since = version
                yield Wait(
                    _changed(memory, version),
                    lambda: "memory that its loop reads to change",
                    step.op.loc,
                )
        elif spins:
            yield Wait(lambda: True, lambda: "its turn", step.op.loc)
    _bind(task, step, results)


def warp_specialize(task: Task, step: Step) -> Turns[None]:
    """Continue the default region in this task; start a task for each partition."""
    frame = task.frame
    operands = [frame.get(a) for a in step.plan[0]]
    warps = list(step.plan[1])
    holder = step.blocks[1][0].steps[0]
    operands = operands or [frame.get(a) for a in holder.plan[0]]
    running = [0]
    parent, agents = task.active(), task.batch.agents
    assert agents is not None  # there is one now
    forked, partitions = [], []
    history = task.history.fork(parent)
    for i, region in enumerate(holder.blocks):
        partition = Task(task.machine, task.batch, f"partition {i + 1} of {task.name}")
        partition.num_warps = int(warps[i]) if i < len(warps) else task.num_warps
        partition.first_warp = first_warp(task.num_warps, warps, i)
        inner = _fork(frame)
        partition.frame = inner
        for slot, value in zip(region[0].arguments, operands):
            inner.put(slot, value)
        running[0] += 1
        partition.history = history
        agent = partition.agent = agents.fork(parent, partition.name)
        forked.append(agent)
        guided = task.machine.guided
        if guided is not None:
            guided.name_task(partition, task)
        partitions.append(partition)
        run = _partition(partition, region[0], running)
        task.machine.scheduler.add(partition.name, run, partition)
    end = yield from run_block(task, step.blocks[0][0])
    values = _yielded(task, end, len(step.outs))
    if running[0]:
        yield Wait(
            lambda: not running[0], lambda: f"{running[0]} partitions to finish", step.op.loc
        )
    for agent in forked:
        parent.known.join(agent.known, None, task.batch.count)
    if task.machine.guided is not None:
        for partition in partitions:
            task.machine.guided.learned(task, partition)
    task.history.ended += [agent.slot for agent in forked]
    _bind(task, step, values)


def first_warp(default: int, warps: Sequence[int], partition: int) -> int:
    """Return the first warp of a partition: partitions follow the default one, the largest first."""
    order = sorted(range(len(warps)), key=lambda i: -warps[i])
    return default + sum(warps[i] for i in order[: order.index(partition)])


def _fork(frame: Frame) -> Frame:
    inner = Frame.__new__(Frame)
    inner.values = list(frame.values)
    inner.homes = list(frame.homes)
    inner.rows = frame.rows
    return inner


def _partition(task: Task, block: CompiledBlock, running: list[int]) -> Turns[None]:
    yield from run_block(task, block)
    running[0] -= 1


CONTROL = {
    "call": call,
    "if": if_op,
    "for": for_op,
    "while": while_op,
    "warp_specialize": warp_specialize,
}
CONTROL.update(dict.fromkeys(TERMINATORS, _leave))
