"""A backend that fails at whatever the core asks of it that the contract does not declare.

`Undeclared` is no AttributeError: a probe with a default does not swallow it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.builder import EXPERIMENTS, Builder
from gluon_core.plugin.compiler import Compiler, Report, Stage
from gluon_core.plugin.device import Device
from gluon_core.plugin.language import Language
from gluon_core.plugin.launcher import FastLauncher
from gluon_core.plugin.options import FURTHER, CompileOptions
from gluon_core.plugin.simulation import Simulation
from gluon_core.plugin.targets import Target
from gluon_core.simulation.recorder import Recorder
from gluon_core.testing.declared import members
from tests.core.fakes import architecture


class Undeclared(Exception):
    """The core used a name outside the contract."""


ASKED: set[tuple[str, str]] = set()  # (what, name) that the core asked for

OURS = ("gluon_core.", "gluon_runtime.", "triton.")


def check(owner, name, declared):
    """Raise if the caller's caller is the core, or Triton for it, and `name` is not declared."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if name.startswith("__") or not caller.startswith(OURS):
        return
    ASKED.add((owner, name))
    if name not in declared:
        raise Undeclared(f"{caller} asks {owner} for {name!r}")


def guarded(owner, declared):
    """A `__getattribute__` and a `__setattr__` for classes of what a backend hands out."""

    def get(self, name):
        check(owner, name, declared)
        return object.__getattribute__(self, name)

    def put(self, name, value):
        check(owner, name, declared)
        object.__setattr__(self, name, value)

    return {"__getattribute__": get, "__setattr__": put}


def guard(monkeypatch, cls, *names):
    """For the length of a test, instances of `cls` answer the core only these sets of names."""
    declared = frozenset().union(*names)
    for name, method in guarded(cls.__name__, declared).items():
        monkeypatch.setattr(cls, name, method, raising=False)


_BUILDER = members(Builder) | members(Recorder) | EXPERIMENTS
ARCHITECTURE = architecture("probe1", "probe", triton_backend=None)
FACETS = {
    "compiler": Compiler,
    "device": Device,
    "language": Language,
    "simulation": Simulation,
}
GET = "__getattribute__"


def declared(cls):
    """The members of a backend or of a facet."""
    return frozenset(vars(cls)) | frozenset(cls.__annotations__)


class ProbeBuilder:
    """Triton's builder behind a wall."""

    def __init__(self, builder):
        object.__setattr__(self, "_builder", builder)

    def __getattr__(self, name):
        check("the builder", name, _BUILDER)
        return getattr(self._builder, name)

    def __setattr__(self, name, value):
        check("the builder", name, _BUILDER)
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ProbeOptions(CompileOptions):
    maxnreg: int = 64

    def __getattribute__(self, name):
        check("the options", name, members(CompileOptions) | FURTHER.keys())
        return object.__getattribute__(self, name)


class ProbeLauncher:
    """Records the arguments of calls."""

    def __init__(self, notes):
        self.notes = notes

    def __call__(self, grid, stream, *arguments):
        self.notes.append((grid, arguments))

    def __getattribute__(self, name):
        check("the launcher", name, members(FastLauncher))
        return object.__getattribute__(self, name)


class ProbeCompiler(Compiler):
    """Compiles to text."""

    cacheable = False

    def options(self, target, requested):
        return ProbeOptions.of(target, requested)

    def builder(self, context, target):
        from gluon_core.plugin import ops

        return ProbeBuilder(ops.op_builder(context, target.architecture.arch))

    def pipeline(self, target, options):
        return (Stage("text", lambda module, metadata: str(module).encode()),)

    def inspect(self, compiled):
        return Report(None, None, 0, 1, {})


class ProbeDevice(Device):
    """Launches by recording the arguments."""

    tensor_device = "cpu"

    def __init__(self, launched, count):
        self.launched, self._count = launched, count

    def target(self, index=0):
        return Target("probe", ARCHITECTURE)

    def count(self):
        return self._count

    def scope(self, index):
        return nullcontext()

    def launcher(self, compiled):
        return ProbeLauncher(self.launched)


def walled(cls):
    """A class like `cls` whose instances answer the core only names that the contract declares."""
    base = next(kind for kind in FACETS.values() if issubclass(cls, kind))
    owner = f"the {base.__name__.lower()}"
    return type(cls.__name__, (cls,), {"__getattribute__": guarded(owner, declared(base))[GET]})


class ProbeBackend(Backend):
    """A backend behind a wall, its facets too."""

    def __init__(self, count=1, **language):
        launched = []
        super().__init__(
            "probe",
            (ARCHITECTURE,),
            compiler=walled(ProbeCompiler)(),
            device=walled(ProbeDevice)(launched, count),
            language=Language(**language),
        )
        object.__setattr__(self, "launched", launched)

    def __getattribute__(self, name):
        check("the backend", name, declared(Backend))
        return object.__getattribute__(self, name)
