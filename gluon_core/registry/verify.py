"""What the registry checks when a plugin registers, so that less breaks when it is called.

Nothing of the plugin is called or imported: attributes, the form of paths, and whether methods take
the arguments that the core passes. What a backend answers is looked at when it does
(`gluon_core.registry.answers`), since that may import Triton; the conformance suite does it all at
once, and loads every path.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence

from gluon_core.errors import PluginError, did_you_mean
from gluon_core.plugin.backend import API_VERSION, Backend, Lowering
from gluon_core.plugin.requests import FURTHER, OPS
from gluon_core.plugin.targets import Architecture, Limits
from gluon_core.registry.claims import key_of
from gluon_core.registry.moved import ALIASES

__all__ = ["check", "check_assemblers"]

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_SPELLING = re.compile(r"[a-z0-9][a-z0-9_.+-]*\Z")
_CAPABILITY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+\Z")
_WORD = r"[A-Za-z_]\w*"
_MODULE = re.compile(rf"{_WORD}(\.{_WORD})*\Z")
_ATTRIBUTE = re.compile(rf"{_WORD}(\.{_WORD})*:{_WORD}\Z")
_HEAD = re.compile(r"tensordesc\w*\Z")

# The methods that a backend with a compiler must define, all of them.
_COMPILER = ("builder", "pipeline", "inspect")
# Every method of the contract -> how many arguments the core passes.
_METHODS = {
    name: len(inspect.signature(method).parameters) - 1
    for name, method in vars(Backend).items()
    if inspect.isfunction(method) and not name.startswith("_")
}


def check(origin: str, backends: Sequence[Any], lowerings: Sequence[Any]) -> None:
    """Raise unless what the plugin `origin` contributes fits the contract, and agrees in itself.

    What other plugins claim as well is settled in `gluon_core.registry.claims`.

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
        _check_architectures(broken, backend)
        _check_spellings(broken, backend, spelled, names)
        _check_exports(broken, backend)
    contributed = [(f"backend {b.name!r}: lowerings", low) for b in backends for low in b.lowerings]
    contributed += [("gluon_lowerings()", low) for low in lowerings]
    known: dict[tuple[str, str], Lowering] = {}
    for where, lowering in contributed:
        _check_lowering(_Broken(origin), where, lowering)
        key = (lowering.op, lowering.name)
        if key in known:
            raise _Broken(origin)(where, f"two lowerings of {key[0]!r} are called {key[1]!r}")
        known[key] = lowering
    _refuse_ties(origin, list(known.values()), [a for b in backends for a in b.architectures])


def check_assemblers(origin: str, pairs: Sequence[Any]) -> None:
    """Raise unless each of what `gluon_assemblers` returned is a dialect and a path."""
    for pair in pairs:
        if (
            not isinstance(pair, tuple)
            or not all(isinstance(part, str) for part in pair)
            or not _ATTRIBUTE.match(pair[1])
        ):
            raise _Broken(origin)(
                "gluon_assemblers()",
                "must map dialects to paths",
                expected='such as {"anvil": "acme.assembly:assemble"}',
                got=repr(pair),
            )


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


def _check_backend(origin: str, backend: Any) -> _Broken:
    if not isinstance(backend, Backend):
        hint = "Return NAME() rather than NAME." if isinstance(backend, type) else None
        raise _Broken(origin)(
            "gluon_backends()",
            "not a backend",
            expected="instances of gluon_core.plugin.backend.Backend",
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
    if name in _reserved():
        raise broken("name", f"gluon_core.{name} is a module of the core", remedy="Rename it.")
    _check_methods(broken, backend)
    _check_attributes(broken, backend)
    return broken


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
    """The names of the core's own modules, and those that they had."""
    core = Path(__file__).parents[1]
    moved = (path.removeprefix("gluon_core.") for path in ALIASES)
    return frozenset((*(found.name for found in pkgutil.iter_modules([str(core)])), *moved))


def _check_methods(broken: _Broken, backend: Backend) -> None:
    kind = type(backend)
    compiles = any(getattr(kind, name) is not getattr(Backend, name) for name in _COMPILER)
    for name, count in _METHODS.items():
        method = getattr(backend, name, None)
        if not callable(method):
            raise broken(name, "must be a method", got=repr(method))
        if compiles and name in _COMPILER and getattr(kind, name) is getattr(Backend, name):
            raise broken(
                name,
                f"{kind.__name__} does not define it",
                expected=_signature(name),
                remedy=f"A backend defines all of {', '.join(_COMPILER)}, or none.",
            )
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


def _check_attributes(broken: _Broken, backend: Backend) -> None:
    for attribute in ("language", "host", "reference"):
        path = getattr(backend, attribute)
        if path is not None and not (isinstance(path, str) and _MODULE.match(path)):
            raise broken(
                attribute, "not a module path", expected="'package.module'", got=repr(path)
            )
    if backend.simulation is not None:
        _check_attribute_path(broken, "simulation", backend.simulation)
    if not isinstance(backend.descriptors, Mapping):
        raise broken("descriptors", "must be a mapping", got=repr(backend.descriptors))
    for head, path in backend.descriptors.items():
        where = f"descriptors[{head!r}]"
        if not isinstance(head, str) or not _HEAD.match(head):
            raise broken(where, "heads begin with 'tensordesc'", got=repr(head))
        _check_attribute_path(broken, where, path)
    if not isinstance(backend.argument_kinds, (tuple, list)):
        raise broken("argument_kinds", "must be a sequence", got=repr(backend.argument_kinds))
    for index, path in enumerate(backend.argument_kinds):
        _check_attribute_path(broken, f"argument_kinds[{index}]", path)
    for attribute in (
        "cacheable",
        "isolate",
        "machine_code",
        "raw_pointers",
        "simulates",
        "unasked",
    ):
        if not isinstance(getattr(backend, attribute), bool):
            raise broken(attribute, "must be a bool", got=repr(getattr(backend, attribute)))
    device = backend.tensor_device
    if device is not None and not (isinstance(device, str) and device):
        raise broken(
            "tensor_device", "must be a device type", expected="such as 'cpu'", got=repr(device)
        )
    if backend.raw_pointers and device is None:
        raise broken("raw_pointers", "needs a tensor_device: whose tensors have the addresses?")
    bits = backend.pointer_range_bits
    if bits is not None and (not isinstance(bits, int) or isinstance(bits, bool) or bits < 2):
        raise broken("pointer_range_bits", "must be a number of bits", got=repr(bits))
    if not isinstance(backend.lowerings, (tuple, list)):
        raise broken("lowerings", "must be a sequence", got=repr(backend.lowerings))


def _check_architectures(broken: _Broken, backend: Backend) -> None:
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
        return
    if not found:
        raise broken(
            "architectures",
            "is empty",
            remedy="List at least one, or set simulates = True to stand in for all others.",
        )
    for index, arch in enumerate(found):
        where = f"architectures[{index}]"
        if not isinstance(arch, Architecture):
            raise broken(where, "must be an Architecture", got=repr(arch))
        _check_architecture(broken, f"{where} {arch.name!r}", backend, arch)


def _check_spellings(
    broken: _Broken,
    backend: Backend,
    spelled: dict[str, Architecture],
    names: Mapping[str, Any],
) -> None:
    """No word means two things within a plugin; `spelled` gets the words of this backend."""
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


def _check_architecture(broken: _Broken, where: str, backend: Backend, arch: Architecture) -> None:
    if arch.backend != backend.name:
        raise broken(
            f"{where}.backend",
            "must be the backend's own name",
            expected=repr(backend.name),
            got=repr(arch.backend),
        )
    if not isinstance(arch.aliases, tuple):
        raise broken(f"{where}.aliases", "must be a tuple", got=repr(arch.aliases))
    for spelling in arch.spellings:
        if not isinstance(spelling, str) or not _SPELLING.match(spelling):
            raise broken(
                f"{where}.aliases",
                "a spelling is lower case letters, digits, '_', '-', '.' or '+'",
                got=repr(spelling),
            )
    if (
        not isinstance(arch.warp_size, int)
        or arch.warp_size < 1
        or arch.warp_size & (arch.warp_size - 1)
    ):
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


def _check_exports(broken: _Broken, backend: Backend) -> None:
    if not isinstance(backend.exports, Mapping):
        raise broken("exports", "must be a mapping", got=repr(backend.exports))
    for name, path in backend.exports.items():
        where = f"exports[{name!r}]"
        if not isinstance(name, str) or not name.isidentifier():
            raise broken(where, "must be an identifier", got=repr(name))
        _check_attribute_path(broken, where, path)


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (TypeError, re.error):
        return False
    return isinstance(value, str)


def _check_attribute_path(broken: _Broken, where: str, path: Any) -> None:
    if not isinstance(path, str) or not _ATTRIBUTE.match(path):
        raise broken(where, "not a path", expected="'package.module:attribute'", got=repr(path))


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
    if not isinstance(lowering.expects, tuple) or not all(map(_is_pattern, lowering.expects)):
        raise broken(f"{where}.expects", "must be a tuple of patterns", got=repr(lowering.expects))
    if not isinstance(lowering.extras, Mapping):
        raise broken(f"{where}.extras", "must be a mapping", got=repr(lowering.extras))
    for name, path in lowering.extras.items():
        _check_attribute_path(broken, f"{where}.extras[{name!r}]", path)
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
    """No two lowerings of one op and priority may fit one architecture of the same plugin."""
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
