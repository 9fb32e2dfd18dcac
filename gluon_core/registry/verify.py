"""The checks of a plugin when it registers, so that less breaks when it is called.

The contract declares them: the annotation of a field, such as `Optional[CodePath]`, and the signature of a
facet's method. Nothing of the plugin is called or imported. The answers of a backend are checked when it gives them,
since that may import Triton; the conformance suite does it all at once, and loads every path. A check
yields faults: where, message, and the further fields of the error.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections import abc
from dataclasses import fields, is_dataclass
from itertools import combinations
from typing import Annotated, Any, Callable, Iterator, Mapping, Sequence, TypeVar, Union

from gluon_core.errors import BackendError, PluginError, did_you_mean
from gluon_core.imports import own_modules
from gluon_core.plugin import hookspec
from gluon_core.plugin.backend import API_VERSION, Backend
from gluon_core.plugin.builder import Builder
from gluon_core.plugin.compiler import Compiler, Stage
from gluon_core.plugin.device import Device
from gluon_core.plugin.language import OPS, Lowering
from gluon_core.plugin.options import CompileOptions
from gluon_core.plugin.simulation import Simulation
from gluon_core.registry.names import CORE, Contribution, Names

__all__ = ["check", "check_answer", "checked"]

T = TypeVar("T")
Faults = Iterator[tuple[str, str, dict[str, Any]]]

# The methods that a compiler must define, all of them.
_COMPILER = ("builder", "pipeline", "inspect")
# Origin of an annotation -> its classes, and the words of the error.
_SEVERAL: Mapping[Any, tuple[Any, str]] = {
    tuple: (tuple, "must be a tuple"),
    frozenset: (frozenset, "must be a frozenset"),
    abc.Sequence: ((tuple, list), "must be a sequence: a list or tuple"),
    abc.Mapping: (abc.Mapping, "must be a mapping"),
}


@functools.cache
def _hints(declared: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(declared, include_extras=True)
    return {name: kind for name, kind in hints.items() if name != "_"}  # KW_ONLY


def _faults(where: str, value: Any, kind: Any) -> Faults:
    """Yield the faults of a value that is declared as `kind`."""
    origin, inner, got = typing.get_origin(kind), typing.get_args(kind), {"got": repr(value)}
    if origin is Annotated:
        of_base = [*_faults(where, value, inner[0])]
        fits = of_base or re.fullmatch(inner[1].pattern, str(value))
        yield from of_base if fits else [(where, inner[1].words, got)]
    elif origin is Union:
        each = [[*_faults(where, value, one)] for one in inner]
        yield from each[0] if all(each) else ()
    elif origin in _SEVERAL and not isinstance(value, _SEVERAL[origin][0]):
        yield where, _SEVERAL[origin][1], got
    elif origin is abc.Mapping:
        for key, one in value.items():
            yield from _faults(f"{where}[{key!r}]", key, inner[0])
            yield from _faults(f"{where}[{key!r}]", one, inner[1])
    elif origin is tuple and inner[-1] is not Ellipsis:
        if [*map(type, value)] != [*inner]:
            yield where, f"must be {len(inner)} of {inner[0].__name__}", got
    elif origin in _SEVERAL:
        for index, one in enumerate(sorted(value, key=str) if origin is frozenset else value):
            yield from _faults(f"{where}[{index}]", one, inner[0])
    elif not isinstance(value, (int, float) if kind is float else kind) or (
        isinstance(value, bool) and kind is not bool
    ):
        yield where, f"must be a {kind.__name__}", got
    elif kind.__module__.startswith("gluon_core.plugin.") and kind is not Backend:
        rule: Callable[[str, Any, type], Faults] = _RULES.get(kind, _attributes)
        yield from rule(where, value, kind)


def _attributes(where: str, holder: Any, kind: type) -> Faults:
    for name, declared in _hints(kind).items():
        yield from _faults(f"{where}.{name}", getattr(holder, name), declared)


def _facet(where: str, facet: Any, base: type) -> Faults:
    """Yield the methods of a facet that the core cannot call, and those that a compiler lacks."""
    kind = type(facet)
    compiles = any(getattr(kind, name, None) is not vars(Compiler)[name] for name in _COMPILER)
    yield from _attributes(where, facet, base)
    for name, declared in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(declared):
            continue
        parameters, method = [*inspect.signature(declared).parameters][1:], getattr(facet, name)
        about = {"expected": f"{name}({', '.join(parameters)})"}
        if not callable(method):
            yield f"{where}.{name}", "must be a method", {"got": repr(method)}
        elif compiles and name in _COMPILER and getattr(kind, name) is declared:
            about["remedy"] = f"A compiler defines all of {', '.join(_COMPILER)}, or none."
            yield f"{where}.{name}", f"{kind.__name__} does not define it", about
        else:
            signature = inspect.signature(method)
            try:
                signature.bind(*parameters)
            except TypeError as error:
                message = f"cannot be called as the core calls it: {error}"
                yield f"{where}.{name}", message, {**about, "got": f"{name}{signature}"}


def _lowering(where: str, lowering: Lowering, kind: type) -> Faults:
    """Yield the faults of a lowering: also companions that its op lacks, or never asks for."""
    where, op = f"{where}: {lowering.op}/{lowering.name}", f"op {lowering.op!r}"
    if lowering.op not in OPS:
        about = {"expected": f"one of {', '.join(OPS)}", "remedy": did_you_mean(lowering.op, OPS)}
        yield where, f"{lowering.op!r} is not a portable op", about
        return
    yield from _attributes(where, lowering, kind)
    named = set(lowering.extras)
    needed, further = (set(names.split()) for names in OPS[lowering.op])
    if "open" in named or "accumulator" in named:
        needed |= further - {"fence"}
    if needed - named:
        yield f"{where}.extras", f"{op} also needs {', '.join(sorted(needed - named))}", {}
    for name in sorted(named - needed - further):
        known = sorted(needed | further)
        about = {"expected": f"of {', '.join(known)}", "remedy": did_you_mean(name, known)}
        yield f"{where}.extras[{name!r}]", f"{op} asks for no such companion", about


def _backend(origin: str, backend: Backend) -> Faults:
    written = backend.api_version
    if written != API_VERSION:
        inside = re.search(r"\((\S+) \S+\)", origin)  # 'name' (package 1.0)
        package = inside.group(1) if inside else origin.strip("'")
        newer = isinstance(written, int) and written > API_VERSION
        message = f"written for contract {written!r}, this gluon-core speaks {API_VERSION}"
        remedy = f"Upgrade: pip install --upgrade {'gluon-core' if newer else package}."
        yield "api_version", message, {"remedy": remedy}
    yield from _not_ours("name", backend.name)
    for name, declared in _hints(Backend).items():
        yield from _faults(name, getattr(backend, name), declared)
    names = [arch.name for arch in backend.architectures]
    if backend.simulates and names:
        message = "a backend that simulates runs kernels for the architectures of the others "
        yield "architectures", f"{message}and has none of its own", {"got": ", ".join(names)}
    if not backend.simulates and not names:
        remedy = "List at least one, or give simulation= to run kernels for those of others."
        yield "architectures", "is empty", {"remedy": remedy}
    for index, arch in enumerate(backend.architectures):
        if arch.backend != backend.name:
            where = f"architectures[{index}] {arch.name!r}.backend"
            about = {"expected": repr(backend.name), "got": repr(arch.backend)}
            yield where, "must be the backend's own name", about


_FACETS = (Compiler, Device, Simulation)
_RULES: Mapping[Any, Any] = {Lowering: _lowering, **dict.fromkeys(_FACETS, _facet)}


def _not_ours(where: str, name: str) -> Faults:
    if name in own_modules(CORE):
        yield where, f"gluon_core.{name} is a module of the core", {"remedy": "Rename it."}


def _ties(lowerings: Sequence[Lowering], backends: Sequence[Backend]) -> Faults:
    """Yield the lowerings of one op that share a priority where both fit an architecture."""
    architectures = [arch for backend in backends for arch in backend.architectures]
    for one, other in combinations(lowerings, 2):
        needed = {*one.requires, *other.requires}
        fits = [f"{a.backend}:{a.name}" for a in architectures if needed <= a.capabilities]
        same = (one.op, one.priority) == (other.op, other.priority)
        if same and (fits or not needed):
            both = f"{one.name!r} and {other.name!r} share priority {one.priority} and both fit"
            about = {"remedy": "Give one of them another priority."}
            yield f"lowerings of {one.op!r}", f"{both} {(*fits, 'anything')[0]}", about


def _refuse(origin: str, faults: Faults, backend: Any = None) -> None:
    """Raise the first fault, if there is one."""
    for where, message, about in faults:
        of = f", backend {backend!r}" if backend is not None else ""
        error = PluginError(f"plugin {origin}{of}, {where}: {message}", **about)
        error.backend_name = backend  # type: ignore[attr-defined]
        raise error


def check_answer(origin: str, hook: str, answer: Any) -> None:
    """Raise unless a hook of the plugin `origin` answered as its specification is annotated.

    Raises:
        PluginError: naming the plugin, the hook or attribute, and the offending value.
    """
    declared = _hints(getattr(hookspec, hook))["return"]
    backends = answer if declared == Sequence[Backend] and isinstance(answer, (tuple, list)) else ()
    for backend in backends:
        if isinstance(backend, Backend):
            _refuse(origin, _backend(origin, backend), backend.name)
    _refuse(origin, _faults(f"{hook}()", answer, declared))
    for name in answer if hook == "gluon_modules" else ():
        _refuse(origin, _not_ours(f"{hook}()", name))


def check(by: Contribution) -> None:
    """Raise unless the backends and lowerings of a plugin agree with each other.

    Raises:
        PluginError: naming the plugin, the attribute and the offending definition.
    """
    kinds = ("backend", "spelling", "lowering")  # the others are left to who asks
    clashes = (clash for clash in Names([by]).clashes() if clash.kind in kinds)
    twice = ((f"{clash.kind}s", clash.text, {"remedy": "Rename one of them."}) for clash in clashes)
    _refuse(by.origin, twice, by.backends[-1].name if by.backends else None)
    everything = [lowering for backend in by.backends for lowering in backend.language.lowerings]
    _refuse(by.origin, _ties([*everything, *by.lowerings], by.backends))


def _answer_faults(method: str, answer: Any) -> Iterator[str]:
    # Ops that a builder lacks are an error of the kernel that wants them, and of the conformance suite.
    needed: Sequence[str] = ()
    if method == "options":
        needed = [field.name for field in fields(CompileOptions)]
        if not is_dataclass(type(answer)) or not hasattr(answer, "__dict__"):
            yield "must answer a dataclass instance without slots, such as a CompileOptions"
    elif method == "builder":
        needed = [n for n, part in vars(Builder).items() if callable(part) and n[0] != "_"]
    elif method == "launcher" and not callable(answer):
        yield "must answer a function: launch(grid, stream, *arguments)"
    elif method == "pipeline":
        stages = isinstance(answer, (tuple, list)) and all(isinstance(s, Stage) for s in answer)
        if not stages or not 0 < len(answer) == len({stage.name for stage in answer}):
            yield "must answer stages, a tuple of Stage, each with a name of its own"
    missing = [name for name in sorted(needed) if not hasattr(answer, name)]
    if missing:
        yield f"{type(answer).__name__} has no {', '.join(missing)}"


def checked(backend: Backend, method: str, answer: T) -> T:
    """Return `answer`, which `method` of a facet of `backend` gave.

    Raises:
        BackendError: it is not as the contract has it.
    """
    for message in _answer_faults(method, answer):
        raise BackendError(f"backend {backend.name!r}, {method}(): {message}", got=repr(answer))
    return answer
