"""The pytest plugin that runs a test under many schedules, in pytest runs of its own."""

from __future__ import annotations

import json
from importlib import metadata

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError

pytestmark = pytest.mark.once

pytest_plugins = "pytester"

KERNELS = """
import numpy as np
import pytest
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def copies(src, dst, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(dst + o, gl.load(src + o))

def run(size):
    x = np.ones(size, np.float32)
    y = np.zeros(256, np.float32)
    copies[(2,)](x, y, 128)
    return y
"""


@gluon.jit
def touches(dst):
    gl.store(dst, gl.load(dst) + 1)


@pytest.fixture(scope="module")
def loaded():
    """A run of pytest inside forgets what it imported; what it needs is imported here, once."""
    with pytest.raises(GluonError):
        touches[(1,)](np.zeros(0, np.float32), target="sim:sm_90")
    touches[(1,)](np.zeros(1, np.float32), target="sim:sm_90")


@pytest.fixture
def run(pytester, loaded, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim")  # arrays of the host, whatever is plugged in
    installed = metadata.entry_points(group="pytest11", name="gluon_schedules")
    plugin = () if installed else ("-p", "gluon_sim.pytest_schedules")
    # Hypothesis and anyio would be imported anew in each run, which takes longer than the tests.
    without = [
        word
        for name in ("cacheprovider", "hypothesispytest", "anyio")
        for word in ("-p", f"no:{name}")
    ]

    def run(tests, *arguments):
        pytester.makepyfile(KERNELS + tests)
        return pytester.runpytest_inprocess(*plugin, *without, *arguments)

    return run


def test_the_marker_runs_a_test_under_that_many_schedules(run):
    done = run(
        """
@pytest.mark.gluon_schedules(5)
def test_it(gluon_schedule):
    from gluon_sim.settings import current
    settings = current()
    assert (settings.schedule, settings.seed) == (gluon_schedule.name, gluon_schedule.seed)
    assert settings.races and (run(256) == 1).all()

def test_other():
    from gluon_sim.settings import Settings, current
    assert current() == Settings()
""",
        "-v",
    )
    done.assert_outcomes(passed=6)
    for name in ("latest", "eager", "random-0", "random-1", "random-2"):
        done.stdout.fnmatch_lines([f"*test_it?{name}? PASSED*"])


def test_settings_and_target_of_the_marker(run):
    run(
        """
@pytest.mark.gluon_schedules(count=1, bounds=False, races=False, target="hopper")
def test_it():
    import os
    from gluon_sim.settings import current
    assert not current().races and os.environ["GLUON_TARGET"] == "sim:sm_90"
    assert run(200)[-1] == 0
"""
    ).assert_outcomes(passed=1)


def test_a_report_fails_the_test_with_its_text_and_its_seed(run, pytester):
    done = run(
        """
@pytest.mark.gluon_schedules
def test_it():
    run(200)
""",
        "--gluon-schedules=3",
        "--gluon-seed=41",
        "--gluon-report=found.json",
    )
    done.assert_outcomes(failed=3)
    done.stdout.fnmatch_lines(
        [
            "*report of the kernel*",
            "*load outside its argument's storage*program (1, 0, 0)*",
            "*gl.store(dst + o, gl.load(src + o))*",
            "schedule random, seed 41",
        ]
    )
    document = json.loads((pytester.path / "found.json").read_text())
    assert [f["schedule"] for f in document] == ["latest", "eager", "random"]
    last = document[-1]
    assert last["class"] == "OutOfBoundsError" and last["seed"] == 41
    assert last["program"] == [1, 0, 0] and last["element"] == [72]
    assert last["test"].endswith("test_it[random-41]")
    assert last["line"] == KERNELS[: KERNELS.index("gl.store")].count(
        "\n"
    )  # the first line is empty


def test_other_failures_are_no_reports(run, pytester):
    run(
        "def test_it():\n    assert run(256)[0] == 2\n", "--gluon-report=found.json"
    ).assert_outcomes(failed=1)
    assert json.loads((pytester.path / "found.json").read_text()) == []


@pytest.mark.parametrize("count", ["0", "True", "'many'"])
def test_a_count_that_makes_no_sense_is_refused(run, count):
    done = run(f"@pytest.mark.gluon_schedules({count})\ndef test_it():\n    pass\n")
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*gluon_schedules: not a positive number*"])


def test_without_a_simulator_nothing_can_be_checked(run, monkeypatch):
    from gluon_core.registry.load import registry

    monkeypatch.setattr(type(registry()), "simulator", lambda self: None)
    done = run("@pytest.mark.gluon_schedules(2)\ndef test_it():\n    pass\n")
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines(["*pip install gluon-sim*"])


def test_a_test_that_launches_nothing_has_checked_nothing(run):
    done = run("@pytest.mark.gluon_schedules(2)\ndef test_it():\n    pass\n")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*nothing was checked: no kernel was launched*"])


def test_a_test_that_launches_elsewhere_has_not_checked_its_target(run):
    done = run(
        """
@pytest.mark.gluon_schedules(1, target="gfx942")
def test_it():
    x = np.ones(256, np.float32)
    copies[(2,)](x, x.copy(), 128, target="sim:sm_90")
"""
    )
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*nothing was checked on sim:gfx942*:20 on sim:sm_90"])


def test_the_end_of_a_run_lists_its_checks(run):
    done = run(
        """
@pytest.mark.gluon_schedules(3)
def test_it():
    run(256)
    x = np.ones(256, np.float32)
    copies[(2,)](x, x.copy(), 128, races=False)
    with pytest.raises(Exception):
        run(200)

def test_other():
    run(256)
"""
    )
    done.assert_outcomes(passed=4)
    done.stdout.fnmatch_lines(
        [
            "9 launches of 1 kernel on sim:sm_* in 3 runs of tests: latest, eager, random",
            "races: off at *py:21",
            "reported 3 times at *py:14: OutOfBoundsError: *",
        ]
    )


def test_all_schedules(run):
    done = run(
        """
        @gluon.jit
        def tickets(ticket, out):
            gl.store(out + gl.atomic_add(ticket, 1), gl.program_id(0))

        @pytest.mark.gluon_schedules(explore=True)
        def test_it(gluon_schedule):
            assert gluon_schedule.name == "explore"
            tickets[(3,)](np.zeros(1, np.int32), np.zeros(3, np.int32))
        """.replace("\n        ", "\n")
    )
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*tickets, launched at *: all 6 schedules, after which out did*"])
    done = run("def test_it(gluon_schedule):\n    run(256)\n", "--gluon-explore")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*copies, launched at *: its only schedule"])
