"""Gluon Core: one GPU kernel language, many vendors.

    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def kernel(x, n, BLOCK: gl.constexpr): ...

    kernel[(grid,)](x, n, BLOCK=1024)

`gluon_core.<vendor>` is a plugin's host namespace. Importing this package imports neither Triton
nor a plugin: names are found when they are asked for.
"""

import importlib as _importlib
import os as _os
import typing as _typing

from gluon_core import errors as _errors
from gluon_core._version import __version__
from gluon_core.imports import own_modules as _own_modules
from gluon_core.layouts import pictures as _pictures
from gluon_core.registry import CORE_PLUGINS as _CORE_PLUGINS
from gluon_core.registry.namespaces import Space as _Space

if _typing.TYPE_CHECKING:
    from gluon_core import errors as errors
    from gluon_core import language as language
    from gluon_core import layouts as layouts
    from gluon_core import portable as portable
    from gluon_core import testing as testing
    from gluon_core._triton import constexpr_function
    from gluon_core.compiler import CompiledKernel, GluonASTSource, compile, compile_many
    from gluon_core.language._host import cdiv, next_power_of_2
    from gluon_core.launch.arguments import ArgumentKind, register_argument_kind
    from gluon_core.launch.device import multiprocessors
    from gluon_core.launch.jit import GluonJITFunction, jit, must_use_result
    from gluon_core.simulation.unwritten import uninitialised
    from gluon_core.values.aggregate import aggregate, aggregate_replace

__all__ = [
    "ArgumentKind",
    "CompiledKernel",
    "GluonASTSource",
    "GluonJITFunction",
    "__version__",
    "aggregate",
    "aggregate_replace",
    "cdiv",
    "compile",
    "compile_many",
    "constexpr_function",
    "jit",
    "multiprocessors",
    "must_use_result",
    "next_power_of_2",
    "register_argument_kind",
    "uninitialised",
]

_SPACE = _Space(__name__, "module").open()
_CORE_PLUGINS.append(f"{__name__}.portable.lowerings")

_WHERE = {
    "ArgumentKind": "launch.arguments",
    "CompiledKernel": "compiler",
    "GluonASTSource": "compiler",
    "GluonJITFunction": "launch.jit",
    "aggregate": "values.aggregate",
    "aggregate_replace": "values.aggregate",
    "cdiv": "language._host",
    "compile": "compiler",
    "compile_many": "compiler",
    "constexpr_function": "_triton",
    "jit": "launch.jit",
    "multiprocessors": "launch.device",
    "must_use_result": "launch.jit",
    "next_power_of_2": "language._host",
    "register_argument_kind": "launch.arguments",
    "uninitialised": "simulation.unwritten",
}
_MODULES = ("errors", "language", "layouts", "portable", "testing")


def __getattr__(name: str) -> _typing.Any:
    where = _WHERE.get(name)
    if where is not None:
        value = getattr(_importlib.import_module(f"{__name__}.{where}"), name)
        globals()[name] = value
        if name == "jit":  # the variable may have been set since
            _stand_in()
        return value
    # `from gluon_core import errors` asks here before it looks for a module: answer for our own.
    if name in _own_modules(__name__):
        return _importlib.import_module(f"{__name__}.{name}")
    return _SPACE.resolve(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *_SPACE.offered()})


def _service(name: str) -> _typing.Any:
    from gluon_core.registry.load import registry

    return registry().service(name)


def _services() -> _typing.Sequence[str]:
    """Return the services of plugins; none while plugins load, or where they cannot be."""
    from gluon_core.registry.load import registry

    try:
        return [*registry().offers("service")]
    except _errors.GluonError:  # the launch reports it
        return []


def _error(name: str) -> _typing.Any:
    """Return the error class of a plugin that offers its module of errors as a service."""
    for service in _services():
        if service.endswith(".errors") and name in _service(service).__all__:
            return getattr(_service(service), name)
    raise AttributeError(
        f"module 'gluon_core.errors' has no attribute {name!r}, and no installed plugin adds it"
    )


def _stand_in() -> None:
    """Give Triton a driver where the user chose a simulated target and a plugin has one."""
    wanted = _os.environ.get("GLUON_TARGET")
    if wanted and "standin" in _services():
        _service("standin").activate(wanted)


_errors.set_source(_error)
_pictures.set_source(lambda: _service("pictures"))
_stand_in()
