"""Promises of the test suite: every test ends, and a run lists the tests it left out and why."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]


def run_pytest(folder, text, *options):
    """Pytest with our settings over a file of tests, in a process of its own."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_it.py").write_text(text)
    command = ["-m", "pytest", "-c", ROOT / "pyproject.toml", *options, "-p", "timeout"]
    return warm.run(
        [*command, "--rootdir", folder, "-p", "no:cacheprovider", folder],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        path=[entry for entry in sys.path if entry],
        timeout=100,
    )


HANGS = """
import pytest, time

def test_waits():
    time.sleep(1000)

def test_next():
    pass

@pytest.mark.timeout(0.4)
def test_within_a_library():
    sum(range(10**12))  # keeps signals waiting and the interpreter locked, as a compiler may
"""


def test_a_test_that_hangs_fails_or_ends_the_run(tmp_path):
    done = run_pytest(tmp_path, HANGS, "-v", "--timeout", "1")
    assert done.returncode == 1
    assert "test_waits FAILED" in done.stdout and "test_next PASSED" in done.stdout
    assert "Timeout" in done.stderr and "in test_within_a_library" in done.stderr


def test_there_is_a_limit(pytestconfig):
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
    assert pytestconfig.pluginmanager.hasplugin("timeout")


LEAVES_OUT = """
import pytest

@pytest.mark.gpu
@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", range(3))
def test_device(which):
    pytest.skip("no GPU")

@pytest.mark.skip(reason="needs Triton 3.8")
def test_new():
    pass

@pytest.mark.campaign
def test_all():
    pass

@pytest.mark.sampled(2)
@pytest.mark.parametrize("which", range(60))
def test_sampled(which):
    print("sampled", which, "!")

@pytest.mark.once
@pytest.mark.parametrize("which", range(20))
def test_once(which):
    print("ran", which, "!")
"""

# A file that is sampled as a whole, and its tests without parameters.
SAMPLED = """
import pytest

pytestmark = pytest.mark.sampled(2)
""" + "".join(f"def test_{i}(): print('alone', {i}, '!')\n" for i in range(60))


def numbers(word, text):
    return {int(n) for n in re.findall(rf"{word} (\d+) !", text)}


def test_shares_and_samples_add_up_and_skips_are_listed(tmp_path):
    first, second = (
        run_pytest(tmp_path, LEAVES_OUT, "-s", "--share", share).stdout for share in ("1/2", "2/2")
    )
    ran = numbers("ran", first), numbers("ran", second)
    assert ran[0] | ran[1] == set(range(20)) and not ran[0] & ran[1] and 5 <= len(ran[0]) <= 15
    sampled = numbers("sampled", first)
    assert sampled == numbers("sampled", second) and 3 <= len(sampled) <= 15
    last, closing = first.splitlines()[-2:]
    assert last == "skipped: 3 no GPU; 1 needs Triton 3.8"
    passed = len(ran[0]) + len(sampled)
    assert f"{passed} passed, 4 skipped, {21 - len(ran[0])} deselected" in closing
    campaign = run_pytest(tmp_path, LEAVES_OUT, "-s", "-m", "campaign").stdout
    assert numbers("sampled", campaign) == set(range(60)) - sampled
    assert f"{61 - len(sampled)} passed" in campaign


def test_a_file_is_sampled_as_a_whole(tmp_path):
    default, campaign = (
        numbers("alone", run_pytest(tmp_path, SAMPLED, "-s", *options).stdout)
        for options in ((), ("-m", "campaign"))
    )
    assert 3 <= len(default) <= 15
    assert campaign == set(range(60)) - default


def test_interrupts_arrive_where_they_are_ignored():
    """As under `nohup` in a script, whose jobs in the background ignore Ctrl-C."""
    tests = [
        "tests/backends/sim/executor/test_progress.py",
        "-k",
        "interrupt",
        "-m",
        "campaign or not campaign",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


# -- the last line of CI ----------------------------------------------------------------------------


def closing_line():
    spec = importlib.util.spec_from_file_location("closing_line", ROOT / ".ci" / "closing_line.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def report(folder, name, reasons=(), failed=(), **counts):
    suite = ET.Element("testsuite", {key: str(value) for key, value in counts.items()})
    for reason in reasons:
        ET.SubElement(ET.SubElement(suite, "testcase"), "skipped", message=reason)
    for test in failed:
        case = ET.SubElement(suite, "testcase", classname="tests.core.test_x", name=test)
        ET.SubElement(case, "failure", message="assert 1 == 2\n +  where")
    (folder / "junit").mkdir(exist_ok=True)
    ET.ElementTree(suite).write(folder / "junit" / f"{name}.xml")


def environments(folder, **codes):
    results = {name: {"result": {"exit_code": code}} for name, code in codes.items()}
    (folder / "result.json").write_text(json.dumps({"testenvs": results | {"other": {}}}))


def test_the_last_line_adds_up_all_environments(tmp_path, capsys):
    report(tmp_path, "a", ["no GPU", "no GPU"], tests=10, failures=0, errors=0, skipped=2, time=1.5)
    report(tmp_path, "b", ["of 3.7"], tests=5, failures=0, errors=0, skipped=1, time=2)
    assert closing_line()(str(tmp_path), 0) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "skipped: 2 no GPU; 1 of 3.7"
    assert lines[-1].strip("= ") == "12 passed, 3 skipped in 3.50s"


def test_the_last_line_fails_with_any_environment(tmp_path, capsys):
    assert closing_line()(str(tmp_path), 0) == 1
    report(tmp_path, "a", tests=10, failures=1, errors=0, skipped=0, time=1)
    assert closing_line()(str(tmp_path), 1) == 1
    assert "1 failed, 9 passed in" in capsys.readouterr().out
    report(tmp_path, "a", tests=10, failures=0, errors=0, skipped=0, time=1)
    assert closing_line()(str(tmp_path), 1) == 1  # lint failed, or an environment gave no report
    output = capsys.readouterr().out
    assert "10 passed, 1 error in" in output and "FAILED: tox ended with exit code 1" in output


def test_the_last_ten_lines_name_the_failures(tmp_path, capsys):
    report(tmp_path, "a", ["no GPU"], ["test_y"], tests=3, failures=1, errors=0, skipped=1, time=1)
    environments(tmp_path, a=1, lint=2, layering=0)
    assert closing_line()(str(tmp_path), 1) == 1
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "FAILED lint: exit code 2; repeat it with tox -e lint",
        "FAILED a: tests.core.test_x::test_y - assert 1 == 2 + where",
        "skipped: 1 no GPU",
    ]
    many = [f"test_{i}" for i in range(50)]
    report(tmp_path, "a", ["no GPU"], many, tests=60, failures=50, errors=0, skipped=1, time=1)
    assert closing_line()(str(tmp_path), 1) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and lines[7] == "... and 44 more failures", lines
