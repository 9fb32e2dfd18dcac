"""The contract of a plugin: the facets that a vendor implements, and the types of their parameters.

    from gluon_core.plugin import Architecture, Backend, Compiler, hookimpl

The names below are those that most plugins need; each is loaded on first use. Those of
`gluon_core.plugin.ops`, with which ops are written, need Triton, and the others do not.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_core import errors
    from gluon_core.plugin.backend import Backend
    from gluon_core.plugin.compiler import Compiler, Report, Stage
    from gluon_core.plugin.device import Device
    from gluon_core.plugin.hookspec import hookimpl
    from gluon_core.plugin.host_descriptor import HostDescriptor
    from gluon_core.plugin.language import Language, Lowering
    from gluon_core.plugin.options import CompileOptions
    from gluon_core.plugin.simulation import Simulation
    from gluon_core.plugin.targets import Architecture, Limits, Target
    from gluon_core.plugin.triton_compiler import TritonCompiler

_WHERE = {
    "backend": "Backend",
    "compiler": "Compiler Report Stage",
    "device": "Device",
    "hookspec": "hookimpl",
    "host_descriptor": "HostDescriptor",
    "language": "Language Lowering",
    "options": "CompileOptions",
    "simulation": "Simulation",
    "targets": "Architecture Limits Target",
    "triton_compiler": "TritonCompiler",
}
_MODULE_OF = {name: f"{__name__}.{of}" for of, names in _WHERE.items() for name in names.split()}

__all__ = [
    "Architecture", "Backend", "CompileOptions", "Compiler", "Device", "HostDescriptor", "Language", "Limits",
    "Lowering", "Report", "Simulation", "Stage", "Target", "TritonCompiler", "errors", "hookimpl",
]  # fmt: skip


def __getattr__(name: str) -> _typing.Any:
    if name == "errors":
        return _importlib.import_module("gluon_core.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
