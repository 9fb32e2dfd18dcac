"""Checks of the answers of a backend: options, builders, stages, launchers. Each raises BackendError."""

from __future__ import annotations

import weakref
from dataclasses import is_dataclass
from typing import Any, cast

from gluon_core.errors import BackendError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.builder import Builder, members
from gluon_core.plugin.compiler import Stage
from gluon_core.plugin.launcher import Launcher
from gluon_core.plugin.options import Options

__all__ = ["checked_builder", "checked_launcher", "checked_options", "checked_stages"]

_DERIVE = "Derive a class from gluon_core.plugin.options.CompileOptions."
_FIELDS = sorted(members(Options))
# The methods that every kernel needs; ops that a builder lacks are an error of the kernel that wants
# them, and of the conformance suite.
_METHODS = sorted(n for n, part in vars(Builder).items() if callable(part) and n[0] != "_")
_complete: weakref.WeakSet[type] = weakref.WeakSet()  # classes of builders that have all of them


def _wrong(backend: Backend, method: str, message: str, **fields: Any) -> BackendError:
    return BackendError(f"backend {backend.name!r}, {method}(): {message}", **fields)


def checked_options(backend: Backend, options: Any) -> Options:
    """Return `options`, the answer of `Compiler.options`."""
    if not is_dataclass(options) or isinstance(options, type) or not hasattr(options, "__dict__"):
        message = "must answer a dataclass instance without slots"
        raise _wrong(backend, "options", message, got=repr(options), remedy=_DERIVE)
    missing = [name for name in _FIELDS if not hasattr(options, name)]
    if missing:
        message = f"{type(options).__name__} has no {', '.join(missing)}"
        expected = "the fields of gluon_core.plugin.options.Options"
        raise _wrong(backend, "options", message, expected=expected, remedy=_DERIVE)
    return cast(Options, options)


def checked_builder(backend: Backend, builder: Any) -> Builder:
    """Return `builder`, the answer of `Compiler.builder`."""
    kind = type(builder)
    if kind not in _complete:
        missing = [name for name in _METHODS if not hasattr(builder, name)]
        if missing:
            message = f"{kind.__name__} has no {', '.join(missing)}"
            expected = "the methods of gluon_core.plugin.builder.Builder"
            raise _wrong(backend, "builder", message, expected=expected)
        if all(hasattr(kind, name) for name in _METHODS):
            _complete.add(kind)
    return cast(Builder, builder)


def checked_stages(backend: Backend, stages: Any) -> tuple[Stage, ...]:
    """Return `stages`, the answer of `Compiler.pipeline`; each has a name of its own."""
    sequence = isinstance(stages, (tuple, list)) and bool(stages)
    if sequence and all(isinstance(stage, Stage) for stage in stages):
        if len({stage.name for stage in stages}) == len(stages):
            return tuple(stages)
    message = "must answer stages, each with a name of its own"
    expected = "a tuple of gluon_core.plugin.compiler.Stage"
    raise _wrong(backend, "pipeline", message, expected=expected, got=repr(stages))


def checked_launcher(backend: Backend, launcher: Any) -> Launcher:
    """Return `launcher`, the answer of `Device.launcher`."""
    if not callable(launcher):
        message, expected = "must answer a function", "launch(grid, stream, *arguments)"
        raise _wrong(backend, "launcher", message, expected=expected, got=repr(launcher))
    return cast(Launcher, launcher)
