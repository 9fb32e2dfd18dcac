"""Which backend is tested, and for which of its architectures."""

from __future__ import annotations

from typing import Any

import pytest

from gluon_core.plugin.language import OPS, Lowering
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry


def pytest_addoption(parser: Any) -> None:
    try:
        parser.getgroup("gluon").addoption(
            "--gluon-backend", metavar="NAME", help="the backend that the conformance suite tests"
        )
    except ValueError:
        pass  # gluon_core.testing.plugin has added it


def _chosen(config: Any) -> list[Any]:
    plugins = registry()
    name = config.getoption("--gluon-backend", None)
    if name is None:
        return list(plugins.backends.values())
    if name not in plugins.backends:
        failure = plugins.failures.get(name)
        reason = failure.traceback if failure else plugins.installed()
        raise pytest.UsageError(f"--gluon-backend {name}: no such backend. {reason}")
    return [plugins.backends[name]]


def lowerings_of(backends: list[Any], config: Any) -> list[Lowering]:
    """Those of the backends; of everybody, those without a backend included, where none is named."""
    plugins = registry()
    if config.getoption("--gluon-backend", None) is None:
        return [low for op in OPS for low in plugins.lowerings(op)]
    return [low for backend in backends for low in backend.language.lowerings]


def targets_of(backend: Any) -> list[Target]:
    """Return every target of a backend that the installed Triton compiles for."""
    from gluon_core import _triton

    known = backend.architectures
    if backend.simulates:
        named = backend.simulation.stands_in_for
        known = [a for a in registry().architectures() if named is None or a.backend in named]
    return [Target(backend.name, a) for a in known if _triton.VERSION >= a.min_triton]


def pytest_generate_tests(metafunc: Any) -> None:
    backends = _chosen(metafunc.config)
    if "lowering" in metafunc.fixturenames:
        lowerings = lowerings_of(backends, metafunc.config)
        metafunc.parametrize(
            "lowering", lowerings, ids=[f"{low.op}/{low.name}" for low in lowerings]
        )
    elif "target" in metafunc.fixturenames:
        pairs = [(b, t) for b in backends for t in targets_of(b)]
        metafunc.parametrize("backend, target", pairs, ids=[str(t) for _, t in pairs])
    elif "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", backends, ids=[b.name for b in backends])
