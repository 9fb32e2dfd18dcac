"""The requirements of `gl.portable` tiles on every target: their steps in order, for the copies of a
pipeline are distinguished by barriers on one, by groups on another, and are done at once on a third; and
no coordinate below 0, which is padding on one, an illegal instruction on another, and other elements on
a third."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_sim.errors import PipelineError
from gluon_sim.executor.batch import NO_STEP, Ring
from gluon_sim.executor.task import Task
from gluon_sim.memory.shared import SharedView
from gluon_sim.sanitizer.addresses import not_before
from gluon_sim.tracing.arith import entering
from gluon_sim.tracing.source import span_of

__all__ = ["PIPELINE_OPS"]

PIPELINE_OPS: dict[str, Callable[..., Any]] = {}
_op = entering(PIPELINE_OPS)


def _ring(task: Task, view: SharedView) -> Optional[Ring]:
    return task.batch.rings.get(view.buffer) if task.machine.settings.races else None


def _fetched(task: Task) -> np.ndarray:
    """Return how many steps each program of the batch has fetched in this task."""
    return task.batch.fetched.setdefault(task.name, np.zeros(task.batch.count, np.int64))


def _refuse(task: Task, bad: np.ndarray, message: str, remedy: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise PipelineError(
            message,
            report="race.steps",
            program=task.batch.program(int(task.rows.index[row])),
            remedy=remedy,
            span=span_of(task.home().loc),
        )


def _one(values: np.ndarray, bad: np.ndarray) -> int:
    return int(values[int(np.argmax(bad))])


@_op("tiles_begun")
def tiles_begun(task: Task, view: SharedView) -> None:
    rings = task.batch.rings
    ring = rings.setdefault(view.buffer, Ring(view.shape[0], task.batch.count))
    ring.step[:, task.rows.index] = NO_STEP


@_op("tiles_fetched")
def tiles_fetched(
    task: Task, view: SharedView, step: np.ndarray, pred: Optional[np.ndarray]
) -> None:
    ring = _ring(task, view)
    if ring is None:
        return
    rows, stages = task.rows.index, len(ring.step)
    steps = np.broadcast_to(step.reshape(-1), rows.shape).astype(np.int64)
    slots = steps % stages
    held = ring.step[slots, rows]
    live = held != NO_STEP
    twice = live & (held == steps)
    line = task.home().loc.line

    def before(bad: np.ndarray) -> str:
        where, _ = ring.lines.get(_one(slots, bad), (line, ""))
        return f"line {where}"

    if twice.any():
        _refuse(
            task,
            twice,
            f"step {_one(steps, twice)} is fetched a second time, first at {before(twice)}",
            "Fetch each step once: before a loop over `step` the first `stages - 1` of them, and in "
            "each of its rounds step + stages - 1.",
        )
    early = live & ring.copied[slots, rows] & ~ring.awaited[slots, rows]
    if early.any():
        _refuse(
            task,
            early,
            f"step {_one(steps, early)} is fetched into the buffers of step {_one(held, early)} of "
            f"{before(early)}, which nobody has waited for",
            "Wait for each step before the one that takes its buffers is fetched: "
            f"tiles.wait({_one(held, early)}) here, in a loop tiles.wait(step).",
        )
    skipped = live & ((steps - held) % (2 * stages) != stages)
    if skipped.any():
        _refuse(
            task,
            skipped,
            f"step {_one(steps, skipped)} is fetched into the buffers of step {_one(held, skipped)}",
            f"Fetch the steps one after the other; that of these buffers is "
            f"{_one(held, skipped) + stages}.",
        )
    count = _fetched(task)
    count[rows] += 1
    ring.step[slots, rows] = steps
    ring.copied[slots, rows] = (
        True if pred is None else np.broadcast_to(pred.reshape(-1), rows.shape)
    )
    ring.awaited[slots, rows] = False
    ring.since[slots, rows] = count[rows]
    for slot in np.unique(slots):
        ring.lines[int(slot)] = line, task.name
        ring.groups[int(slot)] = {name: q.closed for name, q in task.queues.items()}


@_op("tiles_awaited")
def tiles_awaited(task: Task, view: SharedView, step: np.ndarray, pending: int) -> None:
    ring = _ring(task, view)
    if ring is None:
        return
    rows, stages = task.rows.index, len(ring.step)
    steps = np.broadcast_to(step.reshape(-1), rows.shape).astype(np.int64)
    slots = steps % stages
    held = ring.step[slots, rows]
    over = held > steps
    if over.any():
        _refuse(
            task,
            over,
            f"step {_one(steps, over)} is waited for, and its buffers hold step {_one(held, over)} by now",
            "Wait for each step before the one that takes its buffers is fetched; in a loop over "
            "`step`: tiles.wait(step).",
        )
    missing = held != steps
    if missing.any() and not any(name == task.name for _, name in ring.lines.values()):
        return  # another partition fetches, and may not be there yet
    if missing.any():
        newest = int(ring.step[:, rows[int(np.argmax(missing))]].max())
        _refuse(
            task,
            missing,
            f"step {_one(steps, missing)} is waited for, and was not fetched; "
            + (f"the last one that was is step {newest}" if newest != NO_STEP else "no step was"),
            "Fetch it before: the first `stages - 1` steps before a loop over `step`, and in each of "
            "its rounds step + stages - 1. Wait for the step of the round: tiles.wait(step).",
        )
    empty = ~ring.copied[slots, rows]
    if empty.any():
        _refuse(
            task,
            empty,
            f"step {_one(steps, empty)} is waited for, and was fetched where `pred` is false: nothing "
            "was copied",
            "Wait for the steps alone that there are: the loop goes to where `pred` ends.",
        )
    late = _fetched(task)[rows] - ring.since[slots, rows]
    for position, slot in enumerate(slots) if (late < pending).any() else ():
        _, name = ring.lines[int(slot)]
        if name != task.name:  # who waits is not who fetches: groups are of one task
            late[position] = pending
            continue
        row = rows[position]
        for queue, earlier in ring.groups[int(slot)].items():
            now = task.queues[queue].closed
            closed = now[row if now.size > 1 else 0] - earlier[row if earlier.size > 1 else 0]
            late[position] = max(late[position], closed - 1)  # that of the step itself is one
    short = late < pending
    if short.any():
        least = _one(late, short)
        _refuse(
            task,
            short,
            f"step {_one(steps, short)} is waited for with pending={pending}, and {least} later "
            f"steps were fetched: where copies are counted, this waits for nothing",
            "Wait for the oldest step there is, tiles.wait(step) in a loop over `step`, and fetch "
            f"`stages - 1` steps before it; or give pending={least}.",
        )
    ring.awaited[slots, rows] = True


@_op("tile_placed")
def tile_placed(task: Task, where: Sequence[np.ndarray], pred: Optional[np.ndarray]) -> None:
    not_before(
        task,
        "coordinates",
        where,
        "a tile begins before its tensor: some targets leave out elements outside, others take "
        "other elements or end in an illegal instruction",
        "Begin at 0 or later, and load the elements before it through pointers with a mask.",
        pred,
    )
