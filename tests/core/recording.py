"""A backend that fails at whatever the core asks of it that the contract does not declare.

`Undeclared` is no AttributeError: a probe with a default does not swallow it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass

from gluon_core.plugin.backend import Backend, Report, Stage
from gluon_core.plugin.builder import Builder, Experiments, Recorder, members
from gluon_core.plugin.launcher import FastLauncher
from gluon_core.plugin.options import CompileOptions, FurtherOptions
from gluon_core.plugin.targets import Target
from tests.core.fakes import architecture


class Undeclared(Exception):
    """The core used what the contract does not name."""


ASKED: set[tuple[str, str]] = set()  # (what, name) that the core asked for

OURS = ("gluon_core.", "triton.")


def check(what, name, declared):
    """Raise if the caller's caller is the core, or Triton for it, and `name` is not declared."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if name.startswith("__") or not caller.startswith(OURS):
        return
    ASKED.add((what, name))
    if name not in declared:
        raise Undeclared(f"{caller} asks {what} for {name!r}")


def guarded(what, declared):
    """A `__getattribute__` and a `__setattr__` for classes of what a backend hands out."""

    def get(self, name):
        check(what, name, declared)
        return object.__getattribute__(self, name)

    def put(self, name, value):
        check(what, name, declared)
        object.__setattr__(self, name, value)

    return {"__getattribute__": get, "__setattr__": put}


def guard(monkeypatch, cls, *protocols):
    """For the length of a test, instances of `cls` answer the core only what `protocols` declare."""
    declared = frozenset().union(*map(members, protocols))
    for name, method in guarded(cls.__name__, declared).items():
        monkeypatch.setattr(cls, name, method, raising=False)


_BUILDER = members(Builder) | members(Recorder) | members(Experiments)
_BACKEND = frozenset(vars(Backend)) | frozenset(Backend.__annotations__)


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
        check("the options", name, members(FurtherOptions))
        return object.__getattribute__(self, name)


class ProbeLauncher:
    """Notes what it is called with."""

    def __init__(self, notes, form):
        self.notes, self.form = notes, form

    def __call__(self, grid, stream, *arguments):
        self.notes.append((self.form, grid, arguments))

    def __getattribute__(self, name):
        check("the launcher", name, members(FastLauncher))
        return object.__getattribute__(self, name)


class ProbeBackend(Backend):
    """Compiles to text, and launches by writing down what it was given."""

    name = "probe"
    architectures = (architecture("probe1", "probe", triton_backend=None),)
    tensor_device = "cpu"
    raw_pointers = True
    cacheable = False
    fast = True

    def __init__(self, count=1):
        self.launched = []
        self.count = count

    def __getattribute__(self, name):
        check("the backend", name, _BACKEND)
        return object.__getattribute__(self, name)

    def device(self):
        return Target(self.name, self.architectures[0])

    def device_count(self):
        return self.count

    def device_scope(self, index):
        return nullcontext()

    def options(self, target, given):
        return ProbeOptions.of(target, given)

    def builder(self, context, target):
        from gluon_core import vendor

        return ProbeBuilder(vendor.op_builder(context, target.architecture.arch))

    def pipeline(self, target, options):
        return (Stage("text", lambda module, metadata: str(module).encode()),)

    def launcher(self, compiled):
        made = ProbeLauncher(self.launched, "plain")
        if self.fast:
            made.raw = ProbeLauncher(self.launched, "raw")
            made.bind = lambda grid, stream_of, device, handle: (
                lambda *values: self.launched.append(("bound", grid, values))
            )
        return made

    def inspect(self, compiled):
        return Report(None, None, 0, 1, {})
