"""The checks of a plugin when it registers, so that less breaks when it is called.

Nothing of the plugin is called or imported: attributes, the form of paths, and whether methods take
the arguments that the core passes. The answers of a backend are checked when it gives them
(`gluon_core.registry.answers`), since that may import Triton; the conformance suite does it all at
once, and loads every path.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from gluon_core.errors import PluginError, did_you_mean
from gluon_core.plugin.backend import API_VERSION, Backend
from gluon_core.plugin.compiler import Compiler
from gluon_core.plugin.device import Device
from gluon_core.plugin.language import FURTHER, OPS, Language, Lowering
from gluon_core.plugin.simulation import Simulation
from gluon_core.plugin.targets import Architecture, Limits
from gluon_core.registry.names import key_of
from gluon_core.registry.offers import HOOKS

__all__ = ["check", "check_offers"]

_WORD = r"[A-Za-z_]\w*"


class _Form(NamedTuple):
    """The values that an attribute may have: a predicate, and the same in words."""

    holds: Callable[[Any], bool]
    words: str

    def optional(self) -> _Form:
        return _Form(lambda value: value is None or self.holds(value), self.words)


def _text(pattern: str, words: str) -> _Form:
    compiled = re.compile(pattern + r"\Z")
    return _Form(lambda v: isinstance(v, str) and compiled.match(v) is not None, words)


def _tuple_of(each: _Form) -> _Form:
    return _Form(lambda v: isinstance(v, tuple) and all(map(each.holds, v)), each.words)


def _pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (TypeError, re.error):
        return False
    return isinstance(value, str)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_NAME = _text(r"[a-z][a-z0-9_]*", "must be a lower-case identifier")
_SPELLING = _text(
    r"[a-z0-9][a-z0-9_.+-]*",
    "a spelling is lower case letters, digits, '_', '-', '.' or '+'",
)
_CAPABILITY = _text(
    r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+",
    "a capability is a dotted lower-case name such as 'vendor.unit'",
)
_MODULE = _text(rf"{_WORD}(\.{_WORD})*", "not a module path such as 'package.module'")
_PATH = _text(rf"{_WORD}(\.{_WORD})*:{_WORD}", "not a path such as 'package.module:attribute'")
_HEAD = _text(r"tensordesc\w*", "heads begin with 'tensordesc'")
_WORDS = _text(r".+", "must be text")
_BOOL = _Form(lambda v: isinstance(v, bool), "must be a bool")
_SEQUENCE = _Form(lambda v: isinstance(v, (tuple, list)), "must be a sequence")
_MAPPING = _Form(lambda v: isinstance(v, Mapping), "must be a mapping")
_TUPLE = _Form(lambda v: isinstance(v, tuple), "must be a tuple")
_RELEASE = _Form(
    lambda v: isinstance(v, tuple) and len(v) == 2 and all(map(_integer, v)),
    "must be (major, minor)",
)

_FACETS: Mapping[str, type] = {
    "compiler": Compiler,
    "device": Device,
    "language": Language,
    "simulation": Simulation,
}
_BITS = _Form(lambda v: _integer(v) and v >= 2, "must be a number of bits")
_DEVICE = _text(r".+", "must be a device type such as 'cpu'")


def _each(form: _Form, names: str) -> dict[str, _Form]:
    return dict.fromkeys(names.split(), form)


_FIELDS: Mapping[str, Mapping[str, _Form]] = {
    "compiler": {
        **_each(_BOOL, "cacheable isolate"),
        **_each(_SEQUENCE, "derives listings"),
        "pointer_range_bits": _BITS.optional(),
    },
    "device": {"tensor_device": _DEVICE.optional(), "raw_pointers": _BOOL},
    "language": {
        **_each(_MODULE.optional(), "namespace host reference"),
        **_each(_MAPPING, "exports descriptors"),
        **_each(_SEQUENCE, "argument_kinds lowerings"),
    },
    "simulation": {
        **_each(_BOOL, "unasked machine_code"),
        "watches": _SEQUENCE,
        **_each(_PATH.optional(), "settings ranks"),
    },
}
_ARCHITECTURE: Mapping[str, _Form] = {
    "aliases": _TUPLE,
    "spellings": _tuple_of(_SPELLING),
    "warp_size": _Form(
        lambda v: _integer(v) and v > 0 and not v & (v - 1), "must be a power of two"
    ),
    "limits": _Form(lambda v: isinstance(v, Limits), "must be Limits"),
    "capabilities": _Form(lambda v: isinstance(v, frozenset), "must be a frozenset"),
    "min_triton": _RELEASE,
}
_LOWERING: Mapping[str, _Form] = {
    "name": _WORDS,
    "priority": _Form(_integer, "must be an int"),
    "requires": _TUPLE,
    "min_triton": _RELEASE,
    "implement": _PATH,
    "accepts": _PATH.optional(),
    "gives_up": _Form(
        lambda v: v is None or _WORDS.holds(v) or (bool(v) and _tuple_of(_WORDS).holds(v)),
        "must be text",
    ),
    "expects": _tuple_of(_Form(_pattern, "must be a tuple of patterns")),
    "extras": _MAPPING,
}

# Hook -> the forms of its names and of its paths.
_OFFERS: Mapping[str, tuple[_Form, _Form]] = {
    "gluon_commands": (_text(r"[a-z][a-z0-9-]*", ""), _PATH),
    "gluon_modules": (_text(r"[a-z][a-z0-9_]*", ""), _MODULE),
    "gluon_services": (
        _text(r"[a-z][a-z0-9_.]*", ""),
        _Form(lambda v: _PATH.holds(v) or _MODULE.holds(v), ""),
    ),
}

# The methods that a compiler must define, all of them.
_COMPILER = ("builder", "pipeline", "inspect")


def check(origin: str, backends: Sequence[Any], lowerings: Sequence[Any]) -> None:
    """Raise unless the contributions of the plugin `origin` fit the contract, and agree in themselves.

    Names that other plugins claim as well are the business of `gluon_core.registry.names`.

    Raises:
        PluginError: naming the plugin, the attribute and the offending definition.
    """
    names: dict[str, Any] = {}
    spelled: dict[str, Architecture] = {}
    for backend in backends:
        broken = _check_backend(origin, backend)
        if backend.name in names:
            raise broken("name", f"two backends of this plugin are called {backend.name!r}")
        names[backend.name] = backend
        _check_spellings(broken, backend, spelled, names)
    contributed = [
        (f"backend {b.name!r}: language.lowerings", low)
        for b in backends
        for low in b.language.lowerings
    ]
    contributed += [("gluon_lowerings()", low) for low in lowerings]
    known: dict[tuple[str, str], Lowering] = {}
    for where, lowering in contributed:
        _check_lowering(_Broken(origin), where, lowering)
        key = (lowering.op, lowering.name)
        if key in known:
            raise _Broken(origin)(where, f"two lowerings of {key[0]!r} are called {key[1]!r}")
        known[key] = lowering
    _refuse_ties(origin, list(known.values()), [a for b in backends for a in b.architectures])


def check_offers(
    origin: str, answers: Mapping[str, Sequence[Any]]
) -> Mapping[str, Mapping[str, str]]:
    """Return kind -> name -> path of what the plugin `origin` answered to `offers.HOOKS`.

    Raises:
        PluginError: a name or a path has a wrong form, or is the core's own.
    """
    offers: dict[str, dict[str, str]] = {}
    for hook, pairs in answers.items():
        names, paths = _OFFERS[hook]
        for pair in pairs:
            good = isinstance(pair, tuple) and names.holds(pair[0]) and paths.holds(pair[1])
            if not good:
                raise _Broken(origin)(
                    f"{hook}()",
                    "must return a mapping of names to paths",
                    expected="such as {'name': 'package.module:attribute'}",
                    got=repr(pair),
                )
            offers.setdefault(HOOKS[hook], {})[pair[0]] = pair[1]
    own = sorted({*offers.get("module", ())} & _reserved())
    if own:
        raise _Broken(origin)(
            "gluon_modules()", f"gluon_core.{own[0]} exists already", remedy="Rename it."
        )
    return offers


class _Broken:
    """Makes the errors of one plugin and backend, in the order plugin, attribute, definition."""

    def __init__(self, origin: str, backend: Optional[str] = None):
        self.origin = origin
        self.backend = backend

    def __call__(self, attribute: str, message: str, **fields: Any) -> PluginError:
        head = f"plugin {self.origin}"
        if self.backend is not None:
            head += f", backend {self.backend!r}"
        error = PluginError(f"{head}, {attribute}: {message}", **fields)
        error.backend_name = self.backend  # type: ignore[attr-defined]
        return error

    def unless(self, form: _Form, where: str, value: Any) -> None:
        if not form.holds(value):
            raise self(where, form.words, got=repr(value))

    def unless_all(self, forms: Mapping[str, _Form], where: str, holder: Any) -> None:
        for name, form in forms.items():
            self.unless(form, f"{where}.{name}", getattr(holder, name))


def _check_backend(origin: str, backend: Any) -> _Broken:
    if not isinstance(backend, Backend):
        raise _Broken(origin)(
            "gluon_backends()",
            "not a backend",
            expected="instances of gluon_core.plugin.backend.Backend",
            got=repr(backend),
        )
    _Broken(origin).unless(_NAME, "Backend.name", backend.name)
    broken = _Broken(origin, backend.name)
    _check_version(broken, backend)
    if backend.name in _reserved():
        raise broken(
            "name", f"gluon_core.{backend.name} is a module of the core", remedy="Rename it."
        )
    for facet, kind in _FACETS.items():
        value = getattr(backend, facet)
        if not isinstance(value, kind):
            raise broken(facet, f"must be a {kind.__name__}", got=repr(value))
        _check_methods(broken, facet, kind, value)
        broken.unless_all(_FIELDS[facet], facet, value)
    _check_language(broken, backend.language)
    if backend.device.raw_pointers and backend.device.tensor_device is None:
        raise broken("device.raw_pointers", "needs a tensor_device: which tensors have addresses?")
    _check_architectures(broken, backend)
    return broken


def _check_version(broken: _Broken, backend: Backend) -> None:
    theirs = backend.api_version
    if theirs == API_VERSION:
        return
    inside = re.search(r"\((\S+) \S+\)", broken.origin)  # 'name' (package 1.0)
    package = inside.group(1) if inside else broken.origin.strip("'")
    newer = isinstance(theirs, int) and theirs > API_VERSION
    raise broken(
        "api_version",
        f"written for contract {theirs!r}, this gluon-core speaks {API_VERSION}",
        remedy=f"Upgrade: pip install --upgrade {'gluon-core' if newer else package}.",
    )


@functools.cache
def _reserved() -> frozenset[str]:
    """Return the names of the core's own modules."""
    core = Path(__file__).parents[1]
    return frozenset(module.name for module in pkgutil.iter_modules([str(core)]))


def _check_methods(broken: _Broken, facet: str, base: type, value: Any) -> None:
    """Raise unless the core can call each method of a facet, and a compiler is whole."""
    kind = type(value)
    compiles = any(getattr(kind, name, None) is not vars(Compiler)[name] for name in _COMPILER)
    for name, declared in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(declared):
            continue
        where = f"{facet}.{name}"
        parameters = list(inspect.signature(declared).parameters)[1:]
        signature = f"{name}({', '.join(parameters)})"
        method = getattr(value, name)
        if not callable(method):
            raise broken(where, "must be a method", got=repr(method))
        if base is Compiler and compiles and name in _COMPILER and getattr(kind, name) is declared:
            raise broken(
                where,
                f"{kind.__name__} does not define it",
                expected=signature,
                remedy=f"A compiler defines all of {', '.join(_COMPILER)}, or none.",
            )
        try:
            inspect.signature(method).bind(*range(len(parameters)))
        except TypeError as error:
            raise broken(
                where,
                f"cannot be called as the core calls it: {error}",
                expected=signature,
                got=f"{name}{inspect.signature(method)}",
            ) from None
        except ValueError:  # no signature to check, as for a C function
            continue


def _check_language(broken: _Broken, language: Language) -> None:
    for name, path in language.exports.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise broken(f"language.exports[{name!r}]", "must be an identifier", got=repr(name))
        broken.unless(_PATH, f"language.exports[{name!r}]", path)
    for head, path in language.descriptors.items():
        broken.unless(_HEAD, f"language.descriptors[{head!r}]", head)
        broken.unless(_PATH, f"language.descriptors[{head!r}]", path)
    for index, path in enumerate(language.argument_kinds):
        broken.unless(_PATH, f"language.argument_kinds[{index}]", path)


def _check_architectures(broken: _Broken, backend: Backend) -> None:
    known = backend.architectures
    broken.unless(_TUPLE, "architectures", known)
    if backend.simulates and known:
        raise broken(
            "architectures",
            "a backend that simulates runs kernels for the architectures of the others "
            "and has none of its own",
            got=", ".join(str(getattr(a, "name", a)) for a in known),
        )
    if not known and not backend.simulates:
        raise broken(
            "architectures",
            "is empty",
            remedy="List at least one, or give simulation= to run kernels for those of others.",
        )
    for index, arch in enumerate(known):
        where = f"architectures[{index}]"
        if not isinstance(arch, Architecture):
            raise broken(where, "must be an Architecture", got=repr(arch))
        where = f"{where} {arch.name!r}"
        if arch.backend != backend.name:
            raise broken(
                f"{where}.backend",
                "must be the backend's own name",
                expected=repr(backend.name),
                got=repr(arch.backend),
            )
        broken.unless_all(_ARCHITECTURE, where, arch)
        for capability in sorted(map(str, arch.capabilities)):
            broken.unless(_CAPABILITY, f"{where}.capabilities", capability)


def _check_spellings(
    broken: _Broken,
    backend: Backend,
    spelled: dict[str, Architecture],
    names: Mapping[str, Any],
) -> None:
    """Raise if a word means two things within a plugin; `spelled` gets the words of this backend."""
    for index, arch in enumerate(backend.architectures):
        where = f"architectures[{index}] {arch.name!r}"
        for spelling in arch.spellings:
            other = spelled.setdefault(key_of(spelling), arch)
            if other is not arch:
                raise broken(
                    where,
                    f"the spelling {spelling!r} is claimed twice: by {other.backend}:{other.name} "
                    f"and by {arch.backend}:{arch.name}",
                    remedy="Rename one of them.",
                )
    for name in names:
        arch_of = spelled.get(key_of(name))
        if arch_of is not None:
            raise broken(
                "architectures",
                f"{name!r} is both a backend and a spelling of {arch_of.backend}:{arch_of.name}",
                remedy="Rename one of them.",
            )


def _check_lowering(broken: _Broken, where: str, lowering: Any) -> None:
    if not isinstance(lowering, Lowering):
        raise broken(where, "must be a Lowering", got=repr(lowering))
    where = f"{where}: {lowering.op}/{lowering.name}"
    if lowering.op not in OPS:
        raise broken(
            where,
            f"{lowering.op!r} is not a portable op",
            expected=f"one of {', '.join(sorted(OPS))}",
            remedy=did_you_mean(lowering.op, OPS),
        )
    broken.unless_all(_LOWERING, where, lowering)
    for capability in lowering.requires:
        broken.unless(_CAPABILITY, f"{where}.requires", capability)
    for name, path in lowering.extras.items():
        broken.unless(_PATH, f"{where}.extras[{name!r}]", path)
    named, needed = set(lowering.extras), set(OPS[lowering.op])
    further = FURTHER.get(lowering.op, frozenset())
    if "accumulator" in named:
        needed |= further - {"fence"}
    if "open" in named:
        needed |= further
    missing = sorted(needed - named)
    if missing:
        raise broken(f"{where}.extras", f"op {lowering.op!r} also needs {', '.join(missing)}")
    for name in sorted(named - needed - further):
        raise broken(
            f"{where}.extras[{name!r}]",
            f"op {lowering.op!r} asks for no such companion",
            expected=f"of {', '.join(sorted(needed | further)) or 'none'}",
            remedy=did_you_mean(name, needed | further),
        )


def _refuse_ties(
    origin: str, lowerings: Sequence[Lowering], architectures: Sequence[Architecture]
) -> None:
    """Raise if two lowerings of one op and priority fit one architecture of the same plugin."""
    for i, one in enumerate(lowerings):
        for other in lowerings[i + 1 :]:
            if (one.op, one.priority) != (other.op, other.priority):
                continue
            needed = {*one.requires, *other.requires}
            arch = next((a for a in architectures if needed <= a.capabilities), None)
            if arch is None and needed:
                continue
            where = f"both can fit {arch.backend}:{arch.name}" if arch else "both fit anything"
            raise _Broken(origin)(
                f"lowerings of {one.op!r}",
                f"{one.name!r} and {other.name!r} share priority {one.priority} and {where}",
                remedy="Give one of them another priority.",
            )
