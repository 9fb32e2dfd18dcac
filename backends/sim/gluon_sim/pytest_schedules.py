"""A pytest plugin: a test of a kernel under many schedules of the simulator.

    @pytest.mark.gluon_schedules(20)
    def test_pipeline():
        pipeline[(4,)](x, y)
        numpy.testing.assert_allclose(y, wanted)

The test runs 20 times on the simulator: with asynchronous work as late as the memory model allows,
at once, and at random moments, one seed each. The simulator's report of a race, a deadlock or an
illegal access fails the test with its text. The marker also takes settings of the simulator
(`races=False`) and a `target` to simulate. A test that depends on the schedule takes the
fixture `gluon_schedule`.

Such a test has to launch a kernel on a simulator, and on the target that its marker names: one that
does not has checked nothing, and fails. The end of the run lists the launches, which checks were
off and where, and which reports tests caught.

With `explore=True`, or `--gluon-explore`, it runs once, and each of its launches under all schedules
that differ.

`--gluon-schedules N` runs N instead, `--gluon-seed` starts the seeds elsewhere, `--gluon-check`
switches every check on and makes errors of mistakes that hardware tolerates, and `--gluon-report FILE`
writes the reports as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

import pytest

from gluon_core.simulation.evidence import Launched, Record, recording

__all__ = ["Schedule", "schedules"]

_RECORD = pytest.StashKey[Record]()  # of one run of a test
_ALL = pytest.StashKey["list[tuple[Schedule, Record]]"]()  # of all


@dataclass(frozen=True)
class Schedule:
    """The timing of asynchronous work in one run of a test.

    Args:
        name: "latest", "eager" or "random"; or "explore" for all.
        seed: of a random one.
        settings: other settings of the simulator.
        target: the target to simulate, such as "sim:sm_90"; "sim" for the default.
    """

    name: str
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: str = "sim"

    def __str__(self) -> str:
        return f"{self.name}-{self.seed}" if self.name == "random" else self.name


def schedules(count: int, seed: int = 0, **more: Any) -> list[Schedule]:
    """Return the first `count` of: latest, eager, and random ones with seeds from `seed` on."""
    chosen = [Schedule("latest", **more), Schedule("eager", **more)]
    chosen += [Schedule("random", seed + i, **more) for i in range(max(0, count - 2))]
    return chosen[:count]


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("gluon", "Gluon Core")
    group.addoption(
        "--gluon-schedules", type=int, metavar="N", help="schedules of each test that wants any"
    )
    group.addoption("--gluon-seed", type=int, default=0, help="the first seed of random schedules")
    group.addoption(
        "--gluon-check",
        action="store_true",
        help="every check of the simulator on, and errors of mistakes that hardware tolerates",
    )
    group.addoption(
        "--gluon-explore",
        action="store_true",
        help="run each launch of such tests under all schedules that differ, with every check on",
    )
    group.addoption("--gluon-report", metavar="FILE", help="write the simulator's reports as JSON")


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        "gluon_schedules(count=10, target='sim', explore=False, **settings): run on the simulator "
        "under this many schedules, or each launch under all that differ",
    )
    if config.getoption("--gluon-report"):
        config.pluginmanager.register(_Reports(Path(config.getoption("--gluon-report"))))


def pytest_generate_tests(metafunc: Any) -> None:
    marker = metafunc.definition.get_closest_marker("gluon_schedules")
    if marker is None and "gluon_schedule" not in metafunc.fixturenames:
        return
    settings = dict(marker.kwargs) if marker else {}
    default = marker.args[0] if marker and marker.args else 10
    count = metafunc.config.getoption("--gluon-schedules") or settings.pop("count", default)
    settings.pop("count", None)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise pytest.UsageError(f"gluon_schedules: not a positive number of schedules: {count!r}")
    explores = bool(settings.pop("explore", False)) or metafunc.config.getoption("--gluon-explore")
    target = str(settings.pop("target", "sim"))
    target = target if target.startswith("sim") else f"sim:{target}"
    seed = metafunc.config.getoption("--gluon-seed")
    if metafunc.config.getoption("--gluon-check"):
        settings = {"checks": True, **settings}
    params = schedules(count, seed, settings=settings, target=target)
    if explores:
        params = [Schedule("explore", settings={"checks": True, **settings}, target=target)]
    metafunc.parametrize("_gluon_scheduled", params, ids=str, indirect=True)


@pytest.fixture(autouse=True)
def _gluon_scheduled(request: Any, monkeypatch: Any) -> Iterator[Any]:
    schedule = getattr(request, "param", None)
    if schedule is None:
        yield None
        return
    from gluon_core.plugin.paths import load_named
    from gluon_core.registry.load import registry

    simulator = registry().simulator()
    if simulator is None or simulator.simulation.settings is None:
        pytest.fail(
            "nothing can be checked: no simulator that knows schedules is installed. "
            "Install one: pip install gluon-sim",
            pytrace=False,
        )
    monkeypatch.setenv("GLUON_TARGET", str(registry().target(schedule.target)))
    configured = load_named(
        simulator.simulation.settings, f"backend {simulator.name!r}, simulation"
    )
    record = Record()
    request.node.stash[_RECORD] = record
    with recording(record):
        with configured(schedule=schedule.name, seed=schedule.seed, **schedule.settings):
            yield schedule
    request.config.stash.setdefault(_ALL, []).append((schedule, record))


@pytest.fixture
def gluon_schedule(_gluon_scheduled: Any) -> Any:
    """Return the `Schedule` of this run of the test."""
    return _gluon_scheduled


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    """Fail a test that ended well and launched nothing where it should have."""
    result = yield
    record = item.stash.get(_RECORD, None)
    if record is not None and not record.raised:
        problem = _nothing(item.callspec.params["_gluon_scheduled"], record)
        if problem:
            pytest.fail(problem, pytrace=False)
    return result


def _nothing(schedule: Schedule, record: Record) -> Optional[str]:
    """Return the reason why schedules checked nothing in a test, or None."""
    from gluon_core.registry.load import registry

    if not any(one.simulated for one in record.launches):
        where = ", ".join(sorted({one.target for one in record.launches}))
        reason = f"all launches ran on {where}" if where else "no kernel was launched"
        return f"nothing was checked: {reason}. Launch one on a simulator, or drop gluon_schedules."
    target = str(registry().target(schedule.target))
    astray = sorted({(one.where, one.target) for one in record.launches if one.target != target})
    if schedule.target == "sim" or any(one.target == target for one in record.launches):
        return None
    places = ", ".join(f"{file}:{line} on {there}" for (file, line), there in astray)
    return (
        f"nothing was checked on {target}, which the marker names: launches that name their own "
        f"target= went there, {places}"
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    runs = terminalreporter.config.stash.get(_ALL, [])
    if not runs:
        return
    launches: Counter[Launched] = Counter()
    for _, record in runs:
        launches.update(record.launches)
    kernels = len({one.kernel for one in launches})
    targets = ", ".join(sorted({one.target for one in launches})) or "no target"
    names = ", ".join(dict.fromkeys(schedule.name for schedule, _ in runs))
    terminalreporter.section("Gluon Core: kernels under schedules")
    terminalreporter.line(
        f"{_many(sum(launches.values()), 'launch', 'es')} of {_many(kernels, 'kernel')} on {targets} "
        f"in {_many(len(runs), 'run')} of tests: {names}"
    )
    for name in dict.fromkeys(name for one in launches for name in one.off):
        places = dict.fromkeys(one.where for one in launches if name in one.off)
        terminalreporter.line(f"{name}: off at " + ", ".join(f"{f}:{n}" for f, n in places))
    for one in launches:
        if one.walked is not None:
            file, line = one.where
            terminalreporter.line(f"{one.kernel}, launched at {file}:{line}: {one.walked}")
    caught = Counter(one for _, record in runs for one in record.raised if one.report)
    for one, count in caught.items():
        file, line = one.where
        terminalreporter.line(
            f"reported {_many(count, 'time')} at {file}:{line}: {one.error[:160]}"
        )


def _many(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{plural if count != 1 else ''}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    record = _report_of(item, call)
    if record is not None:
        text = record["message"]
        if "schedule" in record:
            text += f"\nschedule {record['schedule']}, seed {record['seed']}"
        report.sections.append(("report of the kernel", text))
        report.gluon_report = record
    return report


def _report_of(item: Any, call: Any) -> Any:
    from gluon_core.errors import GluonError

    error = call.excinfo.value if call.excinfo is not None else None
    if not isinstance(error, GluonError) or error.span is None:
        return None
    record = {"test": item.nodeid, **error.as_dict()}
    schedule = getattr(item, "callspec", None) and item.callspec.params.get("_gluon_scheduled")
    if isinstance(schedule, Schedule):
        record.update(schedule=schedule.name, seed=schedule.seed)
    return record


class _Reports:
    """Collects the reports about kernels, and writes them at the end."""

    def __init__(self, path: Path):
        self._path = path
        self._records: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        record = getattr(report, "gluon_report", None)
        if record is not None:
            self._records.append(record)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._records, indent=2) + "\n")
