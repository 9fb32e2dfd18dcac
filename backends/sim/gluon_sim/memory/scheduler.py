"""The scheduler of a launch: whose turn it is, and the error when every task waits."""

from __future__ import annotations

from time import monotonic
from typing import Any, Optional

from gluon_sim.errors import DeadlockError, Scene, TimeLimitError
from gluon_sim.memory.flight import Flights
from gluon_sim.memory.guided import Guided
from gluon_sim.memory.scene import cells, circle, table
from gluon_sim.memory.schedule import Schedule
from gluon_sim.memory.turns import Turn, Turns
from gluon_sim.sanitizer.agents import Task
from gluon_sim.tracing.ir import Location
from gluon_sim.tracing.source import span_of

__all__ = ["Scheduler"]


class Scheduler:
    """Runs tasks in turn, each until it waits.

    Deterministic: always in the order they came, or drawn from the seed of a random schedule. When
    nobody can go on, asynchronous work lands; when there is none, it is a deadlock.

    Args:
        flights: the asynchronous work of the launch.
        deadline: of `time.monotonic`, after which the launch ends.
        deadlocks: whether to report that nobody can go on.
    """

    def __init__(
        self,
        flights: Optional[Flights] = None,
        deadline: Optional[float] = None,
        limit: Optional[float] = None,
        deadlocks: bool = True,
    ):
        self.deadlocks = deadlocks
        self.home: Optional[Location] = None  # where the kernel begins
        self.now: Optional[Task] = None  # the task whose turn it is
        self.scene: tuple[str, ...] = ()  # where everybody was when somebody interrupted
        self._tasks: list[Turn] = []
        self._ended: list[str] = []
        self.flights = flights
        self.deadline = deadline
        self.limit = limit

    def add(self, name: str, run: Turns[Any], task: Optional[Task] = None) -> None:
        self._tasks.append(Turn(name, run, task))

    @property
    def several(self) -> bool:
        return len(self._tasks) > 1

    def run(self) -> None:
        try:
            guided = self.flights is not None and self.flights.guided
            if guided:
                self._guided(guided)
            else:
                self._loop()
        except KeyboardInterrupt:
            self.scene = tuple(task.where() for task in self._tasks[:16])
            raise
        finally:
            for task in self._tasks:
                task.run.close()
            self._tasks.clear()
            self._ended.clear()

    def _loop(self) -> None:
        tasks = self._tasks
        flights = self.flights
        schedule = Schedule() if flights is None else flights.schedule
        while tasks:
            moved = False
            late = not any(task.waits is None or task.waits.ready() for task in tasks)
            if late and flights is not None and flights.push([t.waits for t in tasks]):
                continue
            for task in schedule.turns(tasks) if len(tasks) > 1 else tasks[:]:
                if task.waits is not None and not task.waits.ready():
                    if not (late and task.waits.expires and not moved):
                        continue
                moved = True
                self.check_time(task.waits.loc if task.waits else self.home)
                self.now, task.waits = task.task, None
                try:
                    task.waits = next(task.run)
                except StopIteration:
                    tasks.remove(task)
                    self._ended.append(task.name)
            if not moved:
                if not self.deadlocks:
                    return
                self._deadlock(tasks)

    def _guided(self, guided: Guided) -> None:
        """Run one step after the other, of the task that the schedule picks."""
        tasks, flights = self._tasks, self.flights
        assert flights is not None
        while tasks:
            ready = [t for t in tasks if t.waits is None or t.waits.ready()]
            able = [f for f in flights.pending if all(b.landed for b in f.before)]
            if not ready and not able:
                ready = [t for t in tasks if t.waits is not None and t.waits.expires]
                if not ready:
                    if not self.deadlocks:
                        return
                    self._deadlock(tasks)
            picked = guided.pick(tasks, ready, able)
            if not isinstance(picked, Turn):
                flights.land(picked)
            else:
                self.check_time(picked.waits.loc if picked.waits else self.home)
                self.now, picked.waits = picked.task, None
                try:
                    picked.waits = next(picked.run)
                except StopIteration:
                    tasks.remove(picked)
                    self._ended.append(picked.name)
            guided.stepped()

    def check_time(self, loc: Optional[Location]) -> None:
        if self.deadline is not None and monotonic() > self.deadline:
            waiting = [f"{t.name} waits for {t.waits.describe()}" for t in self._tasks if t.waits]
            raise TimeLimitError(
                f"the launch is not over after {self.limit:g} seconds"
                + (": " + "; ".join(waiting[:8]) if waiting else ""),
                report="time.limit",
                remedy="Look for a loop that does not end, or raise the timeout.",
                span=span_of(loc),
            )

    def _deadlock(self, tasks: list[Turn]) -> None:
        rows: list[tuple[str, ...]] = []
        scenes: list[Scene] = []
        stuck: list[dict[str, Any]] = []
        for task in tasks:
            assert task.waits is not None
            loc = task.loc()
            line = getattr(loc, "line", 0)
            text = f"{task.name} waits for {task.waits.describe()}"
            more = task.waits.scene() if task.waits.scene is not None else {}
            waits = cells(more) if more else (task.waits.describe(), "", "")
            rows.append((task.name, str(line or ""), *waits))
            stuck.append(more)
            more = {k: v for k, v in more.items() if k in Scene.__dataclass_fields__}
            scenes.append(Scene(task.name, span_of(loc), text, **more))
        lines = table([("who", "line", "waits for", "missing", "so far"), *rows[:16]])
        if len(tasks) > 16:
            lines.append(f"and {len(tasks) - 16} more")
        if self._ended:
            lines.append(f"{', '.join(self._ended[:16])} ended before")
        remedies = [scene["remedy"] for scene in stuck if scene.get("remedy")]
        lines += remedies[:1] or circle(stuck)
        advice = {
            scene["advice"]: task.name for scene, task in zip(stuck, tasks) if scene.get("advice")
        }
        lines += [f"{name}: {text}" for text, name in advice.items()]
        first = next((task for task in tasks if task.task is not None), tasks[0])
        raise DeadlockError(
            "every task waits and nothing can happen any more:\n  " + "\n  ".join(lines),
            report="deadlock.tasks",
            waiting=tuple(scenes),
            ended=tuple(self._ended),
            span=span_of(first.loc()),
        )
