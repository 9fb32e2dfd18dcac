"""The checks of a plugin when it registers, so that less breaks when it is called.

Nothing of the plugin is called or imported: attributes, the form of paths, and whether methods take
the arguments that the core passes. The answers of a backend are checked when it gives them
(`gluon_core.registry.answers`), since that may import Triton; the conformance suite does it all at
once, and loads every path.

A rule yields the faults of a value: where, message, and the further fields of the error. Tables say
which rule holds for which attribute, and `_refuse` raises the first fault.
"""

from __future__ import annotations

import inspect
import re
from itertools import combinations
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from gluon_core.errors import PluginError, did_you_mean
from gluon_core.plugin.backend import API_VERSION, Backend
from gluon_core.plugin.compiler import Compiler
from gluon_core.plugin.device import Device
from gluon_core.plugin.language import FURTHER, OPS, Language, Lowering
from gluon_core.plugin.simulation import Simulation
from gluon_core.plugin.targets import Architecture, Limits
from gluon_core.registry import own_modules
from gluon_core.registry.names import CORE, Contribution, Names

__all__ = ["HOOKS", "both", "check", "check_offers", "items", "must"]

Faults = Iterator[tuple[str, str, dict[str, Any]]]
Rule = Callable[[str, Any], Faults]

# -- rules ---------------------------------------------------------------------------------------


def must(holds: Callable[[Any], bool], words: str) -> Rule:
    def rule(where: str, value: Any) -> Faults:
        if not holds(value):
            yield where, words, {"got": repr(value)}

    return rule


def _is(kind: Any, words: str) -> Rule:
    return must(lambda value: isinstance(value, kind), words)


def _text(pattern: str, words: str) -> Rule:
    matches = re.compile(pattern).fullmatch
    return must(lambda value: isinstance(value, str) and bool(matches(value)), words)


def _or_none(rule: Rule) -> Rule:
    return lambda where, value: iter(()) if value is None else rule(where, value)


def both(first: Rule, second: Rule) -> Rule:
    """Return the rule that asks `second` of values that hold `first`."""

    def rule(where: str, value: Any) -> Faults:
        faults = [*first(where, value)]
        yield from faults or second(where, value)

    return rule


def items(each: Rule, kind: Any = tuple) -> Rule:
    def rule(where: str, values: Any) -> Faults:
        for index, value in enumerate(values):
            yield from each(f"{where}[{index}]", value)

    return both(_is(kind, "must be a tuple" if kind is tuple else "must be a sequence"), rule)


def _mapping(keys: Rule, values: Rule) -> Rule:
    def rule(where: str, mapping: Any) -> Faults:
        for key, value in mapping.items():
            yield from keys(f"{where}[{key!r}]", key)
            yield from values(f"{where}[{key!r}]", value)

    return both(_is(Mapping, "must be a mapping"), rule)


def _fields(rules: Mapping[str, Rule]) -> Rule:
    """Return the rule of an object from those of its attributes; a key may list several."""
    each = [(name, rule) for names, rule in rules.items() for name in names.split()]

    def rule(where: str, holder: Any) -> Faults:
        for name, of_attribute in each:
            yield from of_attribute(f"{where}.{name}", getattr(holder, name))

    return rule


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_MODULE = _text(_DOTTED, "not a module path such as 'package.module'")
_PATH = _text(rf"{_DOTTED}:[A-Za-z_]\w*", "not a path such as 'package.module:attribute'")
_NAME = _text(r"[a-z][a-z0-9_]*", "must be a lower-case identifier")
_SPELLING = _text(
    r"[a-z0-9][a-z0-9_.+-]*", "a spelling is lower case letters, digits, '_', '-', '.' or '+'"
)
_CAPABILITY = _text(
    r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+",
    "a capability is a dotted lower-case name such as 'vendor.unit'",
)
_WORDS = _text(r".+", "must be text")
_BOOL = _is(bool, "must be a bool")
_SEQUENCE = _is((tuple, list), "must be a sequence")
_RELEASE = must(
    lambda v: isinstance(v, tuple) and len(v) == 2 and all(map(_integer, v)),
    "must be (major, minor)",
)

# -- facets ---------------------------------------------------------------------------------------

# The kinds of names that one plugin does not claim twice; those of several are left to who asks.
_WITHIN = ("backend", "spelling", "lowering")
# The methods that a compiler must define, all of them.
_COMPILER = ("builder", "pipeline", "inspect")


def _methods(base: type) -> Rule:
    """Return the rule that the core can call each method of a facet, and that a compiler is whole."""

    def rule(where: str, facet: Any) -> Faults:
        kind = type(facet)
        compiles = any(getattr(kind, name, None) is not vars(Compiler)[name] for name in _COMPILER)
        for name, declared in vars(base).items():
            if name.startswith("_") or not inspect.isfunction(declared):
                continue
            parameters = list(inspect.signature(declared).parameters)[1:]
            expected = f"{name}({', '.join(parameters)})"
            method = getattr(facet, name)
            if not callable(method):
                yield f"{where}.{name}", "must be a method", {"got": repr(method)}
            elif compiles and name in _COMPILER and getattr(kind, name) is declared:
                remedy = f"A compiler defines all of {', '.join(_COMPILER)}, or none."
                message = f"{kind.__name__} does not define it"
                yield f"{where}.{name}", message, {"expected": expected, "remedy": remedy}
            else:
                try:
                    inspect.signature(method).bind(*parameters)
                except TypeError as error:
                    message = f"cannot be called as the core calls it: {error}"
                    got = f"{name}{inspect.signature(method)}"
                    yield f"{where}.{name}", message, {"expected": expected, "got": got}
                except ValueError:  # no signature to check, as for a C function
                    continue

    return rule


def _facet(base: type, rules: Mapping[str, Rule]) -> Rule:
    further = both(_methods(base), _fields(rules))
    return both(_is(base, f"must be a {base.__name__}"), further)


def _extras(where: str, lowering: Lowering) -> Faults:
    """Yield the companions that the op of a lowering lacks, or never asks for."""
    named, needed = set(lowering.extras), set(OPS[lowering.op])
    further = FURTHER.get(lowering.op, frozenset())
    if "open" in named:
        needed |= further
    elif "accumulator" in named:
        needed |= further - {"fence"}
    op, where = f"op {lowering.op!r}", f"{where}.extras"
    if needed - named:
        yield where, f"{op} also needs {', '.join(sorted(needed - named))}", {}
    for name in sorted(named - needed - further):
        known = sorted(needed | further)
        remedy = did_you_mean(name, known)
        fields = {"expected": f"of {', '.join(known) or 'none'}", "remedy": remedy}
        yield f"{where}[{name!r}]", f"{op} asks for no such companion", fields


_LOWERING = _fields(
    {
        "name": _WORDS,
        "priority": must(_integer, "must be an int"),
        "requires": items(_CAPABILITY),
        "min_triton": _RELEASE,
        "implement": _PATH,
        "accepts": _or_none(_PATH),
        "gives_up": lambda where, value: _or_none(
            items(_WORDS) if isinstance(value, tuple) and value else _WORDS
        )(where, value),
        "expects": items(must(_is_pattern, "must be a pattern")),
        "extras": _mapping(_WORDS, _PATH),
    }
)


def _lowering(where: str, lowering: Any) -> Faults:
    if not isinstance(lowering, Lowering):
        yield where, "must be a Lowering", {"got": repr(lowering)}
        return
    where = f"{where}: {lowering.op}/{lowering.name}"
    if lowering.op not in OPS:
        fields = {"expected": f"one of {', '.join(sorted(OPS))}"}
        remedy = did_you_mean(lowering.op, OPS)
        yield where, f"{lowering.op!r} is not a portable op", {**fields, "remedy": remedy}
        return
    yield from _LOWERING(where, lowering)
    yield from _extras(where, lowering)


_ARCHITECTURE = both(
    _is(Architecture, "must be an Architecture"),
    _fields(
        {
            "aliases": _is(tuple, "must be a tuple"),
            "spellings": items(_SPELLING),
            "warp_size": must(
                lambda v: _integer(v) and v > 0 and not v & (v - 1), "must be a power of two"
            ),
            "limits": _is(Limits, "must be Limits"),
            "capabilities": both(
                _is(frozenset, "must be a frozenset"),
                lambda where, names: items(_CAPABILITY, list)(where, sorted(map(str, names))),
            ),
            "min_triton": _RELEASE,
        }
    ),
)

_FACETS: Mapping[str, Rule] = {
    "compiler": _facet(
        Compiler,
        {
            "cacheable isolate": _BOOL,
            "derives listings": _SEQUENCE,
            "pointer_range_bits": _or_none(
                must(lambda v: _integer(v) and v >= 2, "must be a number of bits")
            ),
        },
    ),
    "device": _facet(Device, {"tensor_device": _or_none(_WORDS), "raw_pointers": _BOOL}),
    "language": _facet(
        Language,
        {
            "namespace host reference": _or_none(_MODULE),
            "exports": _mapping(_text(r"[^\W\d]\w*", "must be an identifier"), _PATH),
            "descriptors": _mapping(
                _text(r"tensordesc\w*", "heads begin with 'tensordesc'"), _PATH
            ),
            "argument_kinds": items(_PATH, (tuple, list)),
            "lowerings": items(_lowering, (tuple, list)),
        },
    ),
    "simulation": _facet(
        Simulation,
        {
            "unasked machine_code": _BOOL,
            "watches": _SEQUENCE,
            "settings ranks": _or_none(_PATH),
        },
    ),
}

# -- backends -------------------------------------------------------------------------------------


def _backend(origin: str, backend: Backend) -> Faults:
    if backend.api_version != API_VERSION:
        inside = re.search(r"\((\S+) \S+\)", origin)  # 'name' (package 1.0)
        package = inside.group(1) if inside else origin.strip("'")
        newer = isinstance(backend.api_version, int) and backend.api_version > API_VERSION
        message = (
            f"written for contract {backend.api_version!r}, this gluon-core speaks {API_VERSION}"
        )
        remedy = f"Upgrade: pip install --upgrade {'gluon-core' if newer else package}."
        yield "api_version", message, {"remedy": remedy}
    yield from _not_ours("name", backend.name)
    for facet, rule in _FACETS.items():
        yield from rule(facet, getattr(backend, facet))
    if backend.device.raw_pointers and backend.device.tensor_device is None:
        message = "needs a tensor_device: which tensors have addresses?"
        yield "device.raw_pointers", message, {}
    yield from items(_ARCHITECTURE)("architectures", backend.architectures)
    if backend.simulates and backend.architectures:
        message = "a backend that simulates runs kernels for the architectures of the others "
        got = ", ".join(arch.name for arch in backend.architectures)
        yield "architectures", f"{message}and has none of its own", {"got": got}
    if not backend.simulates and not backend.architectures:
        remedy = "List at least one, or give simulation= to run kernels for those of others."
        yield "architectures", "is empty", {"remedy": remedy}
    for index, arch in enumerate(backend.architectures):
        if arch.backend != backend.name:
            where = f"architectures[{index}] {arch.name!r}.backend"
            fields = {"expected": repr(backend.name), "got": repr(arch.backend)}
            yield where, "must be the backend's own name", fields


def _not_ours(where: str, name: str) -> Faults:
    if name in own_modules(CORE):
        yield where, f"gluon_core.{name} is a module of the core", {"remedy": "Rename it."}


def _ties(lowerings: Sequence[Lowering], backends: Sequence[Backend]) -> Faults:
    """Yield the lowerings of one op that share a priority where both fit an architecture."""
    architectures = [arch for backend in backends for arch in backend.architectures]
    for one, other in combinations(lowerings, 2):
        if (one.op, one.priority) != (other.op, other.priority):
            continue
        needed = {*one.requires, *other.requires}
        fits = [f"{a.backend}:{a.name}" for a in architectures if needed <= a.capabilities]
        if fits or not needed:
            both = f"{one.name!r} and {other.name!r} share priority {one.priority} and both fit"
            remedy = "Give one of them another priority."
            where = f"lowerings of {one.op!r}"
            yield where, f"{both} {fits[0] if fits else 'anything'}", {"remedy": remedy}


# -- plugins --------------------------------------------------------------------------------------


def _refuse(origin: str, faults: Faults, backend: Optional[str] = None) -> None:
    """Raise the first fault, if there is one."""
    for where, message, fields in faults:
        of = f", backend {backend!r}" if backend is not None else ""
        error = PluginError(f"plugin {origin}{of}, {where}: {message}", **fields)
        error.backend_name = backend  # type: ignore[attr-defined]
        raise error


def check(by: Contribution) -> None:
    """Raise unless the backends and lowerings of a plugin fit the contract, and agree in themselves.

    Raises:
        PluginError: naming the plugin, the attribute and the offending definition.
    """
    origin, backends = by.origin, by.backends
    _refuse(origin, items(_is(Backend, "not a backend"))("gluon_backends()", backends))
    for backend in backends:
        _refuse(origin, _NAME("Backend.name", backend.name))
        _refuse(origin, _backend(origin, backend), backend.name)
    _refuse(origin, items(_lowering)("gluon_lowerings()", by.lowerings))
    remedy = {"remedy": "Rename one of them."}
    clashes = (clash for clash in Names([by]).clashes() if clash.kind in _WITHIN)
    twice = ((f"{clash.kind}s", clash.text, remedy) for clash in clashes)
    _refuse(origin, twice, backends[-1].name if backends else None)
    everything = [lowering for backend in backends for lowering in backend.language.lowerings]
    _refuse(origin, _ties([*everything, *by.lowerings], backends))


# Hook -> the kind of the names that plugins answer, and the rules of names and paths.
HOOKS: Mapping[str, tuple[str, Rule, Rule]] = {
    "gluon_commands": ("command", _text(r"[a-z][a-z0-9-]*", ""), _PATH),
    "gluon_modules": ("module", _NAME, _MODULE),
    "gluon_services": (
        "service",
        _text(r"[a-z][a-z0-9_.]*", ""),
        _text(rf"{_DOTTED}(:[A-Za-z_]\w*)?", ""),
    ),
}


def check_offers(origin: str, hook: str, pairs: Sequence[Any]) -> Mapping[str, str]:
    """Return name -> path of the answer of the plugin `origin` to one of `HOOKS`.

    Raises:
        PluginError: a name or a path has a wrong form, or is the core's own.
    """
    kind, names, paths = HOOKS[hook]
    for pair in pairs:
        if not isinstance(pair, tuple) or [*names("", pair[0]), *paths("", pair[1])]:
            raise PluginError(
                f"plugin {origin}, {hook}(): must return a mapping of names to paths",
                expected="such as {'name': 'package.module:attribute'}",
                got=repr(pair),
            )
        if kind == "module":
            _refuse(origin, _not_ours(f"{hook}()", pair[0]))
    return dict(pairs)
