"""Ratios of the times of kernels, with intervals that say how sure they are.

Graphs of all kernels are replayed in rounds, in random order. A batch of rounds is queued as a whole, so that the
device never waits for the host: clocks stay up, no event measures a launch on the host, and each kernel finds the
caches as another one leaves them. Each round has a ratio; the mean of the middle half of the ratios is the result,
and its interval comes from drawing the rounds again and again (bootstrap).
"""

from __future__ import annotations

import math
import random
from typing import Any, Callable, NamedTuple, Sequence

__all__ = ["Interval", "Rounds", "interval_of", "raced", "ratio_of"]

Runs = dict[str, Callable[[], Any]]
Rounds = dict[str, list[float]]
REPLAY = 6e-4  # seconds that a graph takes at least, in which the resolution of events is 0.1 %
TURNS = 10  # launches of a graph are a multiple, where they take turns on so many operands
BATCH = 16  # rounds that are queued at once
DRAWS = 1000


class Interval(NamedTuple):
    """A ratio and the ends of its interval of 95 %."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def verdict(self) -> str:
        """Name the side of 1 that the interval is on."""
        if self.high < 1:
            return "slower"
        return "faster" if self.low > 1 else "no difference shown"


def middle(ratios: Any) -> Any:
    """Return the mean of the middle half of each row."""
    count = ratios.shape[-1]
    ordered = ratios.sort(-1).values
    return ordered[..., count // 4 : count - count // 4].mean(-1)


def interval_of(ratios: Sequence[float], seed: int = 0) -> Interval:
    """Return the interval of the mean of the middle half of ratios of rounds."""
    import torch

    logs = torch.tensor([math.log(ratio) for ratio in ratios], dtype=torch.float64)
    generator = torch.Generator("cpu").manual_seed(seed)
    size = (DRAWS, len(logs))
    drawn = torch.randint(len(logs), size, generator=generator, device="cpu")
    means = middle(logs[drawn]).sort().values
    edge = DRAWS // 40
    ends = means[edge].item(), means[DRAWS - 1 - edge].item()
    return Interval(*(math.exp(value) for value in (middle(logs).item(), *ends)))


def ratio_of(rounds: Rounds, over: str, under: str, seed: int = 0) -> Interval:
    """Return how many times as long one kernel takes as another."""
    return interval_of([a / b for a, b in zip(rounds[over], rounds[under])], seed)


def captured(run: Callable[[], Any], launches: int) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()
    return graph


def queued(graphs: dict[str, tuple[Any, int]], rounds: int, order: random.Random) -> Rounds:
    """Queue so many rounds, wait for them, and return seconds of a launch."""
    import torch

    names = list(graphs)
    marks: list[tuple[str, Any, Any]] = []
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name][0].replay()
            end.record()
            marks.append((name, start, end))
    torch.cuda.synchronize()
    times: Rounds = {name: [] for name in graphs}
    for name, start, end in marks:
        times[name].append(start.elapsed_time(end) / 1e3 / graphs[name][1])
    return times


def launches_for(seconds: float) -> int:
    """Return launches of one graph."""
    launches = math.ceil(REPLAY / seconds)
    return -(-launches // TURNS) * TURNS if launches > TURNS // 4 else launches


def raced(
    runs: Runs, seed: int = 0, width: float = 0.004, most: int = 128, limit: float = 0.5
) -> Rounds:
    """Return seconds of a launch of each kernel in each round.

    Args:
        width: of the interval of the first kernel's ratios to each other one, at which the rounds end.
        most: rounds.
        limit: seconds for the rounds.
    """
    import torch

    order = random.Random(seed)
    first, *others = runs
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    trial = {first: (captured(runs[first], 4), 4)}
    seconds = min(queued(trial, 3, order)[first])
    launches = launches_for(max(seconds, 1e-6))
    graphs = {name: (captured(run, launches), launches) for name, run in runs.items()}
    once = sum(min(times) * graphs[name][1] for name, times in queued(graphs, 2, order).items())
    most = max(9, min(most, int(limit / once)))
    batch = min(BATCH, most)
    queued(graphs, 2, order)
    rounds: Rounds = {name: [] for name in runs}
    while len(rounds[first]) < most:
        for name, times in queued(graphs, batch, order).items():
            rounds[name] += times
        ratios = [ratio_of(rounds, name, first) for name in others]
        if len(rounds[first]) >= 2 * batch and all(r.high - r.low < width for r in ratios):
            break
    return rounds
