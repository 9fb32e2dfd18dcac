"""What the registry checks when a plugin registers, so that nothing breaks when it is called.

`add` is pure: it answers a new `State`, or raises and leaves the old one as it was, so a refused
plugin leaves nothing behind.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Mapping, Optional, Sequence

from gluon_core.backend import API_VERSION, Backend, Lowering
from gluon_core.errors import PluginError, did_you_mean
from gluon_core.portable import OPS
from gluon_core.targets import Architecture, Limits

__all__ = ["State", "add", "key_of"]

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_SPELLING = re.compile(r"[a-z0-9][a-z0-9_.+-]*\Z")
_CAPABILITY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+\Z")
_WORD = r"[A-Za-z_]\w*"
_MODULE = re.compile(rf"{_WORD}(\.{_WORD})*\Z")
_ATTRIBUTE = re.compile(rf"{_WORD}(\.{_WORD})*:{_WORD}\Z")

# The methods that a backend must define itself.
_REQUIRED = ("options", "builder", "pipeline", "launcher", "inspect")
# Every method of the contract -> how many arguments the core passes.
_METHODS = {
    name: len(inspect.signature(method).parameters) - 1
    for name, method in vars(Backend).items()
    if inspect.isfunction(method) and not name.startswith("_")
}


@dataclass(frozen=True)
class State:
    """What the accepted plugins contributed; each value beside the plugin it came from."""

    backends: Mapping[str, tuple[Backend, str]] = field(default_factory=dict)
    architectures: tuple[Architecture, ...] = ()
    spellings: Mapping[str, tuple[Architecture, str]] = field(default_factory=dict)
    lowerings: Mapping[tuple[str, str], tuple[Lowering, str]] = field(default_factory=dict)
    exports: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def key_of(spelling: str) -> str:
    """`SM_90`, `sm-90` and `sm90` are one spelling."""
    return spelling.strip().lower().replace("_", "").replace("-", "")


def add(
    state: State, origin: str, backends: Sequence[Any], lowerings: Sequence[Any]
) -> State:
    """`state` with what the plugin `origin` contributes.

    Raises:
        PluginError: naming the plugin, the attribute and the offending definition.
    """
    for backend in backends:
        state = _add_backend(state, origin, backend)
    contributed = [(f"backend {b.name!r}: lowerings", low) for b in backends for low in b.lowerings]
    contributed += [("gluon_lowerings()", low) for low in lowerings]
    for where, lowering in contributed:
        state = _add_lowering(state, origin, where, lowering)
    _refuse_ties(state, origin)
    return state


class _Broken:
    """Raises for one plugin and backend, in the order plugin, attribute, definition."""

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


def _add_backend(state: State, origin: str, backend: Any) -> State:
    if not isinstance(backend, Backend):
        hint = "Return NAME() rather than NAME." if isinstance(backend, type) else None
        raise _Broken(origin)(
            "gluon_backends()",
            "not a backend",
            expected="instances of gluon_core.backend.Backend",
            got=repr(backend),
            remedy=hint and hint.replace("NAME", backend.__name__),
        )
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or not _NAME.match(name):
        raise _Broken(origin)(
            f"{type(backend).__name__}.name",
            "must be a lower-case identifier",
            got=repr(name),
        )
    broken = _Broken(origin, name)
    _check_version(broken, backend)
    if name in state.backends:
        raise broken(
            "name",
            f"two plugins contribute a backend {name!r}: {state.backends[name][1]} and {origin}",
            remedy="Uninstall one of them, or choose with GLUON_PLUGINS.",
        )
    if name in _reserved():
        raise broken("name", f"gluon_core.{name} is a module of the core", remedy="Rename it.")
    _check_methods(broken, backend)
    _check_paths(broken, backend)
    state = replace(state, backends={**state.backends, name: (backend, origin)})
    state = _add_architectures(state, broken, backend)
    return _add_exports(state, broken, backend)


def _check_version(broken: _Broken, backend: Backend) -> None:
    theirs = backend.api_version
    if theirs == API_VERSION:
        return
    newer = isinstance(theirs, int) and theirs > API_VERSION
    raise broken(
        "api_version",
        f"written for contract {theirs!r}, this gluon-core speaks {API_VERSION}",
        remedy=(
            "Install a newer core: pip install --upgrade gluon-core."
            if newer
            else "Install a newer release of that plugin: pip install --upgrade "
            f"{_distribution(broken.origin)}."
        ),
    )


def _distribution(origin: str) -> str:
    """The package name inside `'name' (package 1.0)`, else the plugin's own name."""
    inside = re.search(r"\((\S+) \S+\)", origin)
    return inside.group(1) if inside else origin.strip("'")


def _reserved() -> frozenset[str]:
    import pkgutil

    import gluon_core

    return frozenset(found.name for found in pkgutil.iter_modules(gluon_core.__path__))


def _check_methods(broken: _Broken, backend: Backend) -> None:
    kind = type(backend)
    for name, count in _METHODS.items():
        method = getattr(backend, name, None)
        if not callable(method):
            raise broken(name, "must be a method", got=repr(method))
        if name in _REQUIRED and getattr(kind, name, None) is getattr(Backend, name):
            raise broken(name, f"{kind.__name__} does not define it", expected=_signature(name))
        try:
            inspect.signature(method).bind(*range(count))
        except TypeError as error:
            raise broken(
                name,
                f"cannot be called as the core calls it: {error}",
                expected=_signature(name),
                got=f"{name}{inspect.signature(method)}",
            ) from None
        except ValueError:  # no signature to check, as for a C function
            continue


def _signature(name: str) -> str:
    parameters = list(inspect.signature(getattr(Backend, name)).parameters)[1:]
    return f"{name}({', '.join(parameters)})"


def _check_paths(broken: _Broken, backend: Backend) -> None:
    for attribute in ("language", "host", "reference"):
        path = getattr(backend, attribute)
        if path is not None and not (isinstance(path, str) and _MODULE.match(path)):
            raise broken(
                attribute, "not a module path", expected="'package.module'", got=repr(path)
            )
    path = backend.simulation
    if path is not None and not (isinstance(path, str) and _ATTRIBUTE.match(path)):
        raise broken("simulation", "not a path", expected="'package.module:name'", got=repr(path))
    if not isinstance(backend.descriptors, Mapping):
        raise broken("descriptors", "must be a mapping", got=repr(backend.descriptors))
    for head, path in backend.descriptors.items():
        _check_attribute_path(broken, f"descriptors[{head!r}]", path)
    for attribute in ("cacheable", "simulates"):
        if not isinstance(getattr(backend, attribute), bool):
            raise broken(attribute, "must be a bool", got=repr(getattr(backend, attribute)))
    if not isinstance(backend.lowerings, (tuple, list)):
        raise broken("lowerings", "must be a sequence", got=repr(backend.lowerings))


def _add_architectures(state: State, broken: _Broken, backend: Backend) -> State:
    found = backend.architectures
    if not isinstance(found, tuple):
        raise broken("architectures", "must be a tuple", got=type(found).__name__)
    if backend.simulates:
        if found:
            raise broken(
                "architectures",
                "a backend that simulates stands in for the architectures of the others "
                "and has none of its own",
                got=", ".join(str(getattr(a, "name", a)) for a in found),
            )
        other = next((n for n, (b, _) in state.backends.items() if b.simulates and b is not backend), None)
        if other is not None:
            raise broken(
                "simulates",
                f"backend {other!r} of plugin {state.backends[other][1]} simulates already",
                remedy="Choose one with GLUON_PLUGINS.",
            )
        return state
    if not found:
        raise broken(
            "architectures",
            "is empty",
            remedy="List at least one, or set simulates = True to stand in for all others.",
        )
    spellings = dict(state.spellings)
    for index, arch in enumerate(found):
        where = f"architectures[{index}]"
        if not isinstance(arch, Architecture):
            raise broken(where, "must be an Architecture", got=repr(arch))
        where += f" {arch.name!r}"
        _check_architecture(broken, where, backend, arch)
        for spelling in arch.spellings:
            other_arch, other_origin = spellings.get(key_of(spelling), (arch, ""))
            if other_arch is not arch:
                raise broken(
                    where,
                    f"the spelling {spelling!r} is claimed twice: by {other_arch.backend}:"
                    f"{other_arch.name} (plugin {other_origin}) and by {arch.backend}:{arch.name} "
                    f"(plugin {broken.origin})",
                    remedy="Rename the alias, or choose plugins with GLUON_PLUGINS.",
                )
            spellings[key_of(spelling)] = (arch, broken.origin)
    clash = next((n for n in state.backends if key_of(n) in spellings), None)
    if clash is not None:
        arch, owner = spellings[key_of(clash)]
        raise broken(
            "architectures",
            f"{clash!r} is both a backend (plugin {state.backends[clash][1]}) and a spelling of "
            f"{arch.backend}:{arch.name} (plugin {owner})",
            remedy="Rename one of them.",
        )
    return replace(state, spellings=spellings, architectures=(*state.architectures, *found))


def _check_architecture(
    broken: _Broken, where: str, backend: Backend, arch: Architecture
) -> None:
    if arch.backend != backend.name:
        raise broken(f"{where}.backend", "must be the backend's own name", expected=repr(backend.name), got=repr(arch.backend))
    if not isinstance(arch.aliases, tuple):
        raise broken(f"{where}.aliases", "must be a tuple", got=repr(arch.aliases))
    for spelling in arch.spellings:
        if not isinstance(spelling, str) or not _SPELLING.match(spelling):
            raise broken(
                f"{where}.aliases",
                "a spelling is lower case letters, digits, '_', '-', '.' or '+'",
                got=repr(spelling),
            )
    if not isinstance(arch.warp_size, int) or arch.warp_size < 1 or arch.warp_size & (arch.warp_size - 1):
        raise broken(f"{where}.warp_size", "must be a power of two", got=repr(arch.warp_size))
    if not isinstance(arch.limits, Limits):
        raise broken(f"{where}.limits", "must be Limits", got=repr(arch.limits))
    if not isinstance(arch.capabilities, frozenset):
        raise broken(f"{where}.capabilities", "must be a frozenset", got=repr(arch.capabilities))
    _check_capabilities(broken, f"{where}.capabilities", sorted(map(str, arch.capabilities)))
    _check_min_triton(broken, f"{where}.min_triton", arch.min_triton)


def _check_capabilities(broken: _Broken, where: str, capabilities: Iterable[Any]) -> None:
    for capability in capabilities:
        if not isinstance(capability, str) or not _CAPABILITY.match(capability):
            raise broken(
                where,
                "a capability is a dotted lower-case name",
                expected="for example 'vendor.unit'",
                got=repr(capability),
            )


def _check_min_triton(broken: _Broken, where: str, version: Any) -> None:
    good = isinstance(version, tuple) and len(version) == 2
    if not good or not all(isinstance(part, int) for part in version):
        raise broken(where, "must be (major, minor)", got=repr(version))


def _add_exports(state: State, broken: _Broken, backend: Backend) -> State:
    exports = dict(state.exports)
    if not isinstance(backend.exports, Mapping):
        raise broken("exports", "must be a mapping", got=repr(backend.exports))
    for name, path in backend.exports.items():
        where = f"exports[{name!r}]"
        if not isinstance(name, str) or not name.isidentifier():
            raise broken(where, "must be an identifier", got=repr(name))
        _check_attribute_path(broken, where, path)
        if name in exports:
            raise broken(
                where,
                f"gl.{name} is claimed twice: by plugin {exports[name][1]} and by plugin "
                f"{broken.origin}",
            )
        exports[name] = (path, broken.origin)
    return replace(state, exports=exports)


def _check_attribute_path(broken: _Broken, where: str, path: Any) -> None:
    if not isinstance(path, str) or not _ATTRIBUTE.match(path):
        raise broken(
            where, "not a path", expected="'package.module:attribute'", got=repr(path)
        )


def _add_lowering(state: State, origin: str, where: str, lowering: Any) -> State:
    broken = _Broken(origin)
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
    if not isinstance(lowering.name, str) or not lowering.name:
        raise broken(f"{where}.name", "must be a non-empty string", got=repr(lowering.name))
    if not isinstance(lowering.priority, int):
        raise broken(f"{where}.priority", "must be an int", got=repr(lowering.priority))
    if not isinstance(lowering.requires, tuple):
        raise broken(f"{where}.requires", "must be a tuple", got=repr(lowering.requires))
    _check_capabilities(broken, f"{where}.requires", lowering.requires)
    _check_min_triton(broken, f"{where}.min_triton", lowering.min_triton)
    _check_attribute_path(broken, f"{where}.implement", lowering.implement)
    if lowering.accepts is not None:
        _check_attribute_path(broken, f"{where}.accepts", lowering.accepts)
    given = lowering.gives_up
    texts = (given,) if isinstance(given, str) else given
    if texts is not None and not (
        isinstance(texts, tuple) and texts and all(isinstance(t, str) and t for t in texts)
    ):
        raise broken(f"{where}.gives_up", "must be text", got=repr(lowering.gives_up))
    for name, path in lowering.extras.items():
        _check_attribute_path(broken, f"{where}.extras[{name!r}]", path)
    missing = sorted(OPS[lowering.op] - set(lowering.extras))
    if missing:
        raise broken(f"{where}.extras", f"op {lowering.op!r} also needs {', '.join(missing)}")
    key = (lowering.op, lowering.name)
    if key in state.lowerings:
        raise broken(
            where,
            f"two lowerings of {lowering.op!r} are called {lowering.name!r}: one of plugin "
            f"{state.lowerings[key][1]}, one of plugin {origin}",
            remedy="Rename one of them.",
        )
    return replace(state, lowerings={**state.lowerings, key: (lowering, origin)})


def _refuse_ties(state: State, origin: str) -> None:
    """No two lowerings of one op and priority may fit one architecture: the choice would depend on
    the order in which plugins happen to load."""
    groups: dict[tuple[str, int], list[tuple[Lowering, str]]] = {}
    for lowering, owner in state.lowerings.values():
        groups.setdefault((lowering.op, lowering.priority), []).append((lowering, owner))
    for (op, priority), group in groups.items():
        for i, (one, owner) in enumerate(group):
            for other, other_owner in group[i + 1 :]:
                needed = {*one.requires, *other.requires}
                arch = next((a for a in state.architectures if needed <= a.capabilities), None)
                if arch is None and needed:
                    continue
                where = f"both can fit {arch.backend}:{arch.name}" if arch else "both fit anything"
                raise _Broken(origin)(
                    f"lowerings of {op!r}",
                    f"{one.name!r} (plugin {owner}) and {other.name!r} (plugin {other_owner}) "
                    f"share priority {priority} and {where}",
                    remedy="Give one of them another priority.",
                )
