"""Tasks at work: functions, blocks and combine regions, one step after the other."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.compile import CompiledBlock, CompiledFunction, Step
from gluon_sim.executor.frame import Frame, merge
from gluon_sim.executor.task import Task
from gluon_sim.memory.turns import Turns
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.sanitizer.threads import passive
from gluon_sim.tracing.ir import TERMINATORS
from gluon_sim.tracing.source import in_library, span_of

__all__ = ["run_block", "run_function", "run_pure"]


def run_function(
    task: Task, function: CompiledFunction, args: Sequence[Any], rows: Rows
) -> Turns[list[Any]]:
    """Run a function; its results are the generator's value."""
    outer = task.frame
    frame = Frame(function, rows)
    task.frame = frame
    try:
        entry = function.blocks[0]
        if len(function.blocks) == 1:
            for slot, arg in zip(entry.arguments, args):
                frame.put(slot, arg)
            step = yield from run_block(task, entry)
            assert step is not None
            return [frame.resolve(a) for a in step.plan[0]]
        return (yield from _run_graph(task, function, frame, args))
    finally:
        task.frame = outer


def _run_graph(
    task: Task, function: CompiledFunction, frame: Frame, args: Sequence[Any]
) -> Turns[list[Any]]:
    """Blocks joined by branches, which only ever lead forward: run them in that order."""
    rows = frame.rows
    arrivals: dict[int, list[tuple[np.ndarray, list[Any]]]] = {
        0: [(np.arange(rows.count), list(args))]
    }
    returns: list[tuple[np.ndarray, list[Any]]] = []
    for order, block in enumerate(function.blocks):
        incoming = arrivals.pop(order, None)
        if not incoming:
            continue
        positions = np.sort(np.concatenate([p for p, _ in incoming]))
        if len(positions) == rows.count:
            frame.rows = rows
        else:
            frame.rows = rows.pick(positions)
        for i, slot in enumerate(block.arguments):
            parts = [(np.searchsorted(positions, p), a[i]) for p, a in incoming]
            frame.put(slot, merge(parts, len(positions)))
        step = yield from run_block(task, block)
        assert step is not None
        name = step.op.name
        if name == "ret":
            returns.append((positions, [frame.resolve(a) for a in step.plan[0]]))
            continue
        if name == "branch":
            values = [frame.resolve(a) for a in step.plan[1]]
            arrivals.setdefault(step.plan[0].order, []).append((positions, values))
            continue
        condition = np.broadcast_to(frame.resolve(step.plan[0]), len(positions))
        for target, live in ((step.plan[1], condition), (step.plan[2], ~condition)):
            if live.any():
                arrivals.setdefault(target.order, []).append((positions[live], []))
    frame.rows = rows
    width = len(returns[0][1])
    return [merge([(p, v[i]) for p, v in returns], rows.count) for i in range(width)]


def run_block(task: Task, block: CompiledBlock) -> Turns[Optional[Step]]:
    """Run a block; its terminator's step is the generator's value."""
    frame = task.frame
    step: Optional[Step] = None
    hurried = task.machine.hurried
    tracking = task.machine.tracking
    waited = tracking.waited if tracking is not None and tracking.waits else None
    blocks, lifetimes = task.batch.blocks, task.machine.lifetimes
    try:
        for step in block.steps:
            task.op = step.op
            if hurried and not step.simple:
                yield from task.machine.interrupt(task)
            if lifetimes is not None and id(step.op) in lifetimes.crossing:
                lifetimes.crosses(task)
            if step.simple:
                value = step.run(*[frame.get(slot) for slot in step.plan])
                frame.put(step.outs[0], value)
            elif step.control:
                yield from step.run(task, step)
                if step.op.name in TERMINATORS:
                    return step
            else:
                named = {k: frame.resolve(v) for k, v in step.named.items()}
                args = task.given = [frame.resolve(a) for a in step.plan]
                value = step.run(task, *args, **named)
                if hasattr(value, "send"):
                    value = yield from value
                outs = step.outs
                if len(outs) == 1:
                    frame.put(outs[0], value[0] if isinstance(value, (tuple, list)) else value)
                elif outs:
                    for slot, item in zip(outs, value):
                        frame.put(slot, item)
            if waited is not None and not step.simple and not passive(step.op):
                waited(task)
            if blocks is not None and not step.simple:
                blocks.after(step.op)
            for slot in step.kills:
                frame.values[slot] = None
    except GluonError as error:
        # A mistake inside a library function is shown where the kernel calls it.
        if step is not None and (error.span is None or in_library(error.span.file)):
            error.span = span_of(step.op.loc) or error.span
        raise
    except KeyboardInterrupt as interrupt:
        span = getattr(interrupt, "span", None)
        if step is not None and (span is None or in_library(span.file)):
            interrupt.span = span_of(step.op.loc)  # type: ignore[attr-defined]  # for `Machine`
        raise
    except Exception as error:
        assert step is not None
        if isinstance(error, MemoryError):
            raise SimulatorError(
                f"there is not enough memory on this machine for `{step.op.name}`",
                remedy="Use fewer programs or smaller tiles.",
                span=span_of(step.op.loc),
            ) from error
        raise SimulatorError(
            f"the simulator failed in `{step.op.name}`: {type(error).__name__}: {error}",
            span=span_of(step.op.loc),
        ) from error
    return None


def run_pure(task: Task, function: CompiledBlock, args: Sequence[Any], count: int) -> list[Any]:
    """Run a combine region on `count` elements at once; it touches nothing outside itself."""
    frame, op = task.frame, task.op
    size = len(frame.values)
    inner = Frame.__new__(Frame)
    inner.rows = Rows(np.arange(count), whole=True)
    inner.values = list(frame.values)
    inner.homes = [frame.rows] * size
    for slot, arg in zip(function.arguments, args):
        inner.values[slot] = arg
        inner.homes[slot] = inner.rows
    task.frame = inner
    try:
        run = run_block(task, function)
        while True:
            try:
                next(run)
            except StopIteration as stop:
                step = stop.value
                break
        assert step is not None
        return [inner.resolve(a) for a in step.plan[0]]
    finally:
        task.frame, task.op = frame, op
