"""The tests of a GPU on the emulator, as one table: `pytest -m gpu` in several processes, with what each test came to.

    python -m tests.gpu_campaign FILE.json [--seconds N] [--processes N] [--limit N] [--again failed] [TEST ...] [OPTION ...]

FILE keeps each outcome with the commit that it is of. A run that was stopped, or that `--seconds` ended, goes on where it was; another commit begins
anew, or with `--again failed` repeats only the tests that did not pass. `--limit` is the most seconds of a test (600). TEST is a file, a folder or the
id of a test, `tests` by default; other options go to pytest. A tree with changes is refused, so that the commit is the code that ran.

Tests that skip themselves are counted by their reason and left out of the rate; all others, those that no run ended included, are in it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGET = "emu:sm_90"
BEGUN = time.monotonic()
GRACE = 3.0  # seconds after which processes are killed that run a test
GROUPS = {
    "tests/backends": "launches, descriptors, TMA, Hopper, the language",
    "tests/bundle": "bundles, from Python, from C and under the JIT",
    "tests/compat": "programs of Triton's own Gluon, with the results of an H100",
    "tests/frontend": "programs of the frontend",
    "tests/judge": "the judge's clock of the device",
    "tests/kernels/gemm": "GEMM, layers, mixtures of experts",
    "tests/kernels": "cases, school, upstream, batch invariance, simulator against device",
    "tests/ranks": "several devices",
    "tests/torch": "operators, graphs, `torch.compile`, attention",
    "tests/tune": "tuning by the device's clock",
}


@dataclass(eq=False)
class Running:
    """A process that runs tests, and the file of their outcomes."""

    number: int
    log: Path
    crashed: bool = False


class Campaign:
    """Divides the collected tests among forked processes and keeps their outcomes."""

    def __init__(self, file, kept, options):
        self.file, self.kept, self.options = file, kept, options
        self.until = BEGUN + options.seconds
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-campaign-"))
        self.ended = {}  # phases of the test that runs
        self.written = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Run the tests that have no outcome, the longest first."""
        outcomes = self.kept["outcomes"]
        known = {name: entry[1] for name, entry in outcomes.items()}
        named = {item.nodeid: item for item in session.items}
        self.kept["collected"] = sorted({*self.kept.get("collected", ()), *named})
        left = [name for name in named if name not in outcomes or outcomes[name][0] == "again"]
        left.sort(key=lambda name: -known.get(name, 5))
        running = {self._fork(left, named) for _ in range(min(self.options.processes, len(left)))}
        while running:
            time.sleep(0.3)
            for process in list(running):
                ended, status = os.waitpid(process.number, os.WNOHANG)
                if ended:
                    running.remove(process)
                    process.crashed = status != 0
                    if process.crashed and time.monotonic() < self.until:
                        running.add(self._fork(left, named))
                elif time.monotonic() > self.until + GRACE:
                    os.killpg(process.number, signal.SIGKILL)
                self._read(process)
            self._keep()
        return True

    def _keep(self):
        """Write the outcomes, so that a run that is stopped meanwhile leaves the file whole."""
        text = json.dumps(self.kept, indent=0)
        if text != self.written:
            written = self.file.with_suffix(".new")
            written.write_text(text)
            written.replace(self.file)
            self.written = text

    def _fork(self, left, named):
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        log.touch()
        number = os.fork()
        if number:
            return Running(number, log)
        code = 1
        try:
            os.setpgid(0, 0)  # with the processes that tests start
            with log.open("a", buffering=1) as lines:
                self._work(left, named, lines)
            code = 0
        finally:
            os._exit(code)

    def _work(self, left, named, lines):
        for number, name in enumerate(left):
            if time.monotonic() > self.until:
                return
            try:
                os.close(os.open(self.folder / f"{number}.begun", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            lines.write(json.dumps([name]) + "\n")
            self.ended = {}
            begun, item = time.monotonic(), named[name]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            outcome = next((e for e in self.ended.values() if e != "passed"), "passed")
            lines.write(json.dumps([name, outcome, round(time.monotonic() - begun, 1)]) + "\n")

    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if outcome == "skipped":
            text = (
                report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            )
            outcome = f"skipped: {text.removeprefix('Skipped: ').strip()}"
        elif outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)
            outcome = f"failed: {text[:600]}"
            if self.options.verbose:
                print(f"\n{report.nodeid} {report.when}\n{report.longreprtext[-6000:]}", flush=True)
        self.ended[report.when] = outcome

    def _read(self, process):
        """Keep the outcomes of a process; the test in which it ended by itself counts as failed."""
        entries = [json.loads(line) for line in process.log.read_text().splitlines()]
        commit = self.kept["commit"]
        for entry in entries:
            if len(entry) == 3:
                self.kept["outcomes"][entry[0]] = [*entry[1:], commit]
        late = time.monotonic() > self.until
        if process.crashed and not late and entries and len(entries[-1]) == 1:
            self.kept["outcomes"][entries[-1][0]] = ["failed: the process ended", 0.0, commit]


def _git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _kept(options):
    import triton

    commit = options.commit or _git("rev-parse", "--short", "HEAD")
    head = {"commit": commit, "triton": triton.__version__, "date": str(datetime.date.today())}
    outcomes, collected = {}, []
    if options.file.exists():
        kept = json.loads(options.file.read_text())
        if kept["commit"] == commit or options.again:
            outcomes, collected = kept["outcomes"], kept["collected"]
        if options.again:
            outcomes = {
                name: entry if entry[2] == commit or entry[0].startswith(("passed", "skipped")) else ["again", *entry[1:]]
                for name, entry in outcomes.items()
            }  # fmt: skip
    return {**head, "collected": collected, "outcomes": outcomes}


def _group(name):
    return max((g for g in GROUPS if name.startswith(g)), key=len, default=name.split("/")[1])


def table(kept):
    """Return the lines of the table: by folder, the tests that passed, failed and did not run, and each other outcome."""
    counts, skipped, others = {}, Counter(), []
    for name in kept["collected"]:
        outcome = kept["outcomes"].get(name, ["again"])[0]
        word, _, text = outcome.partition(": ")
        if word == "skipped":
            skipped[text] += 1
            continue
        word = "not run" if word == "again" else word
        counts.setdefault(_group(name), Counter())[word] += 1
        if word != "passed":
            others.append(f"{name}: {'not run' if word == 'not run' else outcome}")
    total = sum(counts.values(), Counter())
    commits = Counter(entry[2] for entry in kept["outcomes"].values())
    of = ", ".join(f"{commit} ({count})" for commit, count in commits.items())
    lines = [f"commit {of}, Triton {kept['triton']}, {kept['date']}, {TARGET}", ""]
    lines += ["| tests | | passed | failed | not run |", "| --- | --- | --- | --- | --- |"]
    for group, count in sorted(counts.items()):
        numbers = " | ".join(str(count[word]) for word in ("passed", "failed", "not run"))
        lines.append(f"| `{group}` | {GROUPS.get(group, '')} | {numbers} |")
    whole = sum(total.values())
    lines += [
        "",
        f"{total['passed']} of {whole} passed: {100 * total['passed'] / max(whole, 1):.1f}%",
    ]
    lines += [f"skipped: {count} {reason}" for reason, count in skipped.most_common()]
    return [*lines, "", *others]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_campaign")
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="*", default=["tests"])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--again", choices=["failed"])
    parser.add_argument("--commit", help="the commit of a tree that is no repository")
    parser.add_argument("--verbose", action="store_true", help="print each failure")
    parser.add_argument(
        "--table", action="store_true", help="print the table of FILE and run nothing"
    )
    options, others = parser.parse_known_args()
    if options.table:
        print(*table(json.loads(options.file.read_text())), sep="\n")
        return
    if not options.commit and _git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("commit the changes first: the table names the commit")
    options.file = options.file.absolute()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the emulator is the only device
    kept = _kept(options)
    flags = ["-p", "tests.gpu_on_emulator", "--gluon-standin", TARGET, "-m", "gpu", "-q"]
    flags += ["-p", "no:cacheprovider", "--timeout", str(options.limit), *others, *options.tests]
    pytest.main(flags, plugins=[Campaign(options.file, kept, options)])
    print(*table(kept), sep="\n", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
