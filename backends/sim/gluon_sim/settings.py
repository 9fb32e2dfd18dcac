"""What a simulated launch checks and in which order it lets things happen."""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Iterator, Mapping, Optional

from gluon_core.errors import ArgumentError

__all__ = ["PROXIES", "SCHEDULES", "TOLERATED", "Settings", "current", "of_launch", "using"]

SCHEDULES = ("latest", "eager", "random")
PROXIES = ("writes", "strict")
TOLERATED = ("warn", "error", "ignore")


_CHOICES = {"schedule": SCHEDULES, "proxy": PROXIES, "tolerated": TOLERATED}


@dataclass(frozen=True)
class Settings:
    """How the simulator runs a launch.

    Args:
        schedule: when asynchronous work happens: at the `latest` moment that the memory model
            allows, at once (`eager`), or at a `random` one.
        seed: of the random schedule.
        races: report accesses that nothing orders.
        bounds: report accesses outside the arguments and outside shared buffers.
        uninitialised: report reads of shared memory that nobody wrote.
        alignment: report addresses that are no multiple of what the access needs.
        overflow: report address arithmetic that does not fit into its integer type.
        capacity: report more shared memory than the architecture has.
        barriers: report barriers that are used against their protocol.
        leaks: report copies that nobody waited for when the kernel ends.
        assertions: report `device_assert` that fails.
        deadlocks: report a launch in which every task waits; off, it ends there without a word.
        proxy: between which accesses a fence is asked for, where they go through different proxies:
            a write and what follows it (`writes`), or a read and the write over it, too (`strict`).
        tolerated: what becomes of reports of what hardware is known to tolerate: a Python warning
            (`warn`), an `error` like all others, or nothing (`ignore`).
        views: what bounds the accesses through a view of an array is the view, not the storage.
        timeout: seconds after which a launch ends with a report; None for no limit.
        workers: threads that share a launch where it pays; None for one per core,
            four at most.
        progress: show on standard error how far a launch is that takes more than two seconds.
    """

    schedule: str = "latest"
    seed: int = 0
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
    views: bool = False
    timeout: Optional[float] = None
    workers: Optional[int] = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ArgumentError(
                    f"unknown {name} of the simulator",
                    argument=name,
                    expected=", ".join(known),
                    got=getattr(self, name),
                )
        if self.timeout is not None and not self.timeout > 0:
            raise ArgumentError(
                "the timeout must be positive", argument="timeout", got=self.timeout
            )

        if self.workers is not None and not self.workers > 0:
            raise ArgumentError(
                "there must be a thread to run a launch", argument="workers", got=self.workers
            )

    @property
    def off(self) -> tuple[str, ...]:
        """The checks that are off."""
        return tuple(
            f.name for f in fields(self) if f.default is True and not getattr(self, f.name)
        )

    @classmethod
    def without_checks(cls, **changes: Any) -> "Settings":
        """Only results, no reports; `changes` are applied on top."""
        off = {f.name: False for f in fields(cls) if f.default is True}
        return cls(**{**off, **changes})

    @classmethod
    def from_environment(cls, environ: Optional[Mapping[str, str]] = None) -> "Settings":
        """The settings that GLUON_SIM_SCHEDULE, GLUON_SIM_RACES and so on ask for.

        GLUON_SIM_CHECKS=0 switches every check off that is not switched on by its own name.

        Raises:
            ArgumentError: a variable holds something else than its field can.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        everything = environ.get("GLUON_SIM_CHECKS", "").strip()
        if everything:
            on = _boolean("GLUON_SIM_CHECKS", everything)
            found = {f.name: on for f in fields(cls) if f.default is True}
        for field in fields(cls):
            name = f"GLUON_SIM_{field.name.upper()}"
            text = environ.get(name, "").strip()
            if not text:
                continue
            if isinstance(field.default, bool):
                found[field.name] = _boolean(name, text)
            elif field.name in _CHOICES:
                found[field.name] = text.lower()
            else:
                found[field.name] = _number(name, text, float if field.name == "timeout" else int)
        return cls(**found)


_override: ContextVar[Optional[Settings]] = ContextVar("gluon_sim_settings", default=None)
_everywhere: list[
    dict[str, Any]
] = []  # what `using(..., everywhere=True)` was given, innermost last


def current() -> Settings:
    """The settings of `using`, or those of the environment."""
    return _override.get() or Settings.from_environment()


def of_launch(own: Optional[Mapping[str, Any]]) -> tuple[Settings, tuple[str, ...]]:
    """The settings of a launch that brings `own`, and the names of those that somebody who wants them
    everywhere has overridden: the launch's own, and checks."""
    wanted = replace(current(), **own) if own else current()
    if not _everywhere:
        return wanted, ()
    forced = replace(wanted, **_everywhere[-1])
    changed = [f for f in fields(Settings) if getattr(wanted, f.name) != getattr(forced, f.name)]
    return forced, tuple(f.name for f in changed if f.default is True or f.name in (own or ()))


@contextmanager
def using(
    settings: Optional[Settings] = None,
    *,
    checks: Optional[bool] = None,
    everywhere: bool = False,
    **changes: Any,
) -> Iterator[Settings]:
    """Launches inside run with these settings; `using(races=False)` changes the current ones, and
    `checks=True` switches all checks on that are not switched otherwise here, makes errors of what
    hardware tolerates, and bounds views by themselves. With `everywhere` the changes hold in all
    threads, and whatever a launch or a `using` inside says."""
    if checks is not None:
        switched: dict[str, Any] = {f.name: checks for f in fields(Settings) if f.default is True}
        if checks:
            switched.update(tolerated="error", views=True)
        changes = {**switched, **changes}
    chosen = replace(settings or current(), **changes)
    token = _override.set(chosen)
    if everywhere:
        _everywhere.append(changes)
    try:
        yield chosen
    finally:
        _override.reset(token)
        if everywhere:
            _everywhere.pop()


def _boolean(name: str, text: str) -> bool:
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    if text.lower() in ("0", "false", "off", "no"):
        return False
    raise ArgumentError("not a switch", argument=name, expected="0 or 1", got=text)


def _number(name: str, text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ArgumentError(
            "not a number", argument=name, expected=kind.__name__, got=text
        ) from None
