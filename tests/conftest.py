"""Rules for all tests: which of them run by default, that they end, and what is said of those
that did not run."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--share",
        default="1/1",
        metavar="K-L/N",
        help="run shares K to L of N of the tests marked `once`, which parallel runs divide among them",
    )


def _draw(name, purpose, parts):
    """A number below `parts` that a name always draws for one purpose."""
    return zlib.crc32(f"{purpose}: {name}".encode()) % parts


def _is_drawn(name, parts):
    """Return whether a test is in its sample: one in four times `parts` is, and all of one part."""
    return parts == 1 or not _draw(name, "sample", 4 * parts)


def _drawn_as(item):
    """A file that is marked `once` as a whole goes as a whole: its fixtures and caches are made once."""
    marks = getattr(item.module, "pytestmark", [])
    whole = any(mark.name == "once" for mark in (marks if isinstance(marks, list) else [marks]))
    return item.nodeid.split("::")[0] if whole else item.nodeid


def _is_ours(name, config):
    """Return whether a test or file marked `once` belongs to the shares of this run."""
    own, _, shares = config.getoption("--share").partition("/")
    first, _, last = own.partition("-")
    return int(first) <= _draw(name, "turn", int(shares)) + 1 <= int(last or first)


def pytest_ignore_collect(collection_path, config):
    """Leave a file unread that goes to another share as a whole: it cost 40 ms."""
    if config.getoption("--share") == "1/1" or not collection_path.match("test_*.py"):
        return None
    source = collection_path.read_text()
    whole = re.search(r"^pytestmark = (\[\s*)?pytest\.mark\.once\b", source, re.MULTILINE)
    # Tests that need some release run in every share: `skipif`, its short forms, or a case of "3.8+".
    whole = whole and not re.search(r"\b(skipif|since|before)\b|\d\.\d\+", source)
    name = collection_path.relative_to(config.rootpath).as_posix()
    return True if whole and not _is_ours(name, config) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Let one of the runs that share the tests collect before the other, which then finds the bytecode: six seconds of both."""
    if session.config.getoption("--share") == "1/1":
        return (yield)
    with open(__file__) as file:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # to the end of the block
                break
            except BlockingIOError:
                time.sleep(0.1)
        return (yield)


@pytest.hookimpl(trylast=True)  # after all parameters are known
def pytest_generate_tests(metafunc):
    """Make no items of the parameters that a sample leaves out: there are 12,000 of them."""
    sampled = metafunc.definition.get_closest_marker("sampled")
    calls = getattr(metafunc, "_calls", None)
    if not sampled or not calls or _campaigns(metafunc.config):
        return
    if metafunc.definition.get_closest_marker("gpu"):
        return
    name = metafunc.definition.nodeid
    drawn = [
        call
        for call in calls
        if any(mark.name == "gpu" for mark in call.marks)
        or _is_drawn(f"{name}[{call.id}]", *sampled.args)
    ]
    metafunc._calls = drawn or calls[:1]  # none would be one test without parameters


def _spared():
    """Return the tests of campaign.txt: their lines run in others, too (tests/lines.py)."""
    path = Path(__file__).parent / "campaign.txt"
    return frozenset(path.read_text().splitlines() if path.is_file() else ())


SPARED = _spared()


def _campaigns(config):
    return "campaign" in config.option.markexpr


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_itemcollected(item):
    if item.get_closest_marker("gpu"):
        return
    sampled = item.get_closest_marker("sampled")
    left_out = sampled and not _is_drawn(item.nodeid, *sampled.args)
    if left_out or item.nodeid in SPARED or item.nodeid.partition("[")[0] in SPARED:
        item.add_marker(pytest.mark.campaign)


@pytest.hookimpl(trylast=True)  # the conftest.py of a folder may mark what is in it
def pytest_collection_modifyitems(config, items):
    campaigns = _campaigns(config)

    def runs(item):
        if item.get_closest_marker("campaign") and not campaigns:
            return False
        # Tests that need some release must not fall to the share of another.
        reasons = [mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif")]
        if not item.get_closest_marker("once") or any("Triton" in reason for reason in reasons):
            return True
        return _is_ours(_drawn_as(item), config)

    left = [item for item in items if not runs(item)]
    if left:
        items[:] = [item for item in items if runs(item)]
        config.hook.pytest_deselected(items=left)


def pytest_collection_finish(session):
    """Modules and items stay: to look for garbage among them took a tenth of the time of a run.

    So did the search among the kernels and traces that tests keep; cycles hold little, so that it comes when the process has
    grown (`_search`). Tests on a GPU share its memory with other processes, and cycles may hold tensors.
    """
    gc.freeze()
    _draw_no_constants()
    if "gpu" in session.config.option.markexpr or not _resident():
        gc.enable()
    session.config.stash[_HELD] = _resident()


def _draw_no_constants():
    """Let Hypothesis draw nothing from the sources of the packages: it parsed all of them, which took longer than its tests, and cases
    that are always the same ones would change with a constant anywhere."""
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "_get_local_constants") and hasattr(providers, "_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants


def _resident():
    """Return the bytes that the process has in memory; 0 where that is not known."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _search(config):
    """Look for garbage if the process has grown by a lot since the last time."""
    if not gc.isenabled() and _resident() > config.stash[_HELD] + GROWTH:
        gc.unfreeze()
        gc.collect()
        config.stash[_HELD] = _resident()


# Bytes: a run leaves some gigabytes of garbage, and to search all that it keeps takes 2 to 8 s.
GROWTH = min(3 * 2**30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8)
_HELD = pytest.StashKey[int]()  # bytes after the last search
_STDERR = pytest.StashKey[int]()
_FILES = pytest.StashKey[str]()
_ARMED = pytest.StashKey[
    tuple[float, float]
]()  # until when a test may begin under it, and its limit


def pytest_configure(config):
    config.stash[_STDERR] = os.dup(2)  # nothing is captured yet
    # Reproducers, modules of oracles and files of killed processes go with the run; tmp_path keeps its place.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    config.stash[_FILES] = tempfile.tempdir = tempfile.mkdtemp(prefix="gluon-tests-")
    os.environ["TMPDIR"] = config.stash[_FILES]
    # Tests start pytest themselves, and read its output: a plugin that warns about xdist changes it.
    # Hypothesis and anyio took half of the time of such a run.
    os.environ["PYTEST_ADDOPTS"] = "-p no:benchmark -p no:hypothesispytest -p no:anyio"
    gc.disable()  # a fifth of the time of collecting tests, a tenth of running them


def pytest_unconfigure(config):
    os.close(config.stash[_STDERR])
    shutil.rmtree(config.stash[_FILES], ignore_errors=True)


def _limit(item):
    """Seconds that pytest-timeout gives a test; 0 for no end, as under a debugger."""
    if item.config.getvalue("usepdb") or not item.config.pluginmanager.hasplugin("timeout"):
        return 0.0
    marker = item.get_closest_marker("timeout")
    timeout = item.config.getvalue("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    return float(item.config.getini("timeout") or 0 if timeout is None else timeout)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A test within a compiler hears of no signal: some time later the process ends, with the stacks.

    That time is a quarter to once its limit after the limit. To begin anew for each test means to wait
    for a thread to end: a twentieth of a run.
    """
    stash, limit = item.config.stash, _limit(item)
    until, before = stash.get(_ARMED, (0.0, 0.0))
    if limit != before or time.monotonic() > until:
        faulthandler.cancel_dump_traceback_later()
        if limit:
            faulthandler.dump_traceback_later(2 * limit, exit=True, file=stash[_STDERR])
        stash[_ARMED] = time.monotonic() + 0.75 * limit, limit
    if not gc.isenabled():
        gc.freeze()  # a test that looks for garbage, or for tensors, looks among its own objects
    torch = sys.modules.get("torch")
    if hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(0)  # whichever tests ran before
    result = yield
    _search(item.config)
    return result


def pytest_sessionfinish(session):
    """Leave what is still there to the end of the process: pytest would search it for garbage."""
    faulthandler.cancel_dump_traceback_later()
    gc.freeze()


def _reason(report) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ").strip()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    counts = Counter(map(_reason, terminalreporter.stats.get("skipped", ())))
    if counts:
        reasons = "; ".join(f"{count} {reason}" for reason, count in counts.most_common())
        terminalreporter.write_line(f"skipped: {reasons}")


@pytest.fixture(autouse=True)
def same_target(monkeypatch):
    """A command that runs in this process chooses a target; the next test starts without it."""
    before = os.environ.get("GLUON_TARGET")
    monkeypatch.setenv("GLUON_TARGET", before or "")  # undone last, behind what a test sets
    if before is None:
        del os.environ["GLUON_TARGET"]
