"""Find the tests that a default run can leave to the campaign: those whose lines other tests run, too.

    pytest -p tests.lines --lines build/lines tests/write tests/kernels tests/prove tests/ranks tests/torch \
        tests/backends/sim tests/backends/emu                                 # with or without -n
    python -m tests.lines build/lines                                         # writes tests/campaign.txt

The first command records which lines of the packages each test runs, and its processor time (Python 3.12 or newer).
The second chooses, among the tests that take long, a cheap set that runs every line that all tests run. The others
go to the list, and so does a test that would run for its lines alone at more than `--price` seconds for each. The
list keeps what a record of the default run (`-m "not campaign"`) lacks. Tests that work in other processes stay, for
their lines are not seen; so do those that keep a wrong kernel from being proved, and files of the repository current.
"""

from __future__ import annotations

import argparse
import heapq
import os
import re
import resource
import sys
from collections import defaultdict
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

LIST = Path(__file__).parent / "campaign.txt"
HEADER = """\
# Tests that a default run leaves out: other tests run their lines, at a lower price (`python -m tests.lines`).
# A name without a case stands for all its cases. `pytest -m campaign` runs them.
"""
STAY = re.compile(
    r"test_written_examples|tests/docs/|tests/(prove|backends)/.*"
    r"(mistake|missing|counterexample|late|interrupt|never|released|race|found|not_proved|reported|deadlock)"
)
# Forms of layout-free kernels differ by conditions in few lines: of 31 mutants there, short tests alone found 2.
LEAST = {"tests/write/": 0.25}
TOOL = 4  # of sys.monitoring, which names 0 to 2 and 5 for others


def listed() -> set[str]:
    """Return the tests of the list."""
    lines = LIST.read_text().splitlines() if LIST.is_file() else []
    return {line for line in lines if line and not line.startswith("#")}


def pytest_addoption(parser):
    parser.addoption("--lines", metavar="FOLDER", help="record the lines that each test runs")


def pytest_configure(config):
    controls = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if config.getoption("--lines") and not controls:
        config.pluginmanager.register(Recorder(Path(config.getoption("--lines"))))


def used() -> tuple[float, float]:
    """Return the seconds of processor time of this process and of those that it waited for."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    own, others = (resource.getrusage(kind) for kind in kinds)
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime


class Recorder:
    """Record the lines of each test, and write them when the run ends.

    Args:
        folder: where the file goes, one for each process of the run.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.lines: set[tuple[str, int]] = set()  # of the test that runs
        self.places: dict[tuple[str, int], int] = {}  # each line has a number
        self.tests: list[tuple[str, float, float, np.ndarray]] = []
        self.packages: dict[str, str] = {}  # file -> its path from the package on, "" for others
        monitoring = self.monitoring = sys.monitoring
        monitoring.use_tool_id(TOOL, "lines of tests")
        monitoring.register_callback(TOOL, monitoring.events.PY_START, self.start)
        monitoring.register_callback(TOOL, monitoring.events.LINE, self.line)
        monitoring.set_events(TOOL, monitoring.events.PY_START)

    def file(self, path: str) -> str:
        """Return the path of a file of a package from the package on; "" for other files."""
        if path not in self.packages:
            begin = path.rfind("/gluon_")
            ours = begin >= 0 and "/tests/" not in path and "/site-packages/" not in path
            self.packages[path] = path[begin + 1 :] if ours else ""
        return self.packages[path]

    def start(self, code, offset):
        if self.file(code.co_filename):
            self.monitoring.set_local_events(TOOL, code, self.monitoring.events.LINE)
        return self.monitoring.DISABLE

    def line(self, code, number):
        self.lines.add((code.co_filename, number))
        return self.monitoring.DISABLE  # until the next test begins

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.lines.clear()
        self.monitoring.restart_events()
        before = used()
        result = yield
        own, others = (after - first for after, first in zip(used(), before))
        numbers = [
            self.places.setdefault((self.file(path), number), len(self.places))
            for path, number in self.lines
        ]
        self.tests.append((item.nodeid, own, others, np.sort(np.array(numbers, np.int32))))
        return result

    def pytest_sessionfinish(self):
        names, own, others, rows = zip(*self.tests) if self.tests else ((), (), (), ())
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            self.folder / f"{os.getpid()}.npz",
            names=np.array(names, str),
            seconds=np.array([own, others]),
            places=np.array([f"{file}:{number}" for file, number in self.places], str),
            counts=np.array([len(row) for row in rows], int),
            steps=np.concatenate([np.diff(row, prepend=0) for row in rows] or [np.zeros(0, int)]),
        )


class Tests:
    """The recorded tests of a folder.

    Attributes:
        lines: test -> the numbers of its lines.
        cost: test -> its seconds.
        elsewhere: test -> those of its seconds in other processes.
        places: each line, as its file and its number there.
    """

    def __init__(self, folder: Path):
        self.lines: dict[str, np.ndarray] = {}
        self.cost: dict[str, float] = {}
        self.elsewhere: dict[str, float] = {}
        numbers: dict[str, int] = {}
        for file in sorted(folder.glob("*.npz")):
            kept = np.load(file)
            own = [numbers.setdefault(place, len(numbers)) for place in kept["places"].tolist()]
            parts = np.split(kept["steps"], np.cumsum(kept["counts"])[:-1])
            for name, part, mine, others in zip(kept["names"].tolist(), parts, *kept["seconds"]):
                self.lines[name] = np.array(own, np.int32)[np.cumsum(part)]
                self.cost[name], self.elsewhere[name] = mine + others, others
        self.places = list(numbers)

    def long(self, least: float) -> Iterator[str]:
        """Yield the tests of at least so many seconds that work in this process and need not stay."""
        for name, seconds in self.cost.items():
            here = self.elsewhere[name] < 0.2 * seconds
            worth = max([least, *(own for path, own in LEAST.items() if name.startswith(path))])
            if seconds >= worth and here and len(self.lines[name]) and not STAY.search(name):
                yield name

    def spare(self, least: float, price: float) -> list[str]:
        """Return the tests that can be left out, the most expensive first.

        Args:
            least: seconds of a test that is worth it.
            price: seconds for each line that a test runs alone, which no test is worth.
        """
        long = set(self.long(least))
        runs = np.zeros(len(self.places), int)  # line -> by how many of the tests that stay
        for name in self.lines.keys() - long:
            runs[self.lines[name]] += 1

        def gain(name: str) -> float:
            return float((runs[self.lines[name]] == 0).sum()) / self.cost[name]

        heap = [(-gain(name), name) for name in long]
        heapq.heapify(heap)
        chosen = []
        while heap:
            name = heapq.heappop(heap)[1]
            now = gain(name)
            if heap and now < -heap[0][0]:
                if now:
                    heapq.heappush(heap, (-now, name))
            elif now:
                chosen.append(name)
                runs[self.lines[name]] += 1
        left = []
        for name in sorted(chosen, key=self.cost.__getitem__, reverse=True):
            alone = int((runs[self.lines[name]] == 1).sum())
            if self.cost[name] > price * alone:
                left.append(name)
                runs[self.lines[name]] -= 1
        spared = long - set(chosen) | set(left)
        return sorted(spared, key=self.cost.__getitem__, reverse=True)


def grouped(spared: list[str], every: list[str]) -> list[str]:
    """Return the lines of the list: a name without a case where all its cases are left out."""
    cases = defaultdict(set)
    for name in every:
        cases[name.partition("[")[0]].add(name)
    out = set(spared)
    whole = {name for name, those in cases.items() if those <= out}
    return sorted(whole | {name for name in out if name.partition("[")[0] not in whole})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--least", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--price", type=float, default=0.05, metavar="SECONDS")
    chosen = parser.parse_args()
    tests = Tests(chosen.folder)
    spared = tests.spare(chosen.least, chosen.price)
    unrecorded = [name for name in listed() if name not in tests.lines]
    names = grouped([*spared, *unrecorded], list(tests.lines))
    LIST.write_text(HEADER + "".join(f"{name}\n" for name in names))
    seconds = sum(tests.cost[name] for name in spared)
    print(
        f"{len(spared)} of {len(tests.lines)} tests with {seconds:.0f} of {sum(tests.cost.values()):.0f} s"
    )


if __name__ == "__main__":
    main()
