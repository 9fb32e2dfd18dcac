"""Decide a litmus test by all executions that the axioms allow."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from time import monotonic
from typing import Any, Iterator, Mapping, Optional

from gluon_emu.litmus.axioms import Candidate, Combination
from gluon_emu.litmus.form import Condition, Test
from gluon_emu.litmus.relations import Relation, members
from gluon_emu.litmus.threads import MOST_STEPS, Run, runs

__all__ = ["Limits", "Outcome", "decide"]


@dataclass(frozen=True)
class Limits:
    """Bounds of the search.

    Args:
        unroll: how often a thread may branch back.
        most: candidate executions.
        within: seconds.
    """

    unroll: int = 2
    most: int = 500_000
    within: float = 60.0


@dataclass
class Outcome:
    """The verdict on a test.

    Attributes:
        candidates: that the axioms judged, and `executions` those that they allow.
        states: each final state -> in how many executions it is reached.
        positive: the executions in which the condition holds.
        cut: loops were followed up to the bound only.
        stuck: combinations of runs in which a barrier waits for good.
        race: two accesses in a data race, as text.
        witness: an execution that decides: lines of text.
        undecided: the reason why there is no verdict.
    """

    test: Test
    candidates: int = 0
    executions: int = 0
    positive: int = 0
    states: dict[str, int] = field(default_factory=dict)
    cut: bool = False
    stuck: int = 0
    race: Optional[tuple[str, str]] = None
    witness: tuple[str, ...] = ()
    undecided: Optional[str] = None

    @property
    def holds(self) -> Optional[bool]:
        """Return whether the final condition holds; None where that is not known."""
        exists, all_ = self.positive > 0, self.positive == self.executions
        if self.test.quantifier == "exists" and exists:
            return True
        if (
            self.test.quantifier == "~exists"
            and exists
            or self.test.quantifier == "forall"
            and not all_
        ):
            return False
        if self.undecided or not self.executions:
            return None
        return self.test.quantifier != "exists"


def decide(test: Test, limits: Limits = Limits()) -> Outcome:
    """Return the verdict on a test.

    Raises:
        LitmusError: a register that is no address is used as one.
    """
    outcome = Outcome(test)
    deadline = monotonic() + limits.within
    threads = _all_runs(test, limits.unroll)
    outcome.cut = any(run.cut for own in threads for run in own)
    whole = [[run for run in own if not run.cut] for own in threads]
    for combined in product(*whole):
        combination = Combination(test, combined)
        sources = combination.sources()
        if sources is None:
            continue
        if combination.stuck:
            outcome.stuck += 1
            continue
        for candidate in _candidates(combination, sources):
            outcome.candidates += 1
            if outcome.candidates > limits.most or monotonic() > deadline:
                reason = (
                    f"{limits.most} candidates"
                    if outcome.candidates > limits.most
                    else f"{limits.within:g} s"
                )
                outcome.undecided = f"the search ended after {reason}"
                return outcome
            if candidate is not None:
                _judge(outcome, candidate)
    if not outcome.executions:
        outcome.undecided = _nothing(outcome, whole)
    return outcome


def _nothing(outcome: Outcome, whole: list[list[Run]]) -> str:
    if outcome.stuck:
        return "no execution ends: a barrier waits for good"
    if not all(whole):
        return f"no execution ends within the bound on loops, and {MOST_STEPS} instructions of a thread"
    return "no execution meets the filter" if outcome.test.kept_by else "no execution is consistent"


def _all_runs(test: Test, unroll: int) -> list[list[Run]]:
    """Return the runs of each thread, with every value that a chain of writes can bring about."""
    values: dict[str, set[Any]] = {location: {value} for location, value in test.initial.items()}
    rounds = 0
    while True:
        threads = [list(runs(test, index, values, unroll)) for index in range(len(test.threads))]
        longest = sum(
            max((sum(e.write is not None for e in run.events) for run in own), default=0)
            for own in threads
        )
        before = sum(map(len, values.values()))
        for own in threads:
            for run in own:
                for event in run.events:
                    if event.write is not None:
                        values[event.location].add(event.write)
        rounds += 1
        if sum(map(len, values.values())) == before or rounds > longest:
            return threads


def _candidates(
    combination: Combination, sources: list[list[int]]
) -> Iterator[Optional[Candidate]]:
    """Yield the candidates, None for one that contradicts an axiom before coherence matters."""
    orders = list(combination.fence_orders())
    for chosen in product(*sources):
        source = dict(zip(combination.reads, chosen))
        if combination.out_of_thin_air(source):
            yield None
            continue
        for fences in orders:
            candidate = Candidate(combination, source, fences)
            yield candidate if candidate.consistent else None


def _judge(outcome: Outcome, candidate: Candidate) -> None:
    test = outcome.test
    for coherence in candidate.coherences():
        for state in _states(test, candidate, coherence):
            if test.kept_by is not None and not test.kept_by.holds(state):
                continue
            outcome.executions += 1
            holds = test.condition.holds(state)
            outcome.positive += holds
            text = "; ".join(f"{key} = {value}" for key, value in state.items())
            outcome.states[text] = outcome.states.get(text, 0) + 1
            if outcome.race is None:
                pair = next(candidate.races(), None)
                if pair is not None:
                    outcome.race = (_named(candidate, pair[0]), _named(candidate, pair[1]))
            if not outcome.witness and holds is (test.quantifier != "forall"):
                outcome.witness = tuple(_lines(candidate, coherence, state))


def _states(test: Test, candidate: Candidate, coherence: Relation) -> Iterator[dict[str, Any]]:
    """Yield the final states: where writes race, each of the last ones."""
    names = list(
        dict.fromkeys(
            [*test.condition.registers, *(test.kept_by.registers if test.kept_by else ())]
        )
    )
    locations = _both(test.condition, test.kept_by)
    threads = {thread.name: run for thread, run in zip(test.threads, candidate.on.runs)}
    state = {
        f"{thread}:{register}": threads[thread].registers.get(register, 0)
        for thread, register in names
    }
    last = [
        {candidate.on.events[w].write for w in candidate.on.writes[location] if not coherence[w]}
        for location in locations
    ]
    for values in product(*map(sorted, last)):
        yield {**state, **dict(zip(locations, values))}


def _both(condition: Condition, kept_by: Optional[Condition]) -> list[str]:
    return list(dict.fromkeys([*condition.locations, *(kept_by.locations if kept_by else ())]))


def _named(candidate: Candidate, number: int) -> str:
    event = candidate.on.events[number]
    if event.thread < 0:
        return f"the initial value of {event.location}"
    return f"{candidate.on.test.threads[event.thread].name}: {' '.join(event.text.split())}"


def _lines(candidate: Candidate, coherence: Relation, state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a witness: where each read gets its value, and the order of writes."""
    yield "final state: " + "; ".join(f"{key} = {value}" for key, value in state.items())
    for read, write in candidate.source.items():
        value = candidate.on.events[read].read
        yield f"{_named(candidate, read)}  reads {value} of {_named(candidate, write)}"
    first = candidate.on.initial
    for one in range(first, candidate.on.size):
        for other in members(coherence[one]):
            yield f"{_named(candidate, one)}  is before {_named(candidate, other)} in coherence order"
