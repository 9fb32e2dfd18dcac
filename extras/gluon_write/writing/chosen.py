"""Choose the layouts of one form of a kernel, and of the forms that compute its vectors again."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Collection, Optional

import numpy as np

from gluon_write.rewrites.held import held
from gluon_write.rewrites.operand_buffers import with_operand_buffers
from gluon_write.rewrites.overlapped import overlapped
from gluon_write.rewrites.recompute import recomputing_texts
from gluon_write.solver.graph import build
from gluon_write.solver.refusals import of_conflict
from gluon_write.solver.solve import Solution, solve
from gluon_write.solver.unknowns import Graph
from gluon_write.text.form import changed_copy
from gluon_write.tracing.budget import exhausted
from gluon_write.tracing.sketch import Place, Sketch
from gluon_write.tracing.tracer import Tracer
from gluon_write.writing.edits import edits_of

__all__ = ["GROUP", "Chosen", "as_written", "improved", "solved"]

GROUP = 4  # warps that multiply, or read tensor memory, together
_MOST = 3  # times that index vectors are moved to their uses


@dataclass
class Chosen:
    """Hold a form of a kernel, its trace, and the layouts that were chosen for it.

    Attributes:
        loads: places of loaded tiles that are converted.
        again: the new texts of forms that compute vectors again, with what was chosen for each.
    """

    fn: Any
    drawn: Sketch
    graph: Graph
    solution: Solution
    loads: Collection[Place] = ()
    again: list[tuple[dict[int, str], Chosen]] = field(default_factory=list)


def solved(fn: Any, drawn: Sketch, traced: Tracer) -> Chosen:
    """Return the unknown layouts of a traced kernel, and the best choice.

    Raises:
        LayoutError: two ops demand different layouts of one value.
    """
    group = traced.warps if traced.has("nvidia.wgmma") and traced.warps >= GROUP else 0
    kept = partial(held, room=traced.room, group=group, warps=traced.warps)
    return as_written(*traced.after(fn, drawn, kept, with_operand_buffers, overlapped), traced)


def as_written(fn: Any, drawn: Sketch, traced: Tracer) -> Chosen:
    """Return the unknown layouts of a traced kernel as it is, and the best choice.

    Raises:
        LayoutError: two ops demand different layouts of one value.
    """
    read = partial(build, drawn, traced.target.warp_size, traced.warps)
    graph = read()
    several = any(one.conflict is not None for one in graph.unknowns)
    if several:  # products of different depths share an accumulator: each gets it in its own layout
        graph = read(apart=True)
    for one in graph.unknowns:
        if one.conflict is not None:
            raise of_conflict(fn, one)
    chosen = Chosen(fn, drawn, graph, solve(graph))
    loads = graph.unit_loads()
    if loads and not exhausted():
        graph = read(several, loads)
        other = Chosen(fn, drawn, graph, solve(graph), loads)
        chosen = min(chosen, other, key=lambda one: one.solution.price)
    return chosen


def improved(chosen: Chosen, traced: Tracer) -> Chosen:
    """Return layouts with fewer conversions, if index vectors are computed again where they are used."""
    other: Optional[Chosen] = chosen
    for _ in range(_MOST):
        assert other is not None
        if exhausted():
            break
        hopeful = solve(other.graph, hopeful=True)
        other = _again(other, hopeful, traced)
        if other is None or not np.isfinite(hopeful.price):
            break
        if other.solution.price < chosen.solution.price:
            chosen = other
    for _ in range(_MOST):
        if exhausted():
            break
        other = _again(chosen, chosen.solution, traced)
        if other is None or not other.solution.price < chosen.solution.price:
            break
        chosen = other
    return chosen


def _again(chosen: Chosen, solution: Solution, traced: Tracer) -> Optional[Chosen]:
    """Return layouts of a kernel that computes again the vectors which a solution converts; None of none."""
    edits = edits_of(chosen.graph, solution)
    places = [p for one in edits.all() for p in one.conversions if p not in chosen.loads]
    texts = recomputing_texts(chosen.drawn, places, traced.threads)
    if texts and texts not in [known for known, _ in chosen.again]:
        other = changed_copy(chosen.fn, chosen.drawn.jits, texts, {})
        chosen.again.append((texts, solved(other, traced(other), traced)))
    return next((other for known, other in chosen.again if known == texts), None)
