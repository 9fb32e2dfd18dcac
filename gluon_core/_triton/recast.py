"""Errors of ours that code around Triton, such as its autotuner, also catches as its own."""

from __future__ import annotations

from typing import Any, TypeVar

from triton.runtime.errors import OutOfResources

from gluon_core.errors import GluonError, LimitError, StageError

__all__ = ["limit_error", "stage_error"]


def limit_error(error: LimitError) -> LimitError:
    """`error` as a class that Triton's autotuner catches too."""
    kind = getattr(type(error), "__gluon_class__", type(error))
    return _recast(error, kind.__name__, (kind, OutOfResources))


def stage_error(error: StageError) -> StageError:
    """`error` as a class that Triton's autotuner takes for a configuration ptxas refused."""
    from triton.runtime.errors import PTXASError

    return _recast(error, "StageError", (StageError, PTXASError))


E = TypeVar("E", bound=GluonError)
_RECAST: dict[tuple[type, ...], Any] = {}


def _recast(error: E, name: str, bases: tuple[type, ...]) -> E:
    if all(isinstance(error, base) for base in bases):
        return error
    cls: Any = _RECAST.get(bases)
    if cls is None:
        body = {"__module__": bases[0].__module__, "__str__": bases[0].__str__}
        body["__gluon_class__"] = bases[0]
        body["__reduce__"] = lambda self: (_rebuild_recast, (bases[0], dict(self.__dict__)))
        cls = _RECAST[bases] = type(name, bases, body)
    made: E = cls.__new__(cls)
    made.__dict__.update(error.__dict__)
    Exception.__init__(made, str(error.message))
    made.__cause__ = error.__cause__
    return made


def _rebuild_recast(base: Any, state: dict[str, Any]) -> Any:
    made = base.__new__(base)
    made.__dict__.update(state)
    Exception.__init__(made, state.get("message", ""))
    return limit_error(made) if issubclass(base, LimitError) else stage_error(made)
