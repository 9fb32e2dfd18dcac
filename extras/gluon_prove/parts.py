"""The parts of a program that searches watch apart: buffers, barriers, and the code that concerns them.

The barriers of a part order its accesses alone, where that is enough: waits and arrivals at all other barriers are
left out of the code, and so are tasks without a share in it. Each run of the program is then a run of that
code, too, with less order. So what is in order there is so in the program.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Collection, Iterable, Mapping, Optional, Sequence

from gluon_prove.code import Code, Effect, Jump, Spec, Used, View, definitions_of
from gluon_prove.effects import Lowered
from gluon_prove.events import Barrier, Event, Issue
from gluon_sim.memory.shared import SharedView

__all__ = ["Part", "parts_of", "sliced"]

Touched = Mapping[tuple[int, int], Collection[Any]]


@dataclass(frozen=True)
class Part:
    """Buffers and barriers that a search watches by themselves.

    Args:
        buffers: their accesses are followed.
        slots: barriers whose phases are checked to be in order.
        own: the barriers that may order both.
    """

    buffers: frozenset[int]
    slots: frozenset[int]
    own: frozenset[int]


def parts_of(lowered: Lowered, shared: Sequence[int], slots: bool, touched: Touched) -> list[Part]:
    """Return the parts of a program.

    Args:
        shared: the buffers of several tasks.
        slots: whether the order of phases is checked.
        touched: see `Walker`.
    """
    places = lowered.places
    users: dict[Any, set[int]] = {}
    for (task, _), acts in touched.items():
        for act in acts:
            users.setdefault(act, set()).add(task)
    barriers: dict[int, set[int]] = {}  # by buffer
    for slot, (buffer, _) in enumerate(places.slots if slots else ()):
        barriers.setdefault(buffer, set()).add(slot)

    def of(buffers: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(barriers.get(buffer, ()) for buffer in buffers))

    def known_to(tasks: Collection[int]) -> frozenset[int]:
        return of(b for b in barriers if users.get(("at", b), {*tasks}) <= {*tasks})

    parts: list[Part] = []
    rings, left = _barriers_of(lowered, touched), {*barriers}
    for buffer in shared:
        mine = of(rings.get(buffer, ()))
        parts.append(Part(frozenset([buffer]), mine, mine or known_to(users[buffer])))
        left -= rings.get(buffer, set())
    alike: dict[frozenset[int], list[int]] = {}
    for buffer in left:
        alike.setdefault(frozenset(users.get(("at", buffer), ())), []).append(buffer)
    for tasks, group in alike.items():
        parts.append(Part(frozenset(), of(group), known_to(tasks)))
    return parts


def _barriers_of(lowered: Lowered, touched: Touched) -> dict[int, set[int]]:
    """Return by buffer those of the barriers that work which fills it signals, and that its task waits for before.

    A guess at the barriers of a ring: a search of the part shows whether they are enough.
    """
    rings: dict[int, set[int]] = {}
    for task, code in enumerate(lowered.tasks):
        last: set[int] = set()
        for place in range(len(code.steps)):
            acts = touched.get((task, place), ())
            of = [act for act in acts if isinstance(act, tuple)]
            last = {barrier for kind, barrier in of if kind == "wait"} or last
            signals = {barrier for kind, barrier in of if kind == "at"}
            for kind, buffer in of:
                if kind == "fills":
                    rings.setdefault(buffer, set()).update(signals, last)
    return rings


def sliced(
    lowered: Lowered, touched: Touched, watched: Collection[int], alone: Optional[int],
    own: Optional[frozenset[int]],
) -> Lowered:  # fmt: skip
    """Return the program with the code for some buffers and barriers alone.

    Args:
        touched: see `Walker`.
        watched: the buffers.
        alone: the task that is walked alone, without barriers; None for all.
        own: the barriers; None for all.
    """
    kept: set[Any] = {"else", *watched}
    if alone is None:
        places = lowered.places
        kept |= {"barrier"} if own is None else {("at", places.slots[slot][0]) for slot in own}
    slices = _Slices(lowered, touched, kept, frozenset(watched), own)
    out = copy.copy(lowered)
    out.tasks = [
        slices.of(task) if alone in (None, task) else code
        for task, code in enumerate(lowered.tasks)
    ]
    return out


class _Slices:
    """Takes code without the effects of which none is kept, and without those at foreign barriers and buffers.

    Args:
        kept: what an effect may touch.
    """

    def __init__(
        self, lowered: Lowered, touched: Touched, kept: set[Any], watched: frozenset[int],
        own: Optional[frozenset[int]],
    ):  # fmt: skip
        self.lowered, self.touched, self.kept, self.own = lowered, touched, kept, own
        places = lowered.places
        self.buffers = watched | {places.slots[slot][0] for slot in own or ()}
        self.definitions = definitions_of(lowered.tasks)

    def of(self, task: int) -> Code:
        code, kept = self.lowered.tasks[task], self.kept
        acts = [self.touched.get((task, place), ()) for place in range(len(code.steps))]
        involved = [
            one
            for one, step in zip(acts, code.steps)
            if not (kept - {"else"}).isdisjoint(one)
            or isinstance(step, Effect)
            and step.buffer in self.buffers
        ]
        if not involved and task and self.own is not None:  # it allocates no buffer of the part
            return replace(code, steps=[Jump(s.loc, len(code.steps)) for s in code.steps]).without(
                ()
            )
        kept = {
            *kept,
            *(
                ("waits", act[1])
                for one in involved
                for act in one
                if isinstance(act, tuple) and act[0] in ("starts", "waits")
            ),
        }
        if involved or self.own is None:
            kept.add("fence")  # that of a task without a part tells nothing of one
        dropped = [
            place
            for place, step in enumerate(code.steps)
            if isinstance(step, Used) or isinstance(step, Effect) and kept.isdisjoint(acts[place])
        ]
        if self.own is not None:
            steps = [self._only(s) if isinstance(s, Effect) else s for s in code.steps]
            code = replace(code, steps=steps)
        return code.without(dropped)

    def _only(self, step: Effect) -> Effect:
        """Return an effect without its events at other barriers, and with any slot of other buffers."""
        args, known = list(step.args), {}
        for i in step.relevant:
            view = self._view(step.args[i], set())
            if view is not None and self.lowered.places.buffer(view.buffer) not in self.buffers:
                known[i] = view
                args[i] = Spec(value=view)
        run, all, own = step.run, list(step.relevant), self.own
        cache: dict[int, Any] = {}

        def there(operands: tuple[Any, ...]) -> Any:
            left = iter(operands)
            result = run(tuple([known[i] if i in known else next(left) for i in all]))
            if id(result) not in cache:
                events = tuple(one for event in result[0] for one in _of(event, own))
                cache[id(result)] = result, (events, result[1])
            return cache[id(result)][1]

        return replace(step, args=args, relevant=[i for i in all if i not in known], run=there)

    def _view(self, spec: Spec, seen: set[int]) -> Optional[SharedView]:
        """Return a view that an operand may be; None where its buffer is not known."""
        if spec.var is None:
            return spec.value if isinstance(spec.value, SharedView) else None
        seen.add(spec.var)
        views = []
        for step, arg in self.definitions.get(spec.var, ()):
            if arg is not None:
                if arg.var not in seen:
                    views.append(self._view(arg, seen))
            elif isinstance(step, View):
                base = self._view(step.args[0], seen)
                values = [arg.value if isinstance(arg.value, int) else 0 for arg in step.args[1:]]
                views.append(None if base is None else self.lowered.same(step.make(base, *values)))
            else:
                return None
        if not views or any(view is None or view.buffer is not views[0].buffer for view in views):  # type: ignore[union-attr]
            return None
        return views[0]


def _of(event: Event, own: Optional[frozenset[int]]) -> tuple[Event, ...]:
    """Return an event as far as it is at some barriers."""
    if own is None:
        return (event,)
    if isinstance(event, Barrier):
        return (event,) if event.slot in own else ()
    if isinstance(event, Issue):
        return (replace(event, signals=tuple(s for s in event.signals if s.slot in own)),)
    return (event,)
