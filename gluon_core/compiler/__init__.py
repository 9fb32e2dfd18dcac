"""From a kernel to machine code: `compile(kernel, target=..., ...) -> CompiledKernel`."""

from __future__ import annotations

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
