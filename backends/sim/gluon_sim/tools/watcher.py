"""Watching a launch: a copy of the program whose steps inform watchers.

Nothing here costs anything while nobody watches: the machine runs the program as compiled. For a
watched launch every step is wrapped, and a vendor's model gets an `Observed` machine, which passes
everything on and reports it under the op that asked, however late it happens.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from gluon_sim.executor.compile import CompiledBlock, CompiledFunction, CompiledProgram, Step
from gluon_sim.executor.frame import Frame
from gluon_sim.executor.ops import OPS
from gluon_sim.executor.regions import REGIONS
from gluon_sim.executor.task import Task
from gluon_sim.memory.turns import Turns, Wait
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import TERMINATORS, Location, Op
from gluon_sim.tracing.source import in_library

__all__ = ["Launch", "Observed", "Watcher", "watchers_now", "watching"]

_LEAVES = TERMINATORS | {"warp_specialize_partitions"}


class Watcher:
    """Base of those who watch; every method may be left as it is.

    Attributes:
        keeps_values: whether values must outlive their last use.
    """

    keeps_values = False

    def begin(self, launch: "Launch") -> None:
        """Report that a launch starts."""

    def end(self, launch: "Launch") -> None:
        """Report that the launch ended, with or without an error."""

    def broke(self, launch: "Launch", error: BaseException) -> None:
        """Report that the launch failed with an error; `end` follows."""

    def before(self, launch: "Launch", task: Task, step: Step) -> None:
        """Report that an op, no control flow, is about to run."""

    def after(self, launch: "Launch", task: Task, step: Step, args: Sequence[Any]) -> None:
        """Report that the op ran with these arguments."""

    def failed(self, launch: "Launch", task: Task, step: Step, error: BaseException) -> None:
        """Report that an op raised; the innermost op comes first."""

    def waits(self, launch: "Launch", task: Task, step: Step, wait: Wait) -> None:
        """Report that a task is blocked."""

    def resumes(self, launch: "Launch", task: Task, step: Step) -> None:
        """Report that the task goes on."""

    def forks(self, launch: "Launch", task: Task, step: Step) -> None:
        """Report that the task is about to start partitions."""

    def joins(self, launch: "Launch", task: Task, step: Step) -> None:
        """Report that all partitions of the task have ended."""

    def event(self, launch: "Launch", task: Task, op: Op, method: str, *details: Any) -> None:
        """Report that a vendor's model called a method of the machine: `method` is its name."""


_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("gluon_sim_watchers", default=())


@contextmanager
def watching(*watchers: Watcher) -> Iterator[None]:
    """Report launches inside to these watchers, in addition to the present ones."""
    token = _watchers.set((*_watchers.get(), *watchers))
    try:
        yield
    finally:
        _watchers.reset(token)


def watchers_now() -> tuple[Watcher, ...]:
    """Return the watchers of this context's launches."""
    return _watchers.get()


class Launch:
    """One watched launch.

    Attributes:
        program: to run instead of the one compiled.
        compiled: the `CompiledKernel`.
        grid: programs in x, y, z.
        value: the result of the op that `Watcher.after` reports.
    """

    value: Any = None

    def __init__(
        self,
        program: CompiledProgram,
        compiled: Any,
        grid: tuple[int, int, int],
        watchers: Sequence[Watcher],
    ):
        self.compiled = compiled
        self.grid = grid
        self.watchers = tuple(watchers)
        self.machine: Any = None
        self._calls: WeakKeyDictionary[Task, list[tuple[Frame, Op]]] = WeakKeyDictionary()
        self._regions: WeakKeyDictionary[Task, int] = WeakKeyDictionary()
        self._waiting: WeakKeyDictionary[Task, Optional[Wait]] = WeakKeyDictionary()
        self._error: Optional[BaseException] = None
        self._keeps = any(w.keeps_values for w in watchers)
        self.program = self._copy(program)

    @property
    def target(self) -> Any:
        return self.compiled.target

    def __enter__(self) -> "Launch":
        for watcher in self.watchers:
            watcher.begin(self)
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is not None:
            for watcher in self.watchers:
                watcher.broke(self, error)
        for watcher in self.watchers:
            watcher.end(self)

    # ---- where a task is --------------------------------------------------------------------

    def calls(self, task: Task) -> list[tuple[Frame, Op]]:
        """(frame, call op) of the functions that a task is in, the outermost first."""
        return self._calls.setdefault(task, [])

    def line(self, task: Task, op: Op) -> Location:
        """Return the line of somebody's kernel that an op belongs to."""
        loc = op.loc
        if loc.line and not in_library(loc.file):
            return loc
        for _, call in reversed(self.calls(task)):
            if call.loc.line and not in_library(call.loc.file):
                return call.loc
        return loc

    def in_region(self, task: Task) -> bool:
        """Is the task inside the combine function of a reduction or the like?"""
        return bool(self._regions.get(task))

    def meaning(self, step: Step) -> Callable[..., Any]:
        """Return the function that a step executes."""
        return step.run

    def machine_of(self, task: Task) -> Any:
        """Return the machine that a vendor's model sees."""
        return Observed(self, task)

    # ---- the copy ---------------------------------------------------------------------------

    def _copy(self, program: CompiledProgram) -> CompiledProgram:
        blocks: dict[int, CompiledBlock] = {}

        def block(old: CompiledBlock) -> CompiledBlock:
            known = blocks.get(id(old))
            if known is None:
                known = blocks[id(old)] = replace(old, steps=[])
                known.steps = [step(s) for s in old.steps]
            return known

        def argument(arg: Any) -> Any:
            return block(arg) if isinstance(arg, CompiledBlock) else arg

        def step(old: Step) -> Step:
            return replace(
                old,
                run=self._wrapped(old),
                simple=False,
                plan=tuple(argument(a) for a in old.plan),
                blocks=tuple(tuple(block(b) for b in region) for region in old.blocks),
                kills=() if self._keeps else old.kills,
            )

        def function(old: CompiledFunction) -> CompiledFunction:
            return replace(old, blocks=[block(b) for b in old.blocks])

        functions = {name: function(f) for name, f in program.functions.items()}
        return replace(program, functions=functions, kernel=functions[program.kernel.name])

    def _wrapped(self, step: Step) -> Callable[..., Any]:
        if step.op.name in _LEAVES:
            return step.run
        if step.control:
            return lambda task, new: self._control(task, step, step.run(task, new))
        portable = step.op.name in OPS or step.op.name in ELEMENTWISE
        perform = self.meaning(step)

        def run(task: Task, *args: Any, **named: Any) -> Any:
            for watcher in self.watchers:
                watcher.before(self, task, step)
            try:
                if step.simple:
                    value = perform(*args)
                elif portable:
                    value = perform(task, *args, **named)
                else:
                    value = perform(self.machine_of(task), *args, **named)
            except Exception as error:
                self._fail(task, step, error)
                raise
            if hasattr(value, "send"):
                return self._drive(task, step, value, args)
            self.value = value
            for watcher in self.watchers:
                watcher.after(self, task, step, args)
            return value

        return run

    def _drive(self, task: Task, step: Step, run: Turns[Any], args: Sequence[Any]) -> Turns[Any]:
        value = self.value = yield from self._pass_on(task, step, run)
        for watcher in self.watchers:
            watcher.after(self, task, step, args)
        return value

    def _control(self, task: Task, step: Step, run: Turns[Any]) -> Turns[Any]:
        name = step.op.name
        if name in REGIONS:
            for watcher in self.watchers:
                watcher.before(self, task, step)
            self._regions[task] = self._regions.get(task, 0) + 1
        elif name == "call":
            self.calls(task).append((task.frame, step.op))
        elif name == "warp_specialize":
            for watcher in self.watchers:
                watcher.forks(self, task, step)
        try:
            value = yield from self._pass_on(task, step, run)
        finally:
            if name in REGIONS:
                self._regions[task] -= 1
            elif name == "call":
                self.calls(task).pop()
        if name in REGIONS:
            for watcher in self.watchers:
                watcher.after(self, task, step, ())
        elif name == "warp_specialize":
            for watcher in self.watchers:
                watcher.joins(self, task, step)
        return value

    def _pass_on(self, task: Task, step: Step, run: Turns[Any]) -> Turns[Any]:
        """`yield from run`, telling of waits once, where they arise."""
        try:
            while True:
                try:
                    wait = next(run)
                except StopIteration as stop:
                    return stop.value
                mine = self._waiting.get(task) is None
                if mine:
                    self._waiting[task] = wait
                    for watcher in self.watchers:
                        watcher.waits(self, task, step, wait)
                try:
                    yield wait
                finally:
                    if mine:
                        self._waiting[task] = None
                if mine:
                    for watcher in self.watchers:
                        watcher.resumes(self, task, step)
        except Exception as error:
            self._fail(task, step, error)
            raise
        finally:
            run.close()

    def _fail(self, task: Task, step: Step, error: BaseException) -> None:
        if error is self._error or error.__cause__ is not None and error.__cause__ is self._error:
            return
        self._error = error
        for watcher in self.watchers:
            watcher.failed(self, task, step, error)


_REPORTED = (
    "load_global store_global atomic_global load_shared store_shared dot commit wait_groups "
    "barrier_init barrier_invalidate barrier_arrive barrier_expect barrier_complete"
).split()


# Accesses to global memory, and where their addresses stand among the arguments.
_GLOBAL = {"load_global": 0, "store_global": 0, "atomic_global": 1}


class Observed:
    """The machine as a model sees it, informing the watchers of a launch of each request."""

    def __init__(self, launch: Launch, task: Task):
        self.__dict__.update(
            _launch=launch, _task=task, _op=task.op, _programs=task.programs, _moved=0
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._task, name)
        if name not in _REPORTED:
            return value

        def reported(*args: Any, **named: Any) -> Any:
            details = (*args, *named.values())
            self._tell(name, *details)
            if name in _GLOBAL:
                self.__dict__["_moved"] += self._bytes(*details[_GLOBAL[name] :])
            return value(*args, **named)

        return reported

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._task, name, value)

    def _tell(self, method: str, *details: Any) -> None:
        for watcher in self._launch.watchers:
            watcher.event(self._launch, self._task, self._op, method, *details)

    def _bytes(self, addresses: np.ndarray, element: Any, mask: Any = None, *rest: Any) -> int:
        """Return the bytes of global memory that an access to addresses moves in all programs that run."""
        dtype = element if isinstance(element, np.dtype) else getattr(element, "dtype", None)
        size = dtype.itemsize if dtype is not None else numpy_dtype(element).itemsize
        live = np.broadcast_arrays(addresses, True if mask is None else mask)[1]
        return int(np.count_nonzero(live)) * size * (self._task.programs // len(live) or 1)

    @property
    def programs(self) -> int:
        count: int = self._task.programs
        return count

    def issue(self, queue: str, perform: Any, *rest: Any, **named: Any) -> Any:
        """As of the machine; the watchers hear of the start and of the end."""
        token = object()
        self._tell("issue", queue, token)

        def performed(*args: Any, **more: Any) -> Any:
            value = perform(*args, **more)
            self._tell("performed", queue, token, self._moved)
            return value

        return self._task.issue(queue, performed, *rest, **named)

    def barrier_wait(self, view: Any, *args: Any, **named: Any) -> Turns[Any]:
        self._tell("barrier_wait", view, *args)
        value = yield from self._task.barrier_wait(view, *args, **named)
        self._tell("barrier_passed", view, *args)
        return value
