"""The attributes of a backend, and the paths that it names."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from typing import Any, Iterator

import pytest

from gluon_core import _triton, language
from gluon_core.errors import CapabilityError, GluonError, OptionError
from gluon_core.plugin.backend import API_VERSION
from gluon_core.plugin.builder import Builder
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.language import TAKES, Lowering
from gluon_core.plugin.launcher import checked_kind
from gluon_core.plugin.paths import load_named
from gluon_core.plugin.targets import Architecture, Target
from gluon_core.portable.selection import code
from gluon_core.registry.load import registry
from gluon_core.registry.verify import checked
from gluon_core.testing.declared import members

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_identity(backend: Any) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", backend.name)
    assert backend.api_version == API_VERSION
    assert backend.simulates or backend.architectures


def test_architectures(backend: Any) -> None:
    names = [name for arch in backend.architectures for name in arch.spellings]
    assert len(names) == len(set(names))
    for arch in backend.architectures:
        assert isinstance(arch, Architecture) and arch.backend == backend.name
        assert arch.warp_size > 0 and not arch.warp_size & (arch.warp_size - 1)
        assert arch.limits.shared_memory > 0 and arch.limits.max_warps > 0
        assert all(capability.count(".") >= 1 for capability in arch.capabilities)
        for spelling in arch.spellings:
            assert registry().target(f"{backend.name}:{spelling}") == Target(backend.name, arch)


def test_device(backend: Any) -> None:
    target = backend.device.target()
    assert target is None or (isinstance(target, Target) and target.backend == backend.name)
    problem = backend.device.problem()
    assert problem is None or (isinstance(problem, str) and problem)


def test_options(backend: Any, target: Target) -> None:
    options = checked(backend, "options", backend.compiler.options(target, {}))
    again = backend.compiler.options(target, {"num_warps": options.num_warps})
    assert options.num_warps == again.num_warps and repr(options) == repr(again)
    hashed = getattr(options, "hash", None)
    assert hashed is None or isinstance(hashed(), str)
    with pytest.raises(OptionError) as caught:
        backend.compiler.options(target, {"num_wraps": 4})
    assert "num_warps" in str(caught.value), "an unknown option names the nearest"
    with pytest.raises(OptionError):
        backend.compiler.options(target, {"num_warps": 3})


def _has(builder: Any, name: str) -> bool:
    try:
        return callable(getattr(builder, name))
    except (AttributeError, GluonError):
        return False


def test_builder(backend: Any, target: Target) -> None:
    if not backend.compiles:
        with pytest.raises(CapabilityError):
            backend.compiler.builder(None, target)
        return
    context = _triton.make_context()
    backend.compiler.load_dialects(context)
    builder = checked(backend, "builder", backend.compiler.builder(context, target))
    triton = _triton.gluon_ir.GluonOpBuilder
    set_by_the_core = set(Builder.__annotations__)
    wanted = [n for n in members(Builder) - set_by_the_core if hasattr(triton, n)]
    if _has(builder, "get_layout"):  # it takes layouts as they are
        wanted = [n for n in wanted if not (n.startswith("get_") and n.endswith("_layout"))]
    missing = [name for name in sorted(wanted) if not _has(builder, name)]
    assert not missing, f"{type(builder).__name__} has no {', '.join(missing)}"
    for name in set_by_the_core:
        setattr(builder, name, {})
        assert getattr(builder, name) == {}, f"{name} cannot be set"


def test_names_are_not_lost_to_others(backend: Any) -> None:
    names = {backend.name, *(s for arch in backend.architectures for s in arch.spellings)}
    names.update(
        backend.language.exports, (f"{low.op}/{low.name}" for low in backend.language.lowerings)
    )
    lost = [clash.text for clash in registry().clashes if clash.name in names]
    assert not lost, "\n".join(lost)


def test_paths_resolve(backend: Any) -> None:
    where = f"backend {backend.name!r}"
    for attribute in ("namespace", "host", "reference"):
        path = getattr(backend.language, attribute)
        if path is not None:
            load_named(path, f"{where}, language.{attribute}")
    for name, path in backend.language.exports.items():
        value = load_named(path, f"{where}, exports[{name!r}]")
        assert (
            not isinstance(value, type) or not hasattr(value, "to_linear") or value.__name__ == name
        )
        assert name not in vars(language), f"gl.{name} is the portable language's own"
    for head, path in backend.language.descriptors.items():
        kind = load_named(path, f"{where}, descriptors[{head!r}]")
        assert issubclass(kind, _triton.base_type) and callable(kind.make), kind
    for path in backend.language.argument_kinds:
        checked_kind(load_named(path, f"{where}, argument_kinds"))


def test_host_descriptors_have_a_type_in_kernels(backend: Any) -> None:
    if backend.language.host is None:
        pytest.skip("has no host-side types")
    for module in _modules(backend.language.host):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, HostDescriptor):
                if value is not HostDescriptor:
                    assert value.head in backend.language.descriptors, f"{module.__name__}.{name}"


def test_simulation(backend: Any) -> None:
    if backend.simulation.settings is None:
        pytest.skip("knows no schedules")
    using = load_named(backend.simulation.settings, f"backend {backend.name!r}, simulation")
    for schedule in ("latest", "eager", "random"):
        with using(schedule=schedule, seed=1, timeout=60.0, progress=False, checks=True):
            pass


def _modules(package: str) -> Iterator[Any]:
    """Yield a module and, if it is a package, all below it."""
    module = importlib.import_module(package)
    yield module
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), package + "."):
        yield importlib.import_module(info.name)


def test_language_is_one_module(backend: Any) -> None:
    if backend.language.namespace is None:
        pytest.skip("has no ops of its own")
    public = importlib.import_module(f"gluon_core.language.{backend.name}")
    assert public is importlib.import_module(backend.language.namespace)
    for module in _modules(backend.language.namespace):
        alias = module.__name__.replace(
            backend.language.namespace, f"gluon_core.language.{backend.name}", 1
        )
        assert importlib.import_module(alias) is module


def test_ops_are_documented_and_declared(backend: Any) -> None:
    if backend.language.namespace is None:
        pytest.skip("has no ops of its own")
    known = {name for arch in registry().architectures() for name in arch.capabilities}
    for module in _modules(backend.language.namespace):
        for name, value in vars(module).items():
            if name.startswith("_") or not hasattr(value, "requires") or not callable(value):
                continue
            assert value.__doc__, f"{module.__name__}.{name} has no documentation"
            for capability in value.requires:
                assert capability in known, f"{name} requires {capability}, which nothing has"


def _emitted(source: str) -> set[str]:
    return set(re.findall(r"\bcreate_(\w+)\(", source))


def _portable_methods() -> set[str]:
    """Builder methods that the portable language uses, ours or Triton's."""
    import gluon_core

    emitted: set[str] = set()
    roots = [os.path.dirname(_triton.tl.__file__)]
    own = next(iter(gluon_core.__path__))
    roots += [own, os.path.join(own, "semantic"), os.path.join(own, "language")]
    for root in roots:
        for entry in os.scandir(root):
            if entry.name.endswith(".py"):
                with open(entry.path, encoding="utf-8") as file:
                    emitted |= _emitted(file.read())
    return emitted


def test_reference_models(backend: Any) -> None:
    if backend.language.reference is None or backend.language.namespace is None:
        pytest.skip("has no ops of its own, or no reference models")
    reference = importlib.import_module(backend.language.reference)
    portable = _portable_methods()
    missing = {}
    for module in _modules(backend.language.namespace):
        for name in _emitted(inspect.getsource(module)) - portable:
            if not callable(getattr(reference, name, None)):
                missing[name] = module.__name__
    assert not missing, f"no reference model for {missing}"


def test_lowering(lowering: Lowering) -> None:
    paths = {"implement": lowering.implement, **lowering.extras}
    if lowering.accepts is not None:
        paths["accepts"] = lowering.accepts
    for role in paths:
        parameters, semantic = TAKES[role]
        keywords = {"_semantic": None} if semantic else {}
        inspect.signature(code(lowering, role)).bind(*parameters.split(), **keywords)
    assert lowering in registry().lowerings(lowering.op)
    for pattern in lowering.expects:
        re.compile(pattern)
    able = [
        arch
        for arch in registry().architectures()
        if all(capability in arch.capabilities for capability in lowering.requires)
    ]
    assert able, f"no architecture has all that {lowering.op}/{lowering.name} requires"
