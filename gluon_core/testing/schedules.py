"""A pytest plugin: a test of a kernel under many schedules of the simulator.

    @pytest.mark.gluon_schedules(20)
    def test_pipeline():
        pipeline[(4,)](x, y)
        numpy.testing.assert_allclose(y, wanted)

The test runs 20 times on the simulator: with asynchronous work as late as the memory model allows,
at once, and at random moments, one seed each. The simulator's report of a race, a deadlock or an
illegal access fails the test with its text. The marker also takes settings of the simulator
(`races=False`) and the target to simulate (`target="hopper"`). A test that wants to know takes the
fixture `gluon_schedule`.

`--gluon-schedules N` runs N instead, `--gluon-seed` starts the seeds elsewhere, `--gluon-check`
switches every check on and makes errors of what hardware tolerates, and `--gluon-report FILE`
writes the reports as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping

import pytest

__all__ = ["Schedule", "schedules"]


@dataclass(frozen=True)
class Schedule:
    """When asynchronous work happens in one run of a test.

    Args:
        name: "latest", "eager" or "random".
        seed: of a random one.
        settings: what else the simulator shall do.
        target: what to simulate, such as "sim:sm_90"; "sim" for the default.
    """

    name: str
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: str = "sim"

    def __str__(self) -> str:
        return f"{self.name}-{self.seed}" if self.name == "random" else self.name


def schedules(count: int, seed: int = 0, **more: Any) -> list[Schedule]:
    """The first `count` of: latest, eager, and random ones with seeds from `seed` on."""
    found = [Schedule("latest", **more), Schedule("eager", **more)]
    found += [Schedule("random", seed + i, **more) for i in range(max(0, count - 2))]
    return found[:count]


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("gluon", "Gluon Core")
    group.addoption(
        "--gluon-schedules", type=int, metavar="N", help="schedules of each test that wants any"
    )
    group.addoption("--gluon-seed", type=int, default=0, help="the first seed of random schedules")
    group.addoption(
        "--gluon-check",
        action="store_true",
        help="every check of the simulator on, and errors of what hardware tolerates",
    )
    group.addoption("--gluon-report", metavar="FILE", help="write the simulator's reports as JSON")


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        "gluon_schedules(count=10, target='sim', **settings): run on the simulator under this many "
        "schedules",
    )
    if config.getoption("--gluon-report"):
        config.pluginmanager.register(_Reports(Path(config.getoption("--gluon-report"))))


def pytest_generate_tests(metafunc: Any) -> None:
    marker = metafunc.definition.get_closest_marker("gluon_schedules")
    if marker is None and "gluon_schedule" not in metafunc.fixturenames:
        return
    settings = dict(marker.kwargs) if marker else {}
    given = marker.args[0] if marker and marker.args else 10
    count = metafunc.config.getoption("--gluon-schedules") or settings.pop("count", given)
    settings.pop("count", None)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise pytest.UsageError(f"gluon_schedules: not a positive number of schedules: {count!r}")
    target = str(settings.pop("target", "sim"))
    target = target if target.startswith("sim") else f"sim:{target}"
    seed = metafunc.config.getoption("--gluon-seed")
    if metafunc.config.getoption("--gluon-check"):
        settings = {"checks": True, **settings}
    params = schedules(count, seed, settings=settings, target=target)
    metafunc.parametrize("_gluon_scheduled", params, ids=str, indirect=True)


@pytest.fixture(autouse=True)
def _gluon_scheduled(request: Any, monkeypatch: Any) -> Iterator[Any]:
    schedule = getattr(request, "param", None)
    if schedule is None:
        yield None
        return
    from gluon_core.contract.paths import load_named
    from gluon_core.contract.registry import registry

    simulator = registry().simulator()
    if simulator is None or simulator.simulation is None:
        pytest.skip("no simulator that knows schedules is installed: pip install gluon-sim")
    monkeypatch.setenv("GLUON_TARGET", str(registry().target(schedule.target)))
    configured = load_named(simulator.simulation, f"backend {simulator.name!r}, simulation")
    with configured(schedule=schedule.name, seed=schedule.seed, **schedule.settings):
        yield schedule


@pytest.fixture
def gluon_schedule(_gluon_scheduled: Any) -> Any:
    """The `Schedule` of this run of the test."""
    return _gluon_scheduled


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    found = _report_of(item, call)
    if found is not None:
        text = found["message"]
        if "schedule" in found:
            text += f"\nschedule {found['schedule']}, seed {found['seed']}"
        report.sections.append(("report of the kernel", text))
        report.gluon_report = found
    return report


def _report_of(item: Any, call: Any) -> Any:
    from gluon_core.errors import GluonError

    error = call.excinfo.value if call.excinfo is not None else None
    if not isinstance(error, GluonError) or error.span is None:
        return None
    found = {"test": item.nodeid, **error.as_dict()}
    schedule = getattr(item, "callspec", None) and item.callspec.params.get("_gluon_scheduled")
    if isinstance(schedule, Schedule):
        found.update(schedule=schedule.name, seed=schedule.seed)
    return found


class _Reports:
    """Collects what kernels were reported for, and writes it down at the end."""

    def __init__(self, path: Path):
        self._path = path
        self._found: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        found = getattr(report, "gluon_report", None)
        if found is not None:
            self._found.append(found)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._found, indent=2) + "\n")
