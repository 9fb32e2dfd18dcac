"""What is checked of what a backend answers: options, builders, stages, launchers."""

from __future__ import annotations

import weakref
from dataclasses import is_dataclass
from typing import Any, cast

from gluon_core.errors import BackendError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.builder import Builder, Functions, Positions, members
from gluon_core.plugin.compiler import Stage
from gluon_core.plugin.launcher import Launcher
from gluon_core.plugin.options import Options

__all__ = ["checked_builder", "checked_launcher", "checked_options", "checked_stages"]


def _wrong(backend: Backend, method: str, message: str, **fields: Any) -> BackendError:
    return BackendError(f"backend {backend.name!r}, {method}: {message}", **fields)


_FIELDS = sorted(members(Options))


def checked_options(backend: Backend, options: Any) -> Options:
    """`options`, which `Compiler.options` answered.

    Raises:
        BackendError: they are no options.
    """
    if not is_dataclass(options) or isinstance(options, type) or not hasattr(options, "__dict__"):
        raise _wrong(
            backend,
            "options()",
            "must answer a dataclass instance without slots",
            got=repr(options),
            remedy="Derive a class from gluon_core.plugin.options.CompileOptions.",
        )
    missing = [name for name in _FIELDS if not hasattr(options, name)]
    if missing:
        raise _wrong(
            backend,
            "options()",
            f"{type(options).__name__} has no {', '.join(missing)}",
            expected="the fields of gluon_core.plugin.options.Options",
            remedy="Derive it from gluon_core.plugin.options.CompileOptions.",
        )
    return cast(Options, options)


# What a builder is written with in any case; ops that one lacks are an error of the kernel that wants
# them, and of the conformance suite.
_BUILDS = sorted(members(Positions) | members(Functions))
_complete: weakref.WeakSet[type] = weakref.WeakSet()  # classes of builders that have all of them


def checked_builder(backend: Backend, builder: Any) -> Builder:
    """`builder`, which `Compiler.builder` answered.

    Raises:
        BackendError: it is no builder.
    """
    if type(builder) in _complete:
        return cast(Builder, builder)
    missing = [name for name in _BUILDS if not hasattr(type(builder), name)]
    if not missing:
        _complete.add(type(builder))
    missing = [name for name in missing if not hasattr(builder, name)]
    if missing:
        raise _wrong(
            backend,
            "builder()",
            f"{type(builder).__name__} has no {', '.join(missing)}",
            expected="the methods of gluon_core.plugin.builder.Builder",
        )
    return cast(Builder, builder)


def checked_stages(backend: Backend, stages: Any) -> tuple[Stage, ...]:
    """`stages`, which `Compiler.pipeline` answered.

    Raises:
        BackendError: they are no stages, or two have one name.
    """
    fine = (
        isinstance(stages, (tuple, list)) and stages and all(isinstance(s, Stage) for s in stages)
    )
    if not fine or len({stage.name for stage in stages}) != len(stages):
        raise _wrong(
            backend,
            "pipeline()",
            "must answer stages, each with a name of its own",
            expected="a tuple of gluon_core.plugin.compiler.Stage",
            got=repr(stages),
        )
    return tuple(stages)


def checked_launcher(backend: Backend, launcher: Any) -> Launcher:
    """`launcher`, which `Device.launcher` answered.

    Raises:
        BackendError: nobody can call it.
    """
    if not callable(launcher):
        raise _wrong(
            backend,
            "launcher()",
            "must answer a function",
            expected="launch(grid, stream, *arguments)",
            got=repr(launcher),
        )
    return cast(Launcher, launcher)
