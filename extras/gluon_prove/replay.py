"""A mistake of the abstract run, found again by the simulator itself: with which arguments, in which schedule."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from time import thread_time
from typing import Any, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_prove.code import Enter
from gluon_prove.effects import Lowered
from gluon_prove.search import Outcome
from gluon_prove.smt import Arithmetic
from gluon_prove.values import Term, TimeIsOver, term
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.explore import Exploration
from gluon_sim.launcher import Launch
from gluon_sim.memory.guided import TimelineEntry, TooLong

__all__ = ["again"]

_REPORTS = ("race.", "deadlock", "barrier.", "leak.")
# In global memory: arrays are as large as in the file, and may meet with other arguments.
_NOT = ("race.programs", "race.global", "race.threads", "race.scope")
_MORE = (0, 1, 2, 3, 4, 6, 9)  # rounds beyond the least that the mistake needs


class _Again(Exploration):
    """Schedules of a launch that is not the file's own: none is kept."""

    condition = ""

    def _keep(
        self, steps: Sequence[tuple[str, int]], program: Optional[int],
        error: Optional[SimulatorError], story: Sequence[TimelineEntry],
    ) -> str:  # fmt: skip
        return f"It happens {self.condition}."


def again(
    launch: Launch, lowered: Lowered, outcome: Outcome, arithmetic: Arithmetic, facts: Any, within: float
) -> tuple[Optional[SimulatorError], str]:  # fmt: skip
    """Return the simulator's report, if any, and its launch.

    Args:
        facts: intervals of terms that do not change, and conditions that hold or do not.
        within: seconds.
    """
    deadline = thread_time() + within
    before = launch.memory.contents()
    tried, most = 0, len(_MORE) + 2
    for changed, conditions in _launches(launch, lowered, arithmetic, facts):
        left = deadline - thread_time()
        if left <= 0:
            break
        try:
            error = _once(launch, changed, conditions, left / (most - tried))
        finally:
            launch.memory.restore(before)
        if error is not None:
            return error, conditions
        tried += 1
    return None, f"{tried} launches were tried"


def _launches(
    launch: Launch, lowered: Lowered, arithmetic: Arithmetic, facts: Any
) -> Iterator[tuple[dict[Term, int], str]]:
    """Yield the arguments that a launch changes, and its description: that of the file first, then those with more and more rounds."""
    yield {}, "in one program, launched as in the file"
    bounds, chosen = facts
    signature = launch.kernel.signature
    known = signature.integers(launch.values)
    usual = {term("arg", i): value for i, value in known.items()}
    usual[term("programs", 0)] = 1
    usual[term("program", 0)] = 0
    tried = set()
    for more in (*_MORE, None):
        try:
            limits = bounds if more is None else _longer(lowered, arithmetic, facts, more)
            arguments = arithmetic.arguments(arithmetic.constraints(limits, chosen), usual)
        except TimeIsOver:
            return
        changed = {
            t: v for t, v in (arguments or {}).items() if t.name == "arg" and v != usual.get(t)
        }
        key = tuple(sorted((t.args, v) for t, v in changed.items()))
        if key in tried or not changed:
            continue
        tried.add(key)
        conditions = ", ".join(f"{signature.leaves[t.args[0]]}={v}" for t, v in changed.items())
        yield changed, f"in one program, launched with {conditions}"


def _longer(lowered: Lowered, arithmetic: Arithmetic, facts: Any, more: int) -> list[Any]:
    """Return intervals in which loops have one round and so many more, or at least these, as far as arguments allow it."""
    limits, chosen = list(facts[0]), facts[1]
    steps: dict[int, int] = {}
    for code in lowered.tasks:
        for step in code.steps:
            if isinstance(step, Enter) and step.loop.root is not None:
                by = step.loop.step.value
                steps[step.loop.root] = lcm(steps.get(step.loop.root, 1), by)
    for root, by in steps.items():
        core = lowered.roots[root]
        for high in ((more + 1) * by, None) if core.fixed else ():
            interval = (core, more * by + 1, high)
            if arithmetic.feasible([*limits, interval], chosen):
                limits.append(interval)
                break
    return limits


def _once(
    launch: Launch, changed: dict[Term, int], conditions: str, within: float
) -> Optional[SimulatorError]:
    """Run one launch of one program under all schedules, or as many as time allows."""
    values = list(launch.values)
    for where, value in changed.items():
        old = values[where.args[0]]
        values[where.args[0]] = np.full(1, value).astype(old.dtype)
    settings = replace(
        launch.settings, schedule="explore", races=True, deadlocks=True, barriers=True, leaks=True,
        bounds=False, uninitialised=False, alignment=False, overflow=False, assertions=False,
        within=within, progress=False, replay=None, timeout=None,
    )  # fmt: skip
    one = _Again(
        lambda guided: launch.machine(guided, (1, 1, 1), settings), launch.memory, values, settings,
        launch.identity,
    )  # fmt: skip
    one.condition = conditions
    try:
        one.run()
    except SimulatorError as error:
        report = error.report or ""
        if report.startswith(_REPORTS) and not report.startswith(_NOT):
            return error
    except (GluonError, TooLong):
        pass  # with such arguments the launch is none, or it is too long
    return None
