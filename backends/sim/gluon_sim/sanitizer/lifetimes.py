"""Buffers whose memory serves others once they are over, while a copy or a multiplication is not.

For a compiler a buffer is in use from where it is allocated to the last op that names it, or a view of
it; later allocations, and the scratch memory of a reduction, scan or conversion, may have the same bytes. Work that
goes on by itself beyond that last op reads data written there since, or overwrites it.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import GluonError
from gluon_sim.errors import RaceError, related, tolerate
from gluon_sim.sanitizer.agents import Agent, Flight, Task
from gluon_sim.sanitizer.observed import Buffer, View
from gluon_sim.tracing.ir import Op, Region
from gluon_sim.tracing.origins import origins
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.source import span_of

__all__ = ["Lifetimes"]

_LOOPS = frozenset({"for", "while", "warp_specialize"})


class Lifetimes:
    """The live ranges of a program's buffers, by the text.

    Attributes:
        shared: by id of an allocation, those whose memory it may have.
        crossing: ids of reductions, scans and conversions that go through shared memory.
    """

    def __init__(self, program: Program):
        self._places: dict[int, tuple[int, int]] = {}  # by id of an op: its frame, its position
        self._ends: dict[int, int] = {}  # where the regions of an op end
        self._allocs: list[Op] = []
        self._frames = 0
        for function in program.functions.values():
            self._walk(function.body, self._frame())
        users: dict[int, list[Op]] = {id(alloc): [] for alloc in self._allocs}
        known = origins(program) if self._allocs else {}
        self.crossing: set[int] = set()
        for op in program.walk_ops():
            for value in op.operands():
                for origin in known.get(id(value), ()):
                    if isinstance(origin, Op):
                        users[id(origin)].append(op)
            if op.name in _CROSSES and _CROSSES[op.name](op):
                self.crossing.add(id(op))
        self._spans = {id(a): self._span(a, users[id(a)]) for a in self._allocs}
        self.shared: dict[int, set[int]] = {}
        for one in self._allocs:
            mine = {id(o) for o in self._allocs if o is not one and self._apart(one, o)}
            if self._loops_of(one):
                mine.add(id(one))
            if mine:
                self.shared[id(one)] = mine

    def _frame(self) -> int:
        self._frames += 1
        return self._frames

    def _walk(self, region: Region, frame: int) -> None:
        for block in region.blocks:
            for op in block.ops:
                self._places[id(op)] = frame, len(self._places)
                if op.name == "local_alloc":
                    self._allocs.append(op)
                for inner in op.regions:
                    # Partitions run side by side, so their allocations never share memory.
                    concurrent = op.name.startswith("warp_specialize")
                    self._walk(inner, self._frame() if concurrent else frame)
                self._ends[id(op)] = len(self._places)

    def _loops_of(self, op: Op) -> list[Op]:
        """Return the loops around an op, the innermost first."""
        loops = []
        owner = op.block.region.owner if op.block is not None and op.block.region else None
        while isinstance(owner, Op):
            if owner.name in _LOOPS - {"warp_specialize"}:
                loops.append(owner)
            region = owner.block.region if owner.block is not None else None
            owner = region.owner if region is not None else None
        return loops

    def _span(self, alloc: Op, users: list[Op]) -> tuple[int, int, float]:
        """(frame, where it begins, where it ends) of a buffer."""
        frame, first = self._places[id(alloc)]
        last: float = first
        home = alloc.block.region if alloc.block is not None else None
        for op in users:
            position, outer = float(self._places[id(op)][1]), op
            while outer.block is not None and outer.block.region is not home:
                owner = outer.block.region.owner if outer.block.region is not None else None
                if not isinstance(owner, Op):
                    break
                outer = owner
                if outer.name in _LOOPS:  # named in a loop, it is in use through all of its rounds
                    position = float(self._ends[id(outer)])
            else:
                last = max(last, position)
                continue
            if self._places[id(op)][0] == frame:
                last = float("inf")  # it comes out of an `if`: nobody knows how far
        return frame, first, last

    def _apart(self, one: Op, other: Op) -> bool:
        mine, theirs = self._spans[id(one)], self._spans[id(other)]
        return mine[0] == theirs[0] and (mine[1] > theirs[2] or theirs[1] > mine[2])

    def touched(self, task: Task, view: View) -> None:
        """Somebody accesses a buffer: is all work over that goes on in memory that it may have?"""
        alloc = view.buffer.alloc
        others = self.shared.get(id(alloc))
        if not others:
            return
        for flight in self._under_way(task):
            for buffer in flight.buffers:
                if id(buffer.alloc) in others and buffer is not view.buffer:
                    if buffer.alloc is not alloc or view.buffer.earlier is buffer:
                        self._report(task, flight, buffer, view.buffer.name)

    def crosses(self, task: Task) -> None:
        """Check that all work on the scratch memory of an op is over."""
        for flight in self._under_way(task):
            for buffer in flight.buffers:
                frame, first, last = self._spans.get(id(buffer.alloc), (0, 0, 0.0))
                for op in (task.op, *reversed(task.calls)):
                    home, position = self._places[id(op)]
                    if home == frame and not first <= position <= last:
                        kind = _NAMES[task.op.name]
                        subject = f"the memory that the {kind} of line {task.home().loc.line} needs"
                        self._report(task, flight, buffer, subject)
                        return

    def _under_way(self, task: Task) -> list[Flight]:
        """Work that the task does not know to be over, and knows to have been issued."""
        agent = task.agent
        if agent is None:
            return []
        return [
            flight
            for queue in task.batch.queues
            for flight in queue.flights
            if flight.buffers and flight.agent is not agent and not _over(flight, agent, task)
        ]

    def _report(self, task: Task, flight: Flight, buffer: Buffer, name: str) -> None:
        op = task.home()
        assert buffer.alloc is not None
        error = RaceError(
            f"{name} may lie where {buffer.name} was, which nothing names any more, while "
            f"`{flight.op.called}` of line {flight.op.loc.line} may still use that",
            report="race.lifetime",
            program=task.batch.program(int(task.rows.index[0])),
            remedy=f"{flight.remedy(task)} Or keep {buffer.name} until it is waited for: name it in the "
            "wait (deps=...), or call its _keep_alive() behind the wait.",
            span=span_of(op.loc),
        )
        error.related = related(error.span, span_of(flight.op.loc))
        tolerate(error, task.machine.settings.tolerated, task.memory.warned)


def _over(flight: Flight, agent: Agent, task: Task) -> bool:
    rows = np.intersect1d(flight.rows.index, task.rows.index)
    if not rows.size:
        return True
    mine, known = flight.agent, agent.known.knows
    if flight.landed and known(mine.slot, mine.clock, rows).all():
        return True
    return not known(flight.issuer.slot, flight.issued, rows).all()


def _crosses_warps(op: Op) -> bool:
    """Return whether a reduction or scan takes elements of several warps together."""
    value: Any = next(op.operands())
    axis: Optional[int] = next((a for a in op.args if type(a) is int), None)
    bases = _warps(value)
    return axis is not None and any(basis[axis] for basis in bases or ())


def _moves_between_warps(op: Op) -> bool:
    """Return whether a conversion gives warps elements of other warps."""
    bases = [_warps(value) for value in (next(op.operands()), op.results[0])]
    return None not in bases and bases[0] != bases[1]


def _warps(value: Any) -> Optional[list[Any]]:
    """Return the steps along each dimension by the bits of a warp's number; None where the layout has none."""
    try:
        return [list(b) for b in value.type.layout.to_linear(value.type.dims).bases["warp"]]
    except (AttributeError, GluonError, KeyError):
        return None


_CROSSES: dict[str, Callable[[Op], bool]] = {
    "reduce": _crosses_warps,
    "scan": _crosses_warps,
    "convert_layout": _moves_between_warps,
}
_NAMES = {"reduce": "reduction", "scan": "scan", "convert_layout": "conversion"}
