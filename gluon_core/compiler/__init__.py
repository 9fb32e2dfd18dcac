"""From a kernel to machine code: `compile(kernel, target=..., ...) -> CompiledKernel`.

A program that only defines kernels does not load the compiler: names are found when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluon_core.compiler.driver import compile, compile_source
    from gluon_core.compiler.kernel import AsmDict, CompiledKernel
    from gluon_core.compiler.many import compile_many
    from gluon_core.compiler.source import GluonASTSource

__all__ = [
    "AsmDict",
    "CompiledKernel",
    "GluonASTSource",
    "compile",
    "compile_many",
    "compile_source",
]

_WHERE = {
    "AsmDict": "kernel",
    "CompiledKernel": "kernel",
    "GluonASTSource": "source",
    "compile": "driver",
    "compile_many": "many",
    "compile_source": "driver",
}


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
