"""The calls that would have ordered two accesses, in the words of the kernel."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from gluon_core.plugin.reference import Remedies
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.observed import View
from gluon_sim.tracing.calls import spelled
from gluon_sim.tracing.ir import PORTABLE, Op
from gluon_sim.tracing.words import between, line_of, variable

__all__ = [
    "arrive_and_wait",
    "barrier_call",
    "barrier_wait",
    "fence",
    "group_wait",
    "signal_and_wait",
    "wait_before_end",
]

_COPIES, _PRODUCTS = PORTABLE["deferred_store"], PORTABLE["deferred_read"]
# For portable ops that the target's own hardware does at once.
_DEFERRED = Remedies(
    waits={
        _COPIES: ("gl.portable.wait({pending})",),
        _PRODUCTS: ("gl.portable.mma_wait({result}, {pending})",),
    },
    commits={_COPIES: ("gl.portable.commit()",)},
    fences={"async": ("gl.portable.fence()",)},
)


def _remedies(task: Task) -> Remedies:
    return task.machine.models.remedies


def _texts(table: str, name: str, task: Task) -> Sequence[str]:
    own: Mapping[str, Sequence[str]] = getattr(_remedies(task), table)
    return own.get(name) or getattr(_DEFERRED, table).get(name, ())


def _barrier(task: Task, op: Op, barrier: Optional[View]) -> str:
    alloc = barrier.buffer.alloc if barrier is not None else None
    return variable(task.machine.program.program, op, alloc) or "bar"


def _group_wait(task: Task, queue: str, op: Op, pending: int, finish: bool = False) -> str:
    texts = _texts("finishes", queue, task) if finish else ()
    result = op.results[0].name if op.results else None
    texts = texts or _texts("waits", queue, task)
    return spelled(texts, op.site, pending=pending, result=result or "acc")


def group_wait(
    task: Task, queue: str, op: Op, before: Op, pending: int, *, commit: bool = False,
    finish: bool = False,
) -> str:  # fmt: skip
    """Return the remedy for a missing wait for the groups of a queue before an op.

    Args:
        op: the op that started the work.
        commit: its group is not closed either.
        finish: it is not enough that the work has read its sources.
    """
    wait = _group_wait(task, queue, op, pending, finish)
    close = spelled(_texts("commits", queue, task), op.site) if commit else ""
    place = between(op, before)
    if not wait:
        first = (
            f"Close the group of `{op.called}` of {line_of(op, before)}, and wait"
            if commit
            else "Wait"
        )
        return f"{first} for it {place}: at most {pending} closed groups of {queue} may be pending there."
    calls = f"`{close}` and `{wait}`" if close else f"`{wait}`"
    groups = "group" if pending == 1 else "groups"
    limit = f": at most {pending} {groups} may be pending there" if pending else ""
    reason = "; it is not enough that its source was read" if finish else ""
    return f"Put {calls} {place}{limit}{reason}."


def barrier_wait(task: Task, op: Op, before: Op, barrier: Optional[View]) -> str:
    """Return the remedy for a missing wait for the barrier that asynchronous work signals."""
    named = _barrier(task, op, barrier)
    wait = spelled(_remedies(task).barrier_waits, op.site, barrier=named)
    signalled = f"the barrier that `{op.called}` of {line_of(op, before)} signals"
    if not wait:
        return f"Wait for {signalled} {between(op, before)}."
    return f"Put `{wait}` {between(op, before)}: that is {signalled}."


def wait_before_end(task: Task, queue: str, op: Op, barrier: Optional[View]) -> str:
    """Return the remedy for a missing wait between asynchronous work and the end of the kernel."""
    if barrier is not None:
        named = _barrier(task, op, barrier)
        wait = spelled(_remedies(task).barrier_waits, op.site, barrier=named)
    else:
        wait = _group_wait(task, queue, op, 0)
    if not wait:
        return "Wait for it before the end."
    return f"Put `{wait}` after line {op.loc.line}, before the end."


def barrier_call(task: Task, op: Op, alloc: Op) -> str:
    """Return the wait for a barrier, in the spelling of the file of an op; "" where none is known."""
    name = alloc.results[0].name if alloc.results else None
    return spelled(_remedies(task).barrier_waits, op.site, barrier=name or "bar")


def signal_and_wait(task: Task, queue: str, op: Op, before: Op) -> str:
    """Return the remedy for work before an op that neither a group nor a barrier tracks."""
    texts = _texts("signals", queue, task)
    signal = spelled(texts, op.site, barrier="bar")
    wait = spelled(_remedies(task).barrier_waits, op.site, barrier="bar")
    if not signal or not wait:
        return (
            f"Let a barrier track `{op.called}` of {line_of(op, before)}, and wait for it before "
            f"{line_of(before, op)}."
        )
    return f"Put `{signal}` and `{wait}` {between(op, before)}."


def fence(task: Task, proxy: str, op: Op, before: Op) -> str:
    """Return the remedy for a missing fence after an access by `op`, before the work that `before` starts."""
    call = spelled(_texts("fences", proxy, task), before.site or op.site)
    if not call:
        return (
            f"A fence between the generic and the {proxy} proxy is missing {between(op, before)}."
        )
    reason = f": `{before.called}` accesses shared memory through the {proxy} proxy"
    return f"Put `{call}` {between(op, before)}{reason}."


def arrive_and_wait(task: Task, earlier: str, op: Op, before: Op) -> str:
    """Return the remedy for a missing barrier between two partitions.

    Args:
        earlier: the partition that executed `op`; `task` executes `before`.
    """
    remedies = _remedies(task)
    arrive = spelled(remedies.barrier_arrives, op.site, barrier="bar")
    wait = spelled(remedies.barrier_waits, before.site, barrier="bar")
    shown = [f" (`{call}`)" if call else "" for call in (arrive, wait)]
    return (
        f"{earlier} should arrive at a barrier after {line_of(op, before)}{shown[0]}, and "
        f"{task.name} should wait for that before {line_of(before, op)}{shown[1]}."
    )
