"""Schedule a loop modulo its interval: steps of one round overlap those of the next on other units.

Warps execute in order; products are issued, and done by the matrix unit in the order of their issue. So a
schedule is an order of the steps of one interval, some of which belong to the round before (stage 1), as in
modulo scheduling (Rau, 1994). All cuts of the loop's body into two stages are tried on a model of the
machine, and the one with the least interval is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Collection, Iterator, Sequence

__all__ = ["Schedule", "Step", "interval_of", "scheduled"]

_ROUNDS = 12  # that the model executes; the first half fills the units
_GAIN = 0.97  # a second stage has to pay for its registers
_ALIKE = 1.09  # of two cuts, the later one holds fewer registers from round to round


@dataclass(frozen=True)
class Step:
    """Hold a step of a loop.

    Attributes:
        unit: "matrix", which works in the background, or "warps". busy: cycles of the unit.
        latency: cycles from then until the result is there.
        needs: (step, rounds ago) of the results that it waits for.
        follows: steps before it in the program that it cannot change places with.
    """

    unit: str
    busy: float
    latency: float = 0.0
    needs: tuple[tuple[int, int], ...] = ()
    follows: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Schedule:
    """Hold the steps of one interval, in their order.

    Attributes:
        order: of the steps. late: those that belong to the round before.
        interval: cycles from one round to the next.
    """

    order: tuple[int, ...]
    late: frozenset[int]
    interval: float


def interval_of(
    steps: Sequence[Step], order: Sequence[int], late: Collection[int], lanes: int
) -> float:
    """Return the cycles of a round where `lanes` groups of warps share the units.

    Args:
        steps: with the cycles of all groups together.
    """
    free = {"matrix": 0.0, "warps": 0.0}
    times = [0.0] * lanes
    done: list[dict[tuple[int, int], float]] = [{} for _ in range(lanes)]
    places = [0] * lanes
    halfway = 0.0
    total = _ROUNDS * len(order)
    while min(places) < total:
        lane = min(range(lanes), key=lambda i: (places[i] >= total, times[i], i))
        round_number, index = divmod(places[lane], len(order))
        step = order[index]
        own = round_number - (step in late)
        places[lane] += 1
        if own >= 0:
            one = steps[step]
            waits = [done[lane].get((s, own - ago), 0.0) for s, ago in one.needs]
            start = max([times[lane], *waits])
            begin = max(start, free[one.unit])
            end = begin + one.busy / lanes
            free[one.unit] = end
            done[lane][step, own] = end + one.latency
            times[lane] = start if one.unit == "matrix" else end
        if places[lane] == total // 2:
            halfway = max(halfway, times[lane])
    return (max(times) - halfway) / (_ROUNDS / 2)


def _cuts(steps: Sequence[Step]) -> Iterator[tuple[tuple[int, ...], frozenset[int]]]:
    """Yield orders of one interval in which each step can have what it needs, the program's first."""
    count = len(steps)
    yield tuple(range(count)), frozenset()
    for cut in range(1, count):
        late = range(cut, count)
        issued = [i for i in range(cut) if steps[i].unit == "matrix"]
        if not issued:
            continue
        ahead = range(issued[-1] + 1)  # they are issued first, and overlap the round before
        if not any(s in late and ago < 2 for i in ahead for s, ago in steps[i].needs):
            rest = _waiting_last(steps, range(len(ahead), cut), late)
            yield (*ahead, *late, *rest), frozenset(late)


def _waiting_last(steps: Sequence[Step], rest: range, late: range) -> list[int]:
    """Return the rest of a round, with the steps last that wait for products of the round before."""
    waiting: set[int] = set()
    for i in rest:
        waits = any(s in late and steps[s].unit == "matrix" for s, _ in steps[i].needs)
        if waits or steps[i].follows & waiting:
            waiting.add(i)
    return sorted(rest, key=lambda i: i in waiting)


def scheduled(
    steps: Sequence[Step], lanes: int, possible: Callable[[frozenset[int]], bool]
) -> Schedule:
    """Return the schedule with the least interval; that of the program where no other is much better.

    Args:
        lanes: groups of warps that share the units. possible: decides about the steps of a late stage.
    """
    best: Schedule | None = None
    for order, late in _cuts(steps):
        if late and not possible(late):
            continue
        interval = interval_of(steps, order, late, lanes)
        if best is None or interval <= best.interval * (_ALIKE if best.late else _GAIN):
            best = Schedule(order, late, interval)
    assert best is not None
    return best
