"""Reports about blocks of a cluster that access each other's shared memory."""

from __future__ import annotations

from gluon_core.features import CLUSTER_ENDS
from gluon_core.layouts.dialect import follows
from gluon_sim.errors import Access, RaceError, related
from gluon_sim.sanitizer.agents import GENERIC, Task
from gluon_sim.sanitizer.blocks import Blocks, BlockShadow, Meeting, ViewByBlocks, copies_of
from gluon_sim.sanitizer.races import access_of, byte_of
from gluon_sim.sanitizer.rows import Parted
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.words import between, threads_barrier

__all__ = ["ended", "meet"]

_VERB = {"read": "read", "write": "write", "update": "atomic update"}


def meet(task: Task, blocks: Blocks, kind: str, view: ViewByBlocks) -> None:
    """Record an access to a view by the blocks of all clusters of a batch.

    Raises:
        RaceError: two of them access the same bytes without a happens-before order.
        Parted: not all programs do the same here, so one after the other has to run.
    """
    buffer = view.buffer
    if buffer.pitch:
        return
    if not task.rows.whole or len(view.base) > 1:
        raise Parted
    if buffer.blocks is None:
        copies = copies_of(view.type.layout, tuple(view.type.shape))
        if copies is None:
            return
        size = view.dtype.itemsize
        buffer.blocks = BlockShadow(blocks, buffer.size, size, copies)
    met = buffer.blocks.touch(task, kind, view)
    if met is not None:
        _report(task, kind, met, byte_of(task, buffer.name, met.byte))


def _report(task: Task, kind: str, met: Meeting, place: str) -> None:
    program = task.batch.program(0)
    now = access_of(task.op, kind, task.agent, task.name, program)
    then = Access(
        met.op.called, span_of(met.op.loc), _VERB[met.kind], program, met.task, GENERIC, None
    )
    own, wide = threads_barrier(task.op), threads_barrier(task.op, cluster=True)
    error = RaceError(
        f"race on {place}: the {now.describe()} by block {met.block} of the cluster, and the "
        f"{then.describe()} by block {met.other}, have no order",
        report="race.blocks",
        accesses=(then, now),
        place=met.byte,
        program=program,
        remedy=f"Put {wide} {between(met.op, task.op)}, or let block {met.other} arrive at a barrier of "
        f"block {met.block} that waits for it: {own} is of one block alone.",
        span=span_of(task.op.loc),
    )
    error.related = related(error.span, then.span)
    raise error


def ended(task: Task, blocks: Blocks) -> None:
    """Record that all blocks have come to the end of the kernel.

    Raises:
        RaceError: one may be gone, with its shared memory, while another still uses that.
    """
    meeting = None if follows(CLUSTER_ENDS) else blocks.ends()
    if meeting is None:
        return
    block, other, op, kind = meeting
    program = task.batch.program(0)
    raise RaceError(
        f"block {block} of the cluster may have ended when block {other} comes to the "
        f"{_VERB[kind]} by `{op.called}` of line {op.loc.line} in its shared memory",
        report="race.blocks",
        accesses=(
            Access(op.called, span_of(op.loc), _VERB[kind], program, task.name, GENERIC, None),
        ),
        program=program,
        remedy=f"End the kernel with {threads_barrier(op, cluster=True)}, which "
        f"{CLUSTER_ENDS.releases} does by itself.",
        span=span_of(op.loc),
    )
