"""Barriers that are made and never used: compiled code may give their bytes to a buffer made later."""

from __future__ import annotations

from typing import Iterator

from gluon_core.features import MADE_BARRIERS_FENCED
from gluon_core.layouts.dialect import follows
from gluon_sim.errors import BarrierError
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.origins import origins, users_of
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.words import buffer_name

__all__ = ["spare_barriers"]


def spare_barriers(program: Program) -> list[BarrierError]:
    """Return a report of each barrier that is only initialised, and whose bytes a copy may write
    meanwhile.

    For the compiler it is over with its initialization, so a later allocation may share its bytes. One
    that does not take the initialization for a write puts no fence between it and a copy engine's.
    """
    ops = list(program.walk_ops())
    if follows(MADE_BARRIERS_FENCED) or not any(op.name.startswith("async_tma_") for op in ops):
        return []
    place = {id(op): i for i, op in enumerate(ops)}
    reports = []
    for alloc in ops:
        users = users_of(program, alloc) if alloc.name == "local_alloc" else []
        if not users or not all(op.name.endswith("barrier_init") for op in users):
            continue
        if any(alloc in _captured(program, op) for op in ops if op.name == "warp_specialize"):
            continue
        init = max(users, key=lambda op: place[id(op)])
        copies = [
            copy
            for other in ops[place[id(init)] :]
            if other.name == "local_alloc"
            for copy in users_of(program, other)
            if copy.name.startswith("async_tma_") and copy.name.endswith(("to_local", "_gather"))
        ]
        if copies:
            reports.append(_report(alloc, init, copies[0]))
    return reports


def _captured(program: Program, op: Op) -> Iterator[object]:
    sources = origins(program)
    for value in op.operands():
        yield from sources.get(id(value.resolve()), ())


def _report(alloc: Op, init: Op, copy: Op) -> BarrierError:
    return BarrierError(
        f"the barrier {buffer_name(alloc)} is initialised and never used, so compiled code may have it "
        f"where the copy of line {copy.loc.line} goes, with no fence between",
        report="barrier.unused",
        remedy="Leave it out, or invalidate it when the copies have landed. The fence is there with "
        f"{MADE_BARRIERS_FENCED.releases}.",
        span=span_of(init.loc),
    )
