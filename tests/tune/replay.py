"""Searches played through without a device and without waiting: a clock that only events move, workers that
take as long as they are set to, and times that somebody measured.

All that decides is the real thing: the search, its strategy, the rounds of measuring and its statistics.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from gluon_tune import session, work
from gluon_tune.engine import Engine
from gluon_tune.isolated import Ended, Failed


@dataclass
class Recorded:
    """The recorded measurements of a configuration.

    Args:
        seconds: of a launch; None where it is not launched.
        compiling: seconds that it takes to compile.
        detail: what its code is like.
        refused: why it does not compile, "" where it does.
    """

    seconds: Optional[float]
    compiling: float
    detail: dict[str, Any] = field(default_factory=dict)
    refused: str = ""


@dataclass
class Costs:
    """Seconds that things take.

    Args:
        worker: until a process that compiles is there.
        device: until a process that measures is there.
        first: of the further needs of the first measurement: arrays, the right result.
        compiled: besides the compiler itself, for each configuration.
        loaded: until a configuration is ready on the device.
        noise: of a sample, relative; `odd` of them take up to a half more.
        spread: how much a configuration differs from what was recorded, in this search.
    """

    worker: float = 1.5
    device: float = 4.4
    first: float = 0.5
    compiled: float = 0.12
    loaded: float = 0.012
    noise: float = 0.01
    odd: float = 0.03
    spread: float = 0.01


class Clock:
    """Replaces `time` in the session."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._number), do))

    def step(self, until: float = float("inf")) -> bool:
        """Let the next thing happen, if one does until then."""
        if not self._events or self._events[0][0] > until:
            return False
        self.now, _, do = heapq.heappop(self._events)
        do()
        return True

    def wait(self, futures: Any, timeout: Any = None, return_when: str = "ALL_COMPLETED") -> Any:
        """As `concurrent.futures.wait`."""
        some = any if return_when == FIRST_COMPLETED else all
        until = float("inf") if timeout is None else self.now + timeout
        futures = list(futures)
        while not some(future.done() for future in futures):
            if not self.step(until):
                assert timeout is not None, "waits for what never happens"
                self.now = until
                break
        # In order, which makes a replay the same each time.
        done = [future for future in futures if future.done()]
        return _Waited(done, [future for future in futures if not future.done()])


class _Waited(tuple):
    def __new__(cls, done: Any, left: Any) -> Any:
        return super().__new__(cls, (done, left))

    done = property(lambda self: self[0])


class _Future(Future):
    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def result(self, timeout: Any = None) -> Any:
        while not self.done():
            assert self.clock.step(), "waits for what never happens"
        return super().result(0)


class _Workers:
    """Do one job after the other, the first after a while."""

    def __init__(self, clock: Clock, count: int):
        self._clock, self._waiting = clock, deque()
        self._idle = list(range(count))

    def submit(self, job: Callable[[int], tuple[float, Callable[[], Any]]]) -> Future:
        """`job(worker)` answers how long it takes, and what then answers."""
        future = _Future(self._clock)
        self._waiting.append((future, job))
        self._next()
        return future

    def _next(self) -> None:
        while self._idle and self._waiting:
            future, job = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                worker = self._idle.pop(0)
                seconds, answer = job(worker)
                self._clock.at(
                    self._clock.now + seconds,
                    lambda f=future, a=answer, w=worker: self._end(f, a, w),
                )

    def _end(self, future: Future, answer: Callable[[], Any], worker: int) -> None:
        self._idle.append(worker)
        try:
            future.set_result(answer())
        except Exception as error:
            future.set_exception(error)
        self._next()


class Replay(Engine):
    """An engine of made-up workers.

    Args:
        known: `f(config) -> Recorded`.
        about: what workers say of the task, see `work.about`.
        slots: how many compile.
        costs, seed: of what takes time.
    """

    name = "a replay"

    def __init__(
        self,
        known: Callable[[Any], Recorded],
        about: dict[str, Any],
        slots: int,
        costs: Costs,
        seed: int,
    ):
        self.clock, self.known, self.costs, self.slots = Clock(), known, costs, slots
        self.compilers, self.meter = _Workers(self.clock, slots), _Workers(self.clock, 1)
        self.begun: set[int] = set()  # workers that are there
        self.random = random.Random(seed)
        self.spread: dict[str, float] = {}
        self.compilations = self.launches = 0
        self._about = {**about, "devices": 1, "device": "Recorded", "versions": work.versions()}
        self._ready = False

    def close(self) -> None:
        pass

    def on(self, monkeypatch: Any) -> Replay:
        """Let searches run on this engine's clock, and measure on its device."""
        monkeypatch.setattr(session, "time", self.clock)
        monkeypatch.setattr(session, "wait", self.clock.wait)
        monkeypatch.setattr(work, "_isolated", lambda *args: self)
        return self

    # -- compiling -------------------------------------------------------------------------------

    def compile(self, function: Any, *arguments: Any) -> Future:
        if function is work.about:
            return self.compilers.submit(lambda worker: (self._start(worker), lambda: self._about))
        return self.compilers.submit(lambda worker: self._compilation(worker, *arguments[3:]))

    def _start(self, worker: int) -> float:
        if worker in self.begun:
            return 0.0
        self.begun.add(worker)
        return self.costs.worker * self.random.uniform(0.9, 1.3)

    def _compilation(self, worker: int, config: Any, objective: str, limits: Any) -> Any:
        self.compilations += 1
        known, patience = self.known(config), limits.get("patience") or 1e9
        seconds = known.compiling * self.random.uniform(0.8, 1.3)
        overhead = self._start(worker) + self.costs.compiled
        answer = {"versions": work.versions(), "detail": {}, "reason": ""}
        if seconds > patience:
            self.begun.discard(worker)  # it was killed
            answer.update(status="pruned", reason="still compiled")
        elif known.refused:
            answer.update(status="pruned", reason=known.refused, detail={"large": True})
        else:
            detail = {"num_warps": 1, "occupancy": None, "spills": 0, "conflicts": 0, "bound": None}
            detail.update(known.detail, compile_seconds=seconds)
            answer.update(status="compiled", detail=detail)
        return overhead + min(seconds, patience), lambda: answer

    # -- measuring -------------------------------------------------------------------------------

    def measure(self, function: Any, *arguments: Any) -> Future:
        if function is work.about:
            seconds = 0.0 if self._ready else self.costs.device
            self._ready = True
            return self.meter.submit(lambda worker: (seconds, lambda: self._about))
        return self.meter.submit(lambda worker: self._measurement(function, arguments))

    def _measurement(self, function: Any, arguments: Any) -> Any:
        self.spent, self.started, self._configs = 0.0, 1, {}
        answer = function(*arguments)  # the real one, which calls `call`
        if self.costs.first and "first" not in self.spread:
            self.spread["first"] = 1.0
            self.spent += self.costs.first
        return self.spent, lambda: answer

    def call(self, method: str, *arguments: Any, limit: float = 0.0) -> Any:
        """The answers of a process with a device, see `Workbench`."""
        if method == "facts":
            return {"clock_rate": 1980}
        if method == "prepare":
            _, config, number = arguments
            seconds = self.known(config)
            if seconds.seconds is None:
                raise Failed("WrongResultError", "elements of out are wrong", True)
            self._configs[number] = seconds.seconds * self._own(config)
            self.spent += self.costs.loaded + 5 * self._configs[number]
            return self._configs[number]
        number, launches = arguments
        once = self._configs[number]
        self.launches += launches
        self.spent += launches * once
        if launches * once > limit:
            raise Ended("took too long", hung=True)
        longer = 1 + abs(self.random.gauss(0, self.costs.noise))
        if self.random.random() < self.costs.odd:
            longer += self.random.uniform(0, 0.5)
        return [once * longer] * launches

    def _own(self, config: Any) -> float:
        text = repr(sorted(config.items()))
        if text not in self.spread:
            self.spread[text] = 1 + self.random.gauss(0, self.costs.spread)
        return self.spread[text]
