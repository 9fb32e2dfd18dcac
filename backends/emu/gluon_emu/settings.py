"""What an emulated launch checks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Iterator, Mapping, Optional

from gluon_core.errors import ArgumentError

__all__ = ["Settings", "current", "of_launch", "using"]


_SCHEDULES = ("latest", "eager", "random")


@dataclass(frozen=True)
class Settings:
    """How the emulator runs a launch.

    Args:
        waits: report uses of registers and LDS that a memory operation may still write.
        races: report accesses to LDS of two waves that no barrier orders.
        hazards: report instructions that are closer together than the hardware allows.
        uninitialised: report uses of registers and LDS that nobody wrote.
        timeout: seconds after which a launch ends with a report; None for no limit.
        trace: a file that gets the executed instructions, counted by line of the kernel's source.
        resident: waves that run at once; None chooses.
        processes: that share a launch which takes seconds; None for one per core.
        schedule, seed: as the simulator's; they change nothing, for what may be late is reported
            however late it is.
        progress: show on standard error how far a launch is that takes more than two seconds.
    """

    waits: bool = True
    races: bool = True
    hazards: bool = True
    uninitialised: bool = True
    timeout: Optional[float] = None
    trace: Optional[str] = None
    resident: Optional[int] = None
    processes: Optional[int] = None
    schedule: str = "latest"
    seed: int = 0
    progress: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in _SCHEDULES:
            raise ArgumentError(
                "unknown schedule",
                argument="schedule",
                expected=", ".join(_SCHEDULES),
                got=self.schedule,
            )
        for name in ("timeout", "resident", "processes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError("must be positive", argument=name, got=value)

    @property
    def off(self) -> tuple[str, ...]:
        """The checks that are off."""
        return tuple(
            f.name for f in fields(self) if f.default is True and not getattr(self, f.name)
        )

    @classmethod
    def from_environment(cls, environ: Optional[Mapping[str, str]] = None) -> "Settings":
        """The settings that GLUON_EMU_WAITS, GLUON_EMU_TIMEOUT and so on ask for.

        Raises:
            ArgumentError: a variable holds something else than its field can.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, Any] = {}
        for field in fields(cls):
            name = f"GLUON_EMU_{field.name.upper()}"
            text = environ.get(name, "").strip()
            if not text:
                continue
            if isinstance(field.default, bool):
                found[field.name] = _boolean(name, text)
            elif field.name in ("trace", "schedule"):
                found[field.name] = text
            else:
                found[field.name] = _number(name, text, float if field.name == "timeout" else int)
        return cls(**found)


_override: ContextVar[Optional[Settings]] = ContextVar("gluon_emu_settings", default=None)
_everywhere: list[
    dict[str, Any]
] = []  # what `using(..., everywhere=True)` was given, innermost last


def current() -> Settings:
    """The settings of `using`, or those of the environment."""
    return _override.get() or Settings.from_environment()


def of_launch() -> tuple[Settings, tuple[str, ...]]:
    """The settings of a launch, and the names of the checks that somebody who wants them everywhere
    has switched."""
    wanted = current()
    if not _everywhere:
        return wanted, ()
    forced = replace(wanted, **_everywhere[-1])
    return forced, tuple(name for name in wanted.off if name not in forced.off)


@contextmanager
def using(
    settings: Optional[Settings] = None,
    *,
    checks: Optional[bool] = None,
    everywhere: bool = False,
    **changes: Any,
) -> Iterator[Settings]:
    """Launches inside run with these settings; `using(races=False)` changes the current ones, and
    `checks=True` switches all checks on that are not switched otherwise here. With `everywhere` the
    changes hold in all threads, and whatever a `using` inside says."""
    if checks is not None:
        changes = {**{f.name: checks for f in fields(Settings) if f.default is True}, **changes}
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
