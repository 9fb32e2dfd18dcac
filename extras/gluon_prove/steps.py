"""The order of steps that `gl.portable.pipeline` asks for on every target, for all trip counts.

Where one task fetches the steps of a ring one after the other and waits for them itself, the last step and the outcomes of the steps before it, as many as there are slots, determine the content of its slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, NamedTuple, Optional

from gluon_prove.code import Instruction, Spec
from gluon_prove.counting import Counting
from gluon_prove.state import State
from gluon_prove.values import Number, Term
from gluon_sim.tracing.ir import Location

__all__ = ["Awaited", "Fetched", "Ring", "Steps"]

_MOST = 64  # later steps that are counted


class Fetch(NamedTuple):
    """The outcome of a step: whether it was copied and waited for, and how many were fetched since."""

    copied: bool
    awaited: bool
    since: int


@dataclass(eq=False)
class Ring:
    """A pipeline's, by the variables that the step fetched last and the last fetches are in."""

    stages: int
    last: int
    fetches: int


@dataclass
class Fetched(Instruction):
    """A step is fetched into a ring.

    Args:
        rings: all of the task.
    """

    ring: Ring
    step: Spec
    pred: Spec
    rings: list[Ring] = field(default_factory=list)

    def uses(self) -> Iterator[int]:
        yield from (spec.var for spec in (self.step, self.pred) if spec.var is not None)
        yield self.ring.last
        yield from (ring.fetches for ring in self.rings)

    def defines(self) -> Iterator[int]:
        yield self.ring.last
        yield from (ring.fetches for ring in self.rings)


@dataclass
class Awaited(Instruction):
    """A step is waited for, when so many later ones were fetched."""

    ring: Ring
    step: Spec
    pending: int

    def uses(self) -> Iterator[int]:
        if self.step.var is not None:
            yield self.step.var
        yield from (self.ring.last, self.ring.fetches)

    def defines(self) -> Iterator[int]:
        yield self.ring.fetches


class Steps(Counting):
    """The part of a walker that knows of the steps of pipelines."""

    def _fetched(self, state: State, task: int, step: Fetched) -> None:
        env, ring = state.tasks[task].env, step.ring
        if self.lowered.doubts:
            return
        number, last = self._value(env, step.step), env.get(ring.last)
        fetches: tuple[Fetch, ...] = env.get(ring.fetches) or ()
        if fetches and self._apart(state, task, number, last) != 1:
            return self._doubt(
                "it is unknown whether steps are fetched one after the other", step.loc
            )
        if len(fetches) == ring.stages:
            if fetches[0].copied and not fetches[0].awaited:
                return self._doubt("a step may take the buffers of one not waited for", step.loc)
            fetches = fetches[1:]
        copied = self._known(state, task, self._value(env, step.pred))
        if copied is None:
            return self._doubt("it is unknown which steps are copied", step.loc)
        env[ring.last] = number
        env[ring.fetches] = fetches
        for one in step.rings:
            env[one.fetches] = tuple(
                Fetch(f.copied, f.awaited, min(f.since + 1, _MOST))
                for f in env.get(one.fetches) or ()
            )
        env[ring.fetches] = (*env[ring.fetches], Fetch(bool(copied), False, 0))
        return None

    def _awaited(self, state: State, task: int, step: Awaited) -> None:
        env, ring = state.tasks[task].env, step.ring
        if self.lowered.doubts:
            return
        fetches: tuple[Fetch, ...] = env.get(ring.fetches) or ()
        lag = self._apart(state, task, env.get(ring.last), self._value(env, step.step))
        if lag is None or not 0 <= lag < len(fetches):
            return self._doubt("a step may be waited for that no slot holds", step.loc)
        index = len(fetches) - 1 - lag
        if not fetches[index].copied:
            return self._doubt("a step may be waited for that was not copied", step.loc)
        if fetches[index].since < step.pending:
            return self._doubt("fewer later steps may be fetched than a wait lets pend", step.loc)
        seen = Fetch(True, True, fetches[index].since)
        env[ring.fetches] = (*fetches[:index], seen, *fetches[index + 1 :])
        return None

    def _doubt(self, text: str, loc: Location) -> None:
        self.lowered.doubts[text, loc.line] = None

    def _apart(self, state: State, task: int, one: Any, other: Any) -> Optional[int]:
        """Return the difference of two numbers, None where it may be another one."""
        if not isinstance(one, (int, Number)) or not isinstance(other, (int, Number)):
            return None
        values, changes = [], []
        for number in (one, other):
            plain = number.value if isinstance(number, Number) else number
            values.append(plain)
            changes.append(dict(number.changes) if isinstance(number, Number) else {})
        for root in {*changes[0], *changes[1]}:
            alike = changes[0].get(root, 0) == changes[1].get(root, 0)
            if not alike and self._many(state, task, root):
                return None
        return values[0] - values[1]

    def _known(self, state: State, task: int, value: Any) -> Optional[int]:
        """Return whether a condition holds; None where that is unknown."""
        if isinstance(value, int):
            return value & 1
        if not isinstance(value, Term):
            return None
        if value.name.startswith("icmp"):
            return self._compared(state, task, value.name, *value.args)
        return state.chosen.get(value)
