"""The attributes of a backend, and the paths that it names."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from typing import Any, Iterator

import pytest

from gluon_core import _triton
from gluon_core.backend import API_VERSION, load_path
from gluon_core.errors import OptionError
from gluon_core.layouts.base import Layout
from gluon_core.plugins import registry
from gluon_core.portable import OPS
from gluon_core.targets import Architecture, Target

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
    found = backend.device()
    assert found is None or (isinstance(found, Target) and found.backend == backend.name)
    problem = backend.device_problem()
    assert problem is None or (isinstance(problem, str) and problem)
    if backend.raw_pointers:
        assert backend.tensor_device, "whose tensors have the addresses?"


def test_options(backend: Any, target: Target) -> None:
    options = backend.options(target, {})
    for name in ("num_warps", "num_ctas", "debug"):
        assert hasattr(options, name), name
    assert options.num_warps == backend.options(target, {"num_warps": options.num_warps}).num_warps
    with pytest.raises(OptionError) as caught:
        backend.options(target, {"num_wraps": 4})
    assert "num_warps" in str(caught.value), "an unknown option names the nearest"
    with pytest.raises(OptionError):
        backend.options(target, {"num_warps": 3})


def test_paths_resolve(backend: Any) -> None:
    for path in (backend.language, backend.host, backend.reference):
        if path is not None:
            importlib.import_module(path)
    for name, path in backend.exports.items():
        value = load_path(path)
        assert not isinstance(value, type) or not issubclass(value, Layout) or value.__name__ == name


def _modules(package: str) -> Iterator[Any]:
    """A module and, if it is a package, all below it."""
    module = importlib.import_module(package)
    yield module
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), package + "."):
        yield importlib.import_module(info.name)


def test_language_is_one_module(backend: Any) -> None:
    if backend.language is None:
        pytest.skip("has no ops of its own")
    public = importlib.import_module(f"gluon_core.language.{backend.name}")
    assert public is importlib.import_module(backend.language)
    for module in _modules(backend.language):
        alias = module.__name__.replace(backend.language, f"gluon_core.language.{backend.name}", 1)
        assert importlib.import_module(alias) is module


def test_ops_are_documented_and_declared(backend: Any) -> None:
    if backend.language is None:
        pytest.skip("has no ops of its own")
    known = registry().capabilities()
    for module in _modules(backend.language):
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

    found: set[str] = set()
    roots = [os.path.dirname(_triton.tl.__file__)]
    own = next(iter(gluon_core.__path__))
    roots += [own, os.path.join(own, "semantic"), os.path.join(own, "language")]
    for root in roots:
        for entry in os.scandir(root):
            if entry.name.endswith(".py"):
                with open(entry.path, encoding="utf-8") as file:
                    found |= _emitted(file.read())
    return found


def test_reference_models(backend: Any) -> None:
    if backend.reference is None or backend.language is None:
        pytest.skip("has no ops of its own, or no reference models")
    reference = importlib.import_module(backend.reference)
    portable = _portable_methods()
    missing = {}
    for module in _modules(backend.language):
        for name in _emitted(inspect.getsource(module)) - portable:
            if not callable(getattr(reference, name, None)):
                missing[name] = module.__name__
    assert not missing, f"no reference model for {missing}"


def test_lowerings(backend: Any) -> None:
    for lowering in backend.lowerings:
        assert lowering.op in OPS
        for path in (lowering.implement, lowering.accepts, *lowering.extras.values()):
            if path is not None:
                assert callable(load_path(path)), path
        assert lowering in registry().lowerings(lowering.op)
        able = [
            arch
            for arch in registry().architectures()
            if all(capability in arch.capabilities for capability in lowering.requires)
        ]
        assert able, f"no architecture has all that {lowering.op}/{lowering.name} requires"
