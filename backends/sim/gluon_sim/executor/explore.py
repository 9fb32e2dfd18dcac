"""All schedules of a launch, or as many as time allows; a failing one made short, kept, replayed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Callable, Optional, Sequence

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_core.simulation.evidence import Walked
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.executor.machine import Machine
from gluon_sim.executor.parallel import meets
from gluon_sim.executor.reduction import Tree, Walk
from gluon_sim.memory.global_memory import Contents, GlobalMemory
from gluon_sim.memory.guided import Guided, Redundant, Replay, TimelineEntry, TooLong, segments_of
from gluon_sim.memory.scene import table
from gluon_sim.settings import Settings

__all__ = ["Exploration", "one_only", "replay"]

VERSION = 1
SHORTER = 200  # runs to make a failing schedule short
SHOWN = 24  # lines of a timeline in a message


@dataclass(frozen=True)
class Steps:
    """A schedule of one launch, as it is written to a file.

    Args:
        kernel: its name.
        target: of the launch.
        launch: which launch of the kernel, from 1.
        program: whose steps they are, where programs run one after the other; else None.
        segments: (process, steps) in order; then follows the usual schedule.
    """

    kernel: str
    target: str
    launch: int
    program: Optional[int]
    segments: tuple[tuple[str, int], ...]

    def write(
        self, path: Path, error: Optional[SimulatorError], story: Sequence[TimelineEntry]
    ) -> None:
        failure = error and {"class": type(error).__name__, "message": error.message}
        record = {
            "version": VERSION,
            "kernel": self.kernel,
            "target": self.target,
            "launch": self.launch,
            "program": self.program,
            "steps": [list(s) for s in self.segments],
            "error": failure,
            "timeline": [[t.task, t.line, t.action] for t in story],
        }
        path.write_text(json.dumps(record, indent=1) + "\n")

    @classmethod
    def read(cls, path: str) -> "Steps":
        """Read a recorded schedule from a file.

        Raises:
            ArgumentError: there is no such file, or it holds no schedule.
        """
        try:
            record = json.loads(Path(path).read_text())
            if record["version"] != VERSION:
                raise ValueError(f"version {record['version']}, not {VERSION}")
            steps = tuple((str(actor), int(count)) for actor, count in record["steps"])
            program = record["program"]
            return cls(
                str(record["kernel"]), str(record["target"]), int(record["launch"]),
                None if program is None else int(program), steps,
            )  # fmt: skip
        except OSError as error:
            raise ArgumentError(
                "unknown schedule", argument="schedule", got=path, remedy=str(error.strerror)
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"not a schedule that was written here: {error}", argument="schedule", got=path
            ) from None


class Exploration:
    """One launch under all schedules.

    Args:
        make: a machine over `memory` that runs under a schedule.
        memory: the arguments' storage.
        arguments: of the kernel.
        settings: how long, and how many.
        name: of the kernel, the target, and which launch of the kernel this is.
    """

    def __init__(
        self,
        make: Callable[[Guided], Machine],
        memory: GlobalMemory,
        arguments: Sequence[np.ndarray],
        settings: Settings,
        name: tuple[str, str, int],
    ):
        self._make = make
        self._memory = memory
        self._arguments = arguments
        self._settings = settings
        self._name = name
        self._before = memory.contents()
        # For each result that differs from the first: the schedule, and the program that it is of.
        self._results: dict[bytes, tuple[list[tuple[str, int]], Optional[int]]] = {}

    def run(self) -> Walked:
        """Run every schedule that differs, until one fails or time is over. Memory then has the result of the usual schedule.

        Raises:
            GluonError: the report of the first schedule that fails.
        """
        settings = self._settings
        started = reported = monotonic()
        trees: dict[Optional[int], Tree] = {}
        runs, repeats, complete, differ = 0, 0, True, set[str]()
        after: Contents = []
        focus: Optional[int] = None
        try:
            while True:
                walk = Walk(trees, focus, first=not runs)
                try:
                    self._once(walk)
                    if runs and (changed := self._memory.changed(after)):
                        differ.update(changed)
                        steps = segments_of(walk.own), walk.program
                        self._results.setdefault(self._memory.digest(), steps)
                except Redundant:
                    repeats += 1
                except TooLong:
                    complete = False
                runs += 1
                walk.finish()
                after = after or self._memory.contents()
                now = monotonic()
                if settings.progress and now - reported > 5:
                    reported = now
                    left = sum(tree.left for tree in trees.values())
                    print(
                        f"{self._name[0]}: {runs} schedules, at least {runs + left}, "
                        f"{now - started:.0f} s",
                        file=sys.stderr,
                    )
                while trees:
                    focus = next(iter(trees))
                    if trees[focus].left:
                        break
                    del trees[focus]
                if not trees:
                    break
                if runs >= settings.most or now - started > settings.within:
                    complete = False
                    break
                trees[focus].advance()
        finally:
            if after:
                self._memory.restore(after)
        if settings.leave:
            self._leave(settings.leave)
        left = sum(tree.left for tree in trees.values())
        count, least = (runs, runs + max(left, 1)) if not complete else (runs - repeats,) * 2
        return Walked(count, least, complete, tuple(sorted(differ)), 1 + len(self._results))

    def _leave(self, number: int) -> None:
        """Let memory hold another result than the usual one, if there are so many, and keep its schedule."""
        if number > len(self._results):
            return
        steps, program = list(self._results.values())[number - 1]
        guided, _ = self._again(steps, program)
        self._keep(steps, program, None, guided.story)

    def _keep(
        self, steps: Sequence[tuple[str, int]], program: Optional[int],
        error: Optional[SimulatorError], story: Sequence[TimelineEntry],
    ) -> str:  # fmt: skip
        """Write a schedule to a file; return the message about it."""
        kernel, target, launch = self._name
        path = Path(f"{kernel}.schedule.json")
        try:
            Steps(kernel, target, launch, program, tuple(steps)).write(path, error, story)
        except OSError as failure:
            return f"The schedule could not be kept: {failure}."
        return f"Repeat it: gluon run FILE --schedule {path}."

    def _once(self, guided: Walk) -> None:
        self._memory.restore(self._before)
        machine = self._make(guided)
        guided.resume(None)
        try:
            machine.run(self._arguments)
        except SimulatorError as error:
            if error.report is None:
                raise
            number = guided.program
            raise self._shortened(error, segments_of(guided.own), number) from None
        finally:
            machine.release()

    # ---- a schedule that fails --------------------------------------------------------------

    def _again(
        self, segments: Sequence[tuple[str, int]], number: Optional[int]
    ) -> tuple[Replay, Optional[SimulatorError]]:
        guided = Replay(segments, number)
        self._memory.restore(self._before)
        machine = self._make(guided)
        try:
            machine.run(self._arguments)
        except SimulatorError as error:
            return guided, error
        except TooLong:
            pass
        finally:
            machine.release()
        return guided, None

    def _shortened(
        self, error: SimulatorError, segments: list[tuple[str, int]], number: Optional[int]
    ) -> SimulatorError:
        """Return the error of the shortest schedule found that still ends with it, with the timeline."""
        deadline = monotonic() + max(5.0, self._settings.within / 4)
        tries = 0

        def fails(steps: Sequence[tuple[str, int]]) -> bool:
            nonlocal tries
            tries += 1
            _, failure = self._again(steps, number)
            return failure is not None and _alike(failure, error)

        if fails(()):
            segments = []
        size = max(1, len(segments) // 2)
        while segments and tries < SHORTER and monotonic() < deadline:
            position, shorter = 0, False
            while position < len(segments) and tries < SHORTER and monotonic() < deadline:
                less = segments[:position] + segments[position + size :]
                if fails(less):
                    segments, shorter = less, True
                else:
                    position += size
            if size == 1 and not shorter:
                break
            size = max(1, size // 2)
        guided, failure = self._again(segments, number)
        if failure is None or not _alike(failure, error):
            return error  # it cannot be repeated; report the observation all the same
        again = self._keep(segments, number, failure, guided.story)
        failure.order = tuple(timeline(guided))
        failure.remedy = f"{failure.remedy.rstrip('.')}. {again}" if failure.remedy else again
        return failure


def _alike(one: SimulatorError, other: SimulatorError) -> bool:
    lines = [e.span.line if e.span is not None else 0 for e in (one, other)]
    return one.report == other.report and lines[0] == lines[1]


def timeline(guided: Guided) -> list[str]:
    """Return the order of actions, as lines under each other."""
    rows: list[tuple[str, ...]] = []
    for entry in guided.story:
        row = (entry.task, f"line {entry.line}", entry.action)
        if not rows or rows[-1] != row:
            rows.append(row)
    more = len(rows) - SHOWN
    lines = table(rows[-SHOWN:]) if rows else []
    return [f"... {more} steps before", *lines] if more > 0 else lines


# ---- replay -----------------------------------------------------------------------------------


def replay(
    path: str, make: Callable[[Guided], Machine], arguments: Sequence[np.ndarray],
    name: tuple[str, str, int],
) -> bool:  # fmt: skip
    """Run a launch under a schedule that was kept; false if it belongs to another one.

    Raises:
        ArgumentError: it does not fit the kernel any more.
        GluonError: the report about the launch.
    """
    steps = Steps.read(path)
    if (steps.kernel, steps.launch) != (name[0], name[2]):
        return False
    guided = Replay(steps.segments, steps.program)
    machine = make(guided)
    try:
        machine.run(arguments)
    except SimulatorError as error:
        if error.report is not None:
            error.order = tuple(timeline(guided))
        raise
    finally:
        machine.release()
    if guided.missed:
        print(
            f"{path}: {guided.missed} of {len(steps.segments)} parts of the schedule could not be "
            "taken: the kernel or its arguments have changed",
            file=sys.stderr,
        )
    return True


def one_only(program: CompiledProgram) -> bool:
    """Is there only one schedule, because nothing in a program can come in another order?"""
    names = {op.name for op in program.program.walk_ops()}
    return not (program.asynchronous or meets(program) or "warp_specialize" in names)
