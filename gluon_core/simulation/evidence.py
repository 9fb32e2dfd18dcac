"""Record launches: the evidence behind a verdict."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional, cast

from gluon_core.errors import MACHINERY, ArgumentError, CapabilityError, DeviceError, GluonError
from gluon_core.plugin.launcher import Compiled, Launcher

__all__ = [
    "Launched",
    "Pending",
    "Proved",
    "Raised",
    "Record",
    "Walked",
    "note",
    "observers",
    "recording",
    "refused",
    "witnessed",
]


@dataclass(frozen=True)
class Walked:
    """Under how many schedules a simulator ran one launch.

    Args:
        runs: so many; as long as there are others, those count that turned out to repeat one.
        least: how many there are to run, at least.
        all: whether there are no others.
        differ: the arguments that hold something else after some of them than after the first.
        results: how many results there were that differ from each other.
    """

    runs: int
    least: int
    all: bool
    differ: tuple[str, ...] = ()
    results: int = 1

    def __str__(self) -> str:
        if not self.all:
            text = f"{self.runs} of at least {self.least} schedules"
        else:
            text = f"all {self.runs} schedules" if self.runs > 1 else "its only schedule"
        if self.differ:
            text += f", after which {', '.join(self.differ)} did not always hold the same"
        return text


@dataclass(frozen=True)
class Proved:
    """Hold a simulator's statement on a kernel for every trip count of its loops and every program.

    Args:
        verdict: "proved", "counterexample" or "cannot say".
        name: of the kernel, and of the target.
        states: that were looked at.
        seconds: that it took.
        lines: the proved and the assumed facts; or the mistake; or the reason of no statement.
    """

    verdict: str
    name: str
    states: int
    seconds: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Launched:
    """A launch, as often as it came from one place.

    Args:
        kernel: its name.
        target: where it ran, such as "sim:sm_90".
        simulated: whether on a simulator.
        where: (file, line) of the call, outside of Gluon Core.
        off: the simulator's checks that were off.
        overridden: settings that the file changed and that whoever keeps the record changed back.
        walked: under which schedules it ran, if it was to run under all.
        proved: the statement for every trip count, if that was asked for.
        by: the executor instead of the target's backend, such as "Triton's interpreter"; it
            checks nothing.
    """

    kernel: str
    target: str
    simulated: bool
    where: tuple[str, int]
    off: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()
    walked: Optional[Walked] = None
    proved: Optional[Proved] = None
    by: str = ""


@dataclass(frozen=True)
class Raised:
    """An error that a launch ended with.

    Args:
        kernel: its name.
        where: (file, line) of the call.
        error: its class and its first line.
        report: whether it says that the kernel is wrong, rather than that it cannot run there.
    """

    kernel: str
    where: tuple[str, int]
    error: str
    report: bool


@dataclass
class Record:
    """Record events while it is kept, in all threads of this process.

    Attributes:
        launches: each launch -> how often, those that ended with an error included.
        raised: the errors that launches ended with, also those that the caller caught.
        kernels: launched kernels, compiled.
    """

    launches: Counter[Launched] = field(default_factory=Counter)
    raised: list[Raised] = field(default_factory=list)
    kernels: dict[int, Compiled] = field(default_factory=dict)
    _seen: list[BaseException] = field(default_factory=list, repr=False)

    def add_error(
        self, kernel: str, where: tuple[str, int], error: GluonError, running: bool
    ) -> None:
        if any(error is one for one in self._seen):  # on its way out through several launchers
            return
        self._seen.append(error)
        report = running and not isinstance(error, (ArgumentError, CapabilityError, DeviceError))
        if report and getattr(error, "report", "") is None:  # the simulator is at its limits
            report = False
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        self.raised.append(Raised(kernel, where, text, report))


@dataclass(frozen=True)
class Pending:
    """A launch that was asked for and has not begun; a call makes it.

    Args:
        compiled: the kernel.
        grid: three positive sizes.
        arguments: one for each parameter, constants included.
        where: (file, line) of the call, outside of Gluon Core.
        launch: makes the launch and keeps the records.
    """

    compiled: Compiled
    grid: Any
    arguments: tuple[Any, ...]
    where: tuple[str, int]
    launch: Callable[[], Any]

    def __call__(self) -> Any:
        return self.launch()


observers: list[Callable[[Pending], None]] = []
"""Each gets the launches of simulators before they begin, and makes them or does not."""

_records: list[Record] = []
_now = threading.local()
_lock = threading.Lock()


@contextmanager
def recording(record: Optional[Record] = None) -> Iterator[Record]:
    """Keep a record of the launches inside, in all threads. Launches on a device count where their
    kernel was loaded inside; those of simulators always do."""
    kept = Record() if record is None else record
    _records.append(kept)
    try:
        yield kept
    finally:
        _records[:] = [one for one in _records if one is not kept]
        kept._seen.clear()


def note(
    off: Optional[tuple[str, ...]] = None,
    overridden: Optional[tuple[str, ...]] = None,
    walked: Optional[Walked] = None,
    proved: Optional[Proved] = None,
) -> None:
    """Record a simulator's facts on the launch that runs in this thread: see `Launched`. Omitted fields
    stay as they were."""
    noted = getattr(_now, "said", None)
    if noted is not None:
        new = (off, overridden, walked, proved)
        _now.said = tuple(old if one is None else one for one, old in zip(new, noted))


def witnessed(compiled: Compiled, launch: Launcher, by: str = "") -> Launcher:
    """Wrap `launch` of `compiled` for those who keep records.

    Args:
        by: see `Launched`.
    """
    if not (compiled.target.simulated or _records):
        return launch
    return cast(Launcher, _witness(compiled, launch, by))


def _witness(compiled: Compiled, launch: Launcher, by: str) -> Callable[..., Any]:
    name, target = compiled.name, compiled.target

    def seen(grid: Any, stream: int, *arguments: Any) -> Any:
        if observers:
            again: Callable[[], Any] = lambda: seen(grid, stream, *arguments)  # noqa: E731
            observers[-1](Pending(compiled, grid, arguments, caller(), again))
            return None
        if not _records:
            return launch(grid, stream, *arguments)
        where = caller()
        before, _now.said = getattr(_now, "said", None), ((), (), None, None)
        try:
            return launch(grid, stream, *arguments)
        except GluonError as error:
            with _lock:
                for record in _records:
                    record.add_error(name, where, error, running=True)
            raise
        finally:
            off, overridden, walked, proved = _now.said
            launched = Launched(
                name, str(target), target.simulated, where, off, overridden, walked, proved, by
            )
            _now.said = before
            with _lock:
                for record in _records:
                    record.launches[launched] += 1
                    record.kernels[id(compiled)] = compiled

    return seen


def refused(name: str, error: GluonError) -> None:
    """Record that a launch of the kernel `name` ended with `error` before it began."""
    if _records:
        where = caller()
        with _lock:
            for record in _records:
                record.add_error(name, where, error, running=False)


def caller() -> tuple[str, int]:
    """(file, line) of the nearest frame that is not of Gluon Core or a plugin, or made by them."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        file = frame.f_code.co_filename
        if module.partition(".")[0] not in MACHINERY and not file.startswith("<"):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
