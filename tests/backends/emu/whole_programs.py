"""Operators, examples, tutorials and cases on the emulator, each against its reference, as one table.

    python -m tests.backends.emu.whole_programs FILE.json [--kind KIND ...] [--target TARGET ...] [--seconds N] [--retry] [--commit NAME]

FILE keeps each outcome with the commit that it is of: a run that was stopped, or that `--seconds` ended, goes on, and another commit begins
anew; with `--retry` another commit runs again only the programs that failed or warned before. A tree with changes is refused, so that the commit is the code that ran. KIND is operators, examples, tutorials or cases; TARGET is
emu:sm_80 and emu:sm_90 by default. Warnings about kernels are listed below the table.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
TARGETS = ("emu:sm_80", "emu:sm_90")
WORDS = ("passed", "failed", "refused", "launched nothing")
RACE = "patterns/find_a_race"  # ends with the report of a race on the simulator, and has no results


def operators():
    from tests.kernels.test_targets import SMALL

    return {case.id: case.values for case in SMALL}


def check_operator(name, target):
    from tests.kernels.launched import on_target

    problem, shape = operators()[name]
    with on_target(target):
        return problem.check(shape, "cpu")


def examples():
    from gluon_report.demo import examples_package

    package = examples_package()
    written = sorted(f"written/{path.stem}" for path in (ROOT / "examples/written").glob("*.py"))
    return [name for name in (*package.SHOWN, *package.MORE, *written) if name != RACE]


def check_example(name, target):
    """Run an example, which checks its numbers, or prints that they are right."""
    output = _run(ROOT / "examples" / f"{name}.py")
    return output if "False" in output else None


def tutorials():
    return sorted(path.stem for path in (ROOT / "examples/tutorials").glob("step*.py"))


def check_tutorial(name, target):
    """Run a step whose launches name the target instead of the simulator."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (ROOT / "examples/tutorials").glob("step*.py"):
            text = path.read_text().replace('"sim:hopper"', repr(target))
            (Path(folder) / path.name).write_text(text)
        for module in [m for m in sys.modules if m.startswith("step")]:
            del sys.modules[module]
        output = _run(Path(folder) / f"{name}.py")
        if name == "step02_layout":  # compiles its kernel and launches nothing
            return _copies(runpy.run_path(f"{folder}/{name}.py")["launch"], target)
    product = name >= "step05"
    if not output or "False" in output or product and float(output.split()[-4]) >= 1e-3:
        return output
    return None


def _copies(launch, target):
    x = np.arange(4096, dtype=np.float32)
    out = np.zeros_like(x)
    launch(x, out, target=target)
    return None if (out == x).all() else "the copy differs"


def cases():
    from tests.kernels import cases

    return {case.name: case for case in cases.load_cases().values()}


def check_case(name, target):
    from gluon_core.errors import CapabilityError
    from gluon_core.registry.load import registry

    resolved = registry().target(target)
    lacks = cases()[name].lacks(resolved)
    if lacks:
        raise CapabilityError(f"{name}: {lacks}")
    return cases()[name].check(resolved).problem


KINDS = {
    "operators": (operators, check_operator), "examples": (examples, check_example),
    "tutorials": (tutorials, check_tutorial), "cases": (cases, check_case),
}  # fmt: skip


def _run(path):
    printed = io.StringIO()
    sys.path.insert(0, str(path.parent))
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def ended(kind, name, target):
    """Return how a program ends on a target, the seconds, and the warnings. It ends as "passed", "refused: ..." where the target lacks a unit or has
    other warps, "launched nothing", or with the mistake."""
    import warnings

    import torch

    from gluon_core.errors import CapabilityError, DtypeError, KernelWarning, LayoutError
    from gluon_core.registry.load import registry
    from gluon_core.simulation.evidence import recording
    from gluon_emu.settings import using

    torch.set_num_threads(1)
    os.environ["GLUON_TARGET"] = target
    begun = time.monotonic()
    shown: list[warnings.WarningMessage] = []
    try:
        with (
            using(timeout=300),
            recording() as record,
            warnings.catch_warnings(record=True) as shown,
        ):
            warnings.simplefilter("always")
            wrong = KINDS[kind][1](name, target)
        ran = {launched.target for launched in record.launches}
        outcome = "passed" if wrong is None else f"wrong: {wrong}"
        if wrong is None and not ran:
            outcome = "launched nothing"
        elif wrong is None and ran != {str(registry().target(target))}:
            outcome = f"wrong: ran on {', '.join(sorted(ran))}"
    except (CapabilityError, DtypeError, LayoutError) as error:
        words = "different numbers of threads per warp", "not supported in this architecture"
        lacks = isinstance(error, CapabilityError) or any(word in str(error) for word in words)
        outcome = f"{'refused' if lacks else type(error).__name__}: {str(error).splitlines()[0]}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    warned = {str(one.message) for one in shown if issubclass(one.category, KernelWarning)}
    return outcome[:700], round(time.monotonic() - begun, 1), sorted(warned)


def _git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _kept(path, retry, commit):
    """Return the content of the file; of another commit nothing, or with `retry` what passed or was refused there."""
    import triton

    commit = commit or _git("rev-parse", "--short", "HEAD")
    head = {"commit": commit, "triton": triton.__version__, "date": str(datetime.date.today())}
    outcomes = {}
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["triton"] == head["triton"] and (retry or kept["commit"] == commit):
            outcomes = kept["outcomes"]
    if retry:
        outcomes = {
            key: entry
            for key, entry in outcomes.items()
            if entry[3] == commit or _word(entry[0]) != "failed" and not entry[2]
        }
    return {**head, "outcomes": outcomes}


def _word(outcome):
    word = outcome.partition(":")[0]
    return word if word in WORDS else "failed"


def table(kept):
    """Return the lines of the table: by kind and target, how many passed, and each other outcome."""
    counts, others = {}, []
    for key, (outcome, _, warned, _) in sorted(kept["outcomes"].items()):
        kind, name, target = key.split("|")
        word = _word(outcome)
        counts.setdefault((kind, target), Counter())[word] += 1
        if word != "passed":
            others.append(f"{kind} {name} on {target}: {outcome}")
        others += [f"{kind} {name} on {target} warns: {text}" for text in warned]
    commits = Counter(entry[3] for entry in kept["outcomes"].values())
    of = ", ".join(f"{commit} ({count})" for commit, count in commits.items())
    lines = [f"commit {of}, Triton {kept['triton']}, {kept['date']}", ""]
    lines += [
        "| programs | target | passed | failed | refused |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (kind, target), count in counts.items():
        numbers = " | ".join(str(count[word]) for word in WORDS)
        lines.append(f"| {kind} | {target} | {numbers} |")
    return [*lines, "", *others]


def shared(function, jobs, until, processes, each=12):
    """Yield each job with its result, from processes of their own, until all are done or the time is over; None for one that ended its process.

    Args:
        jobs: the arguments of each call; those that are left stay.
        each: calls of a process: a program leaves modules and settings.
    """
    while jobs and time.monotonic() < until:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), max_tasks_per_child=each) as pool:  # fmt: skip
            running = {}
            crashed = False
            while not crashed and (jobs or running) and (running or time.monotonic() < until):
                while jobs and len(running) < processes and time.monotonic() < until:
                    job = jobs.pop(0)
                    running[pool.submit(function, *job)] = job
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    crashed = isinstance(future.exception(), BrokenProcessPool)
                    yield job, None if crashed else future.result()
                    if crashed:
                        jobs += running.values()
                        break


def main(file, kinds, targets, seconds, processes, retry, commit):
    if not commit and _git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("commit the changes first: the table names the commit")
    kept = _kept(file, retry, commit)
    wanted = [(kind, name, target) for kind in kinds for name in KINDS[kind][0]() for target in targets]  # fmt: skip
    jobs = [job for job in wanted if "|".join(job) not in kept["outcomes"]]
    until = time.monotonic() + seconds
    for job, end in shared(ended, jobs, until, processes):
        end = end or ("the process crashed", 0.0, [])
        kept["outcomes"]["|".join(job)] = *end, kept["commit"]
        file.write_text(json.dumps(kept, indent=0))
        if end[0] != "passed" or end[2]:
            print(*job, *end, flush=True)
    print(*table(kept), sep="\n")
    print(f"{len(jobs)} programs left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", dest="kinds", action="append", choices=KINDS)
    parser.add_argument("--target", dest="targets", action="append")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--retry", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--commit", help="the commit of a tree that is no repository")
    options = vars(parser.parse_args())
    options["kinds"] = options["kinds"] or [*KINDS]
    options["targets"] = options["targets"] or [*TARGETS]
    main(**options)
