"""Errors of ours that code around Triton, such as its autotuner, also catches as its own."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from triton.runtime.errors import OutOfResources, PTXASError

from gluon_core.errors import CapabilityError, GluonError, LimitError, StageError, set_recast

__all__ = ["caught_as", "combined"]

E = TypeVar("E", bound=GluonError)
_COMBINED: dict[tuple[type, ...], type[GluonError]] = {}
# Errors that Triton raises when it is too late to point at the kernel. Its autotuner skips the configuration.
_LATE = {LimitError: OutOfResources, CapabilityError: PTXASError, StageError: PTXASError}


def combined(cls: type[GluonError], *also: type) -> type[GluonError]:
    """Return a subclass of `cls` and of each class of `also`, under the name of `cls`."""
    if "__gluon_class__" in vars(cls):
        cls, *known = cls.__bases__
        also = (*known, *also)
    late = (theirs for ours, theirs in _LATE.items() if issubclass(cls, ours))
    bases = (cls, *(kind for kind in dict.fromkeys((*also, *late)) if not issubclass(cls, kind)))
    subclass = _COMBINED.get(bases)
    if subclass is None:
        body = {"__module__": cls.__module__, "__gluon_class__": cls, "__reduce__": _reduce}
        subclass = _COMBINED[bases] = cast("type[GluonError]", type(cls.__name__, bases, body))
    return subclass


def caught_as(error: E, *also: type) -> E:
    """Return `error` as an object of `combined(type(error), *also)`."""
    cls = combined(type(error), *also)
    if cls is type(error) or len(cls.__bases__) == 1:
        return error
    recast = cast(E, _restore(cls.__bases__, error.__dict__))
    recast.__cause__, recast.__context__ = error.__cause__, error.__context__
    recast.__suppress_context__ = error.__suppress_context__
    return recast.with_traceback(error.__traceback__)


def _reduce(self: GluonError) -> tuple[Any, ...]:
    state = {name: value for name, value in self.__dict__.items() if name != "node"}
    return _restore, (type(self).__bases__, state)


def _restore(bases: tuple[type[GluonError], ...], state: dict[str, Any]) -> GluonError:
    cls = combined(*bases)
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, state.get("message", ""))
    return error


set_recast(caught_as)
