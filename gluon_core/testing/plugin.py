"""A pytest plugin for tests of kernels: run on the simulator always, on a GPU where there is one.

    def test_add(gluon_place):
        x = gluon_place.array(numpy.ones(128, numpy.float32))
        add[(1,)](x, x, gluon_place.empty(128, "float32"))

A test that takes `gluon_place` runs once on the simulator and once on the GPU; the latter is
skipped, with the reason, where there is none. `@pytest.mark.gluon_targets("hopper", "gfx942")` says
which architectures to simulate. `--gluon-gpu` makes a missing GPU a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional

import pytest

if TYPE_CHECKING:
    from gluon_core.testing.places import Place

_GPU = "gpu"


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("gluon", "Gluon Core")
    group.addoption(
        "--gluon-backend", metavar="NAME", help="the backend that the conformance suite tests"
    )
    group.addoption(
        "--gluon-gpu", action="store_true", help="fail, not skip, where there is no GPU"
    )


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "gpu: needs a GPU; skipped where there is none")
    config.addinivalue_line("markers", "gluon_targets(*specs): the targets to simulate")


def pytest_generate_tests(metafunc: Any) -> None:
    if "gluon_place" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("gluon_targets")
    specs = list(marker.args) if marker else ["sim"]
    params = [
        pytest.param(spec if spec.startswith("sim") else f"sim:{spec}", id=spec) for spec in specs
    ]
    params.append(pytest.param(_GPU, id=_GPU, marks=pytest.mark.gpu))
    metafunc.parametrize("gluon_place", params, indirect=True)


@pytest.fixture
def gluon_place(request: Any, monkeypatch: Any) -> Iterator[Place]:
    """Return the place of this run of the test; `kernel[grid](...)` launches there."""
    from gluon_core.registry.load import registry
    from gluon_core.testing.places import Place

    if request.param == _GPU:
        device = _gpu()
        if device is None:
            message = f"no GPU: {_problems()}"
            if request.config.getoption("--gluon-gpu"):
                pytest.fail(message)
            pytest.skip(message)
        place = device
    else:
        if registry().simulator() is None:
            pytest.skip("no simulator is installed: pip install gluon-sim")
        place = Place(registry().target(request.param), "cpu")
    monkeypatch.setenv("GLUON_TARGET", place.target.name)
    yield place


def _gpu() -> Optional[Place]:
    """Return the first GPU of any installed backend."""
    from gluon_core.registry.load import registry
    from gluon_core.testing.places import Place

    for backend in registry().backends.values():
        target = None if backend.simulates else backend.device.target()
        if target is not None:
            return Place(target, backend.device.tensor_device or "cpu")
    return None


def _problems() -> str:
    from gluon_core.registry.load import registry

    plugins = registry()
    reasons = [
        f"{b.name}: {b.device.problem() or 'no device'}"
        for b in plugins.backends.values()
        if not b.simulates
    ]
    reasons += [failure.reason for failure in plugins.failures.values()]
    return "; ".join(reasons) or "no backend for GPUs is installed"
