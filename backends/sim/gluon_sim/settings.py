"""Settings of a simulated launch: its checks, and the order in which things happen."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Iterator, Mapping, Optional

from gluon_core.simulation.settings import LaunchSettings, Scopes

__all__ = [
    "PROXIES", "SCHEDULES", "TOLERATED", "Settings", "current", "launch_number", "of_launch", "using",
]  # fmt: skip

SCHEDULES = ("latest", "eager", "random", "explore")
PROXIES = ("writes", "strict")
TOLERATED = ("warn", "error", "ignore")


@dataclass(frozen=True)
class Settings(LaunchSettings):
    """The options of a simulated launch.

    Args:
        schedule: when asynchronous work happens: at the `latest` moment that the memory model
            allows, at once (`eager`), or at a `random` one. Or `explore`: the launch runs under all
            schedules that differ, and fails with the first that does.
        seed: of the random schedule.
        within: seconds after which no further schedule is explored.
        most: schedules that are explored at most.
        leave: of the results that explored schedules differ in, which memory holds afterwards; 0 for the one of the usual schedule.
        replay: a file with a schedule that failed; its launch runs under it.
        prove: the name of a kernel, or "*": the verdict on it for every trip count goes to an observer that keeps a record of launches, before it runs.
        races: report accesses that nothing orders.
        bounds: report accesses outside the arguments and outside shared buffers.
        uninitialised: report reads of shared memory that nobody wrote.
        alignment: report addresses that are no multiple of the access's alignment.
        overflow: report address arithmetic that does not fit into its integer type.
        capacity: report more shared memory than the architecture has.
        barriers: report barriers that are used against their protocol.
        leaks: report copies that nobody waited for when the kernel ends.
        assertions: report `device_assert` that fails.
        deadlocks: report a launch in which every task waits; off, it ends there without a word.
        proxy: between which accesses a fence is asked for, where they go through different proxies:
            a write and the next access, or a load that nothing uses before an arrival and the write over it
            (`writes`); any read and the write over it, too (`strict`).
        tolerated: the treatment of reports of mistakes that hardware is known to tolerate: a Python warning
            (`warn`), an `error` like all others, or nothing (`ignore`).
        fences: the same for fences between the proxies that the kernel lacks and the installed compiler
            adds, while an older supported one does not.
        views: the view of an array bounds the accesses through it, not the storage.
        timeout: seconds after which a launch ends with a report; None for no limit.
        workers: threads that share a launch where it pays; None for one per core,
            four at most.
        progress: show on standard error how far a launch is that takes more than two seconds.
    """

    PREFIX: ClassVar[str] = "GLUON_SIM"
    RUNNER: ClassVar[str] = "simulator"
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "schedule": SCHEDULES,
        "proxy": PROXIES,
        "tolerated": TOLERATED,
        "fences": TOLERATED,
    }
    POSITIVE: ClassVar[tuple[str, ...]] = ("timeout", "workers", "within", "most")
    STRICT: ClassVar[Mapping[str, Any]] = {"tolerated": "error", "views": True, "fences": "warn"}

    schedule: str = "latest"
    seed: int = 0
    within: float = 60.0
    most: int = 1000
    leave: int = 0
    replay: Optional[str] = None
    prove: Optional[str] = None
    races: bool = True
    bounds: bool = True
    uninitialised: bool = True
    alignment: bool = True
    overflow: bool = True
    capacity: bool = True
    barriers: bool = True
    leaks: bool = True
    assertions: bool = True
    deadlocks: bool = True
    proxy: str = "writes"
    tolerated: str = "warn"
    fences: str = "ignore"
    views: bool = False
    timeout: Optional[float] = None
    workers: Optional[int] = None
    progress: bool = False

    @classmethod
    def without_checks(cls, **changes: Any) -> "Settings":
        """Only results, no reports; `changes` are applied on top."""
        return cls(**{**dict.fromkeys(cls.checks(), False), **changes})


_scopes = Scopes(Settings)
current = _scopes.current
of_launch = _scopes.of_launch
_numbers: Counter[str] = Counter()


@contextmanager
def using(
    settings: Optional[Settings] = None,
    *,
    checks: Optional[bool] = None,
    everywhere: bool = False,
    **changes: Any,
) -> Iterator[Settings]:
    """Run launches inside with these settings, or with the current ones but for `changes`.
    `checks` switches all checks that are not switched otherwise here; on, it makes errors of mistakes that hardware tolerates, and bounds views by themselves. With `everywhere` the changes hold in all
    threads, and whatever a launch or a block inside says."""
    with _scopes.using(settings, checks=checks, everywhere=everywhere, **changes) as chosen:
        _numbers.clear()
        yield chosen


def launch_number(kernel: str) -> int:
    """Which launch of a kernel this is, from 1, since settings changed last."""
    _numbers[kernel] += 1
    return _numbers[kernel]
