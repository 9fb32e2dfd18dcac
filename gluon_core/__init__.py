"""Gluon Core: one GPU kernel language, many vendors.

    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def kernel(x, n, BLOCK: gl.constexpr): ...

    kernel[(grid,)](x, n, BLOCK=1024)

`gluon_core.<vendor>` is a plugin's host namespace. Importing this package imports neither Triton
nor a plugin: names are found when they are asked for.
"""

from __future__ import annotations

import importlib
import importlib.machinery
from typing import TYPE_CHECKING, Any

from gluon_core import _namespaces
from gluon_core._version import __version__

if TYPE_CHECKING:
    from gluon_core._aggregate import aggregate, aggregate_replace
    from gluon_core._triton import constexpr_function
    from gluon_core.compiler import CompiledKernel, GluonASTSource, compile
    from gluon_core.runtime.arguments import ArgumentKind, register_argument_kind
    from gluon_core.runtime.jit import GluonJITFunction, jit
    from gluon_core.runtime.results import must_use_result

__all__ = [
    "ArgumentKind",
    "CompiledKernel",
    "GluonASTSource",
    "GluonJITFunction",
    "__version__",
    "aggregate",
    "aggregate_replace",
    "compile",
    "constexpr_function",
    "jit",
    "must_use_result",
    "register_argument_kind",
]

_namespaces.install()

_WHERE = {
    "ArgumentKind": "runtime.arguments",
    "CompiledKernel": "compiler",
    "GluonASTSource": "compiler",
    "GluonJITFunction": "runtime.jit",
    "aggregate": "_aggregate",
    "aggregate_replace": "_aggregate",
    "compile": "compiler",
    "constexpr_function": "_triton",
    "jit": "runtime.jit",
    "must_use_result": "runtime.results",
    "register_argument_kind": "runtime.arguments",
}
_MODULES = ("errors", "language", "layouts", "plugins", "portable", "targets", "testing")


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is not None:
        value = getattr(importlib.import_module(f"{__name__}.{where}"), name)
        globals()[name] = value
        return value
    # `from gluon_core import errors` asks here before it looks for a module: answer for our own.
    if importlib.machinery.PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None:
        return importlib.import_module(f"{__name__}.{name}")
    return _namespaces.resolve_host(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
