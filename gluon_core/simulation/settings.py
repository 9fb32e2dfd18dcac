"""Set the checks of a backend that runs kernels on the host: by the environment, for the launches of a
block of code, or for all launches whatever their own settings."""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, dataclass, fields, replace
from typing import (
    Any,
    Callable,
    ClassVar,
    ContextManager,
    Generic,
    Iterator,
    Mapping,
    Optional,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
)

from gluon_core.errors import ArgumentError

__all__ = ["LaunchSettings", "Scopes", "Settings"]

_SWITCH = dict.fromkeys(("1", "true", "on", "yes"), True)
_SWITCH |= dict.fromkeys(("0", "false", "off", "no"), False)

_S = TypeVar("_S", bound="LaunchSettings")


@dataclass(frozen=True)
class LaunchSettings:
    """Hold the checks of a launch, and its manner of running. A backend derives its own frozen
    dataclass from this;
    a field whose default is True is a check, and fields are of type bool, int, float or str, or None.

    Class attributes:
        PREFIX: of the environment variables, such as "GLUON_SIM".
        RUNNER: owner of the settings, for errors, such as "simulator".
        CHOICES: for a field of type str, the values that it can have.
        POSITIVE: fields that must be above zero where they are not None.
        STRICT: further settings of `using(checks=True)`.

    Raises:
        ArgumentError: a field has a value that it cannot have.
    """

    PREFIX: ClassVar[str] = ""
    RUNNER: ClassVar[str] = ""
    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    POSITIVE: ClassVar[tuple[str, ...]] = ()
    STRICT: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for name, known in self.CHOICES.items():
            if getattr(self, name) not in known:
                raise ArgumentError(
                    f"unknown {name} of the {self.RUNNER}",
                    argument=name,
                    expected=", ".join(known),
                    got=getattr(self, name),
                )
        for name in self.POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError("must be positive", argument=name, got=value)

    @classmethod
    def checks(cls) -> tuple[str, ...]:
        """Return the fields that are checks."""
        return tuple(f.name for f in fields(cls) if f.default is True)

    @property
    def off(self) -> tuple[str, ...]:
        """Return the checks that are off."""
        return tuple(name for name in self.checks() if not getattr(self, name))

    @classmethod
    def from_environment(cls: type[_S], environ: Optional[Mapping[str, str]] = None) -> _S:
        """Return the settings that PREFIX_RACES, PREFIX_TIMEOUT and so on ask for, of the process or
        `environ`. PREFIX_CHECKS=0 switches every check off that is not switched on by its own name.

        Raises:
            ArgumentError: a variable holds something else than its field can.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        everything = f"{cls.PREFIX}_CHECKS"
        if text := environ.get(everything, "").strip():
            values = dict.fromkeys(cls.checks(), _read(bool, everything, text))
        for field in fields(cls):
            name = f"{cls.PREFIX}_{field.name.upper()}"
            if text := environ.get(name, "").strip():
                text = text.lower() if field.name in cls.CHOICES else text
                values[field.name] = _read(_kind(cls, field), name, text)
        return cls(**values)


class Scopes(Generic[_S]):
    """Which settings hold where: of one backend, those of the environment, of blocks of code, and of
    whoever wants his everywhere.

    Args:
        kind: the backend's settings.
    """

    def __init__(self, kind: type[_S]) -> None:
        self._kind = kind
        self._inside: ContextVar[Optional[_S]] = ContextVar(f"{kind.PREFIX}_settings", default=None)
        self._everywhere: list[dict[str, Any]] = []  # innermost last

    def current(self) -> _S:
        """Return the settings of the innermost block, or those of the environment."""
        return self._inside.get() or self._kind.from_environment()

    def of_launch(self, own: Optional[Mapping[str, Any]] = None) -> tuple[_S, tuple[str, ...]]:
        """Return the settings of a launch that brings `own`, and the names of those that somebody who
        wants his everywhere has overridden: the launch's own, and checks."""
        wanted = replace(self.current(), **own) if own else self.current()
        if not self._everywhere:
            return wanted, ()
        forced = replace(wanted, **self._everywhere[-1])
        own_checks = {*self._kind.checks(), *(own or ())}
        return forced, tuple(
            f.name
            for f in fields(wanted)
            if f.name in own_checks and getattr(wanted, f.name) != getattr(forced, f.name)
        )

    @contextmanager
    def using(
        self,
        settings: Optional[_S] = None,
        *,
        checks: Optional[bool] = None,
        everywhere: bool = False,
        **changes: Any,
    ) -> Iterator[_S]:
        """Run launches inside with these settings, or with the current ones but for `changes`. `checks`
        switches all checks that are not switched otherwise here; on, it sets those in STRICT, too. With
        `everywhere` the changes hold in all threads, also against settings of a launch or a block inside."""
        if checks is not None:
            strict = self._kind.STRICT if checks else {}
            changes = {**dict.fromkeys(self._kind.checks(), checks), **strict, **changes}
        chosen = replace(settings or self.current(), **changes)
        token = self._inside.set(chosen)
        if everywhere:
            self._everywhere.append(changes)
        try:
            yield chosen
        finally:
            self._inside.reset(token)
            if everywhere:
                self._everywhere.pop()


def _kind(cls: type, field: Field[Any]) -> type:
    """Return the type of a field, without its None."""
    declared = get_type_hints(cls)[field.name]
    return next(t for t in (bool, int, float, str) if t is declared or t in get_args(declared))


_EXPECTED: dict[type, tuple[str, str]] = {
    bool: ("not a switch", "0 or 1"),
    int: ("not a number", "int"),
    float: ("not a number", "float"),
}


def _read(kind: type, name: str, text: str) -> Any:
    read: Callable[[str], Any] = (lambda t: _SWITCH[t.lower()]) if kind is bool else kind
    try:
        return read(text)
    except (KeyError, ValueError):
        message, expected = _EXPECTED[kind]
        raise ArgumentError(message, argument=name, expected=expected, got=text) from None


class Settings(Protocol):
    """Change the settings of launches; those not given stay as they are."""

    def __call__(
        self,
        *,
        schedule: str = ...,
        seed: int = ...,
        timeout: Optional[float] = ...,
        progress: bool = ...,
        checks: bool = ...,
        everywhere: bool = ...,
        **more: Any,
    ) -> ContextManager[Any]:
        """Run launches inside under these settings.

        Args:
            schedule: when asynchronous work happens: "latest", "eager" or "random".
            seed: of the random schedule.
            timeout: seconds after which a launch ends with an error; None for no limit.
            progress: show on standard error how far a long launch is.
            checks: switch every check on or off.
            everywhere: also in other threads, and before the settings of launches inside.
            more: the simulator's own settings, such as `races`.
        """
