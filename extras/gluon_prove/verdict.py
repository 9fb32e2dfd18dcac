"""The verdict on a kernel for every trip count: proved, wrong, or the reason why it is open."""

from __future__ import annotations

from time import thread_time
from typing import Any, Iterable, Optional

from gluon_core.simulation.evidence import Proved
from gluon_prove.effects import Lowered
from gluon_prove.lower import lower
from gluon_prove.replay import again
from gluon_prove.search import Outcome, search
from gluon_prove.smt import Arithmetic
from gluon_prove.values import CannotSay
from gluon_sim.errors import SimulatorError
from gluon_sim.launcher import Launch, Verdict
from gluon_sim.tracing.types import ScalarType

__all__ = ["prove"]

MOST_STATES = 400_000
SHOWN = 12  # steps of a trace
_REPLAY = 1.0, 20.0  # seconds: at least, and enough


def prove(launch: Launch) -> Verdict:
    """Judge the kernel of a launch, with the simulator's report of a counterexample."""
    settings, kernel = launch.settings, launch.kernel
    program = kernel.program.program
    inputs = kernel.signature.inputs
    bits = {i: t.bits for i, t in enumerate(inputs) if isinstance(t, ScalarType)}
    arithmetic = Arithmetic(bits)
    deadline = arithmetic.deadline = thread_time() + settings.within
    name = f"{kernel.entry.name} on {kernel.target}"
    try:
        if kernel.num_ctas > 1:
            raise CannotSay("the blocks of a cluster are not followed", program.kernel.loc)
        lowered = lower(kernel.program, kernel.target, kernel.num_warps, launch.values, arithmetic)
    except CannotSay as reason:
        return _unsaid(name, reason, 0, 0.0), None
    outcome = search(lowered, settings.proxy == "strict", MOST_STATES, deadline, arithmetic)
    if outcome.reason is not None:
        return _unsaid(name, outcome.reason, outcome.states, outcome.seconds), None
    if outcome.mistake is not None:
        return _wrong(name, launch, lowered, outcome, arithmetic)
    try:
        doubtful = outcome.unsure(arithmetic)
        if doubtful is not None:
            raise CannotSay(doubtful)
    except CannotSay as reason:
        return _unsaid(name, reason, outcome.states, outcome.seconds), None
    if lowered.doubts:
        again_ = _replayed(launch, lowered, outcome, arithmetic, ([], []), 0)
        if again_[0] is not None and again_[0].report == "race.steps":
            return _counterexample(name, outcome, again_[1], again_[0]), again_[0]
    return Proved(
        "proved", name, outcome.states, round(outcome.seconds, 2), _proved(lowered, outcome, launch)
    ), None


def _place(loc: Any) -> str:
    if loc is None or not getattr(loc, "line", 0):
        return ""
    return f" (line {loc.line})"


def _lines(lines: Iterable[int]) -> str:
    known = sorted(set(lines))
    return f" (line{'s' if len(known) > 1 else ''} {', '.join(map(str, known))})" if known else ""


def _unsaid(name: str, reason: CannotSay, states: int, seconds: float) -> Proved:
    lines = [f"{reason.reason}{_place(reason.loc)}"]
    if reason.remedy:
        lines.append(f"remedy: {reason.remedy}")
    return Proved("cannot say", name, states, round(seconds, 2), tuple(lines))


def _proved(lowered: Lowered, outcome: Outcome, launch: Launch) -> tuple[str, ...]:
    loops: dict[int, None] = {}
    for code in lowered.tasks:
        for active in code.active:
            for loop in active:
                if loop.root is not None:
                    loops[loop.loc.line] = None
    steps = (
        ", no step of a pipeline out of order" if lowered.pipelines and not lowered.doubts else ""
    )
    lines = [
        f"no race in shared memory, no deadlock, no barrier against its protocol{steps}, in any schedule",
    ]
    if loops:
        places = ", ".join(map(str, sorted(loops)))
        many = f"the loops of lines {places}" if len(loops) > 1 else f"the loop of line {places}"
        lines.append(f"for every trip count of {many}, and for every program of any grid")
    else:
        lines.append("for every program of any grid")
    lines.append(
        "assumed: no integer argument is negative, no counter passes 2**31 - 1, constants and types as launched"
    )
    if lowered.assumed:
        lines.append(f"assumed, too: `gl.assume` of the kernel{_lines(lowered.assumed)}")
    if lowered.ends:
        lines.append(
            f"assumed, too: loops without a count of their rounds end{_lines(lowered.ends)}"
        )
    if lowered.memory:
        lines.append(
            f"assumed, too: nothing writes the memory read{_lines(lowered.memory)} meanwhile"
        )
    if lowered.guessed:
        lines.append(
            f"assumed, too: the start of the count of slots{_lines(lowered.guessed)} is not negative"
        )
    writes = sorted({op.loc.line for op in lowered.stores})
    if writes:
        lines.append(
            f"not looked at: the order of accesses to global memory (it is written at line{'s' if len(writes) > 1 else ''} "
            f"{', '.join(map(str, writes))}), addresses, values"
        )
    else:
        lines.append("not looked at: the order of accesses to global memory, addresses, values")
    if lowered.left:
        lines.append(
            f"a copy that nobody waits for may be under way at the end{_lines(lowered.left)}: "
            "gluon run --check tells of a launch"
        )
    if lowered.doubts:
        (text, line), *_ = lowered.doubts
        place = f" at line {line}" if line else ""
        lines.append(
            "not proved: that a pipeline's steps are in the order that other targets ask for, "
            f"`race.steps`{place}: {text}; gluon run --check looks at the order of a launch"
        )
    return tuple(lines)


def _replayed(
    launch: Launch, lowered: Lowered, outcome: Outcome, arithmetic: Arithmetic, facts: Any,
    enough: float = _REPLAY[1],
) -> tuple[Optional[SimulatorError], str]:  # fmt: skip
    """Return the simulator's findings within so many seconds, or a quarter of all, as far as they are left."""
    enough = max(enough, launch.settings.within / 4)
    within = max(_REPLAY[0], min(enough, arithmetic.deadline - thread_time()))
    arithmetic.deadline = thread_time() + within
    return again(launch, lowered, outcome, arithmetic, facts, within)


def _counterexample(name: str, outcome: Outcome, conditions: str, error: SimulatorError) -> Proved:
    lines = (f"{conditions}: {type(error).__name__}, as the simulator reports it",)
    return Proved("counterexample", name, outcome.states, round(outcome.seconds, 2), lines)


def _wrong(
    name: str, launch: Launch, lowered: Lowered, outcome: Outcome, arithmetic: Arithmetic
) -> Verdict:
    mistake = outcome.mistake
    assert mistake is not None
    error, conditions = _replayed(launch, lowered, outcome, arithmetic, outcome.facts)
    seconds = round(outcome.seconds, 2)
    if error is not None:
        return _counterexample(name, outcome, conditions, error), error
    steps = [f"  {s.task}, line {s.line}: {s.action}" for s in outcome.trace[-SHOWN:]]
    lines = (
        f"{mistake.report}: {mistake.text}{_place(mistake.loc)}, but the simulator does not find it again: {conditions}",
        *(["the last steps there:"] if steps else []), *steps,
    )  # fmt: skip
    return Proved("cannot say", name, outcome.states, seconds, lines), None
