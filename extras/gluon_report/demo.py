"""`gluon demo`: examples on the simulator, compiled for several GPUs, and on the GPU there is."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Mapping, Optional, Sequence

import gluon_core
from gluon_cli.output import Exit, UsageError, console, errors, print_json
from gluon_cli.packages import absent, install_line
from gluon_core.errors import GluonError, did_you_mean
from gluon_core.plugin.targets import Target
from gluon_core.processes import Ended, each
from gluon_core.registry.load import registry
from gluon_report.demo_table import LEGEND, DemoTable, Row
from gluon_report.example import Example, device_target

__all__ = ["examples_package", "load_examples", "run_one", "show"]

PACKAGE = "gluon_examples"


# -- the examples --------------------------------------------------------------------------------


def examples_package() -> ModuleType:
    """Return the package of examples: installed with gluon-core, or the folder `examples` of a checkout.

    Raises:
        UsageError: it is not there.
    """
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    root = Path(gluon_core.__file__).resolve().parents[1]
    folder = root / "examples"
    # In a checkout its own are meant: an editable install has copies, which grow old.
    checkout = (root / "pyproject.toml").is_file() and (folder / "__init__.py").is_file()
    if not checkout and importlib.util.find_spec(PACKAGE) is not None:
        return importlib.import_module(PACKAGE)
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if not (folder / "__init__.py").is_file() or spec is None or spec.loader is None:
        raise UsageError("the examples are not installed", remedy="Install gluon-core again.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    return module


def load_examples() -> tuple[dict[tuple[str, int], Example], dict[str, str]]:
    """(file, index) -> example, and file -> why it cannot be imported here."""
    examples: dict[tuple[str, int], Example] = {}
    broken: dict[str, str] = {}
    for name in examples_package().FILES:
        try:
            module = importlib.import_module(f"{PACKAGE}.{name}")
        except (GluonError, ImportError) as error:
            broken[name] = str(error).splitlines()[0]
            continue
        examples.update({(name, i): e for i, e in enumerate(module.EXAMPLES)})
    return examples, broken


# -- one job -------------------------------------------------------------------------------------


Key = tuple[str, int]  # file, index
Job = tuple[str, Key, str]  # kind, example, target


def run_one(kind: str, key: Key, spec: str) -> Row:
    """Simulate, compile or run one example on one target."""
    module = importlib.import_module(f"{examples_package().__name__}.{key[0]}")
    example: Example = module.EXAMPLES[key[1]]
    started = time.perf_counter()
    try:
        target = registry().target(spec)
        missing = example.lacks(target)
        if missing:
            reason = f"{target.architecture.name} has no {', '.join(missing)}"
            return Row(example.name, str(target), kind, "skipped", reason)
        return _job(kind, example, target, started)
    except GluonError as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        seconds = time.perf_counter() - started
        return Row(example.name, spec, kind, "failed", text, seconds)


def _job(kind: str, example: Example, target: Target, started: float) -> Row:
    rate, unit = None, ""
    if kind != "compile":
        check = example.check(target)
        if check.problem or kind == "simulate":
            result = "failed" if check.problem else "passed"
            reason = check.problem or ""
            return Row(example.name, str(target), kind, result, reason, check.seconds)
        if example.bytes_moved or example.flops:
            rate, unit = example.rate(target)
    report = example.compile(target).report()
    return Row(
        example.name,
        str(target),
        kind,
        "passed",
        seconds=time.perf_counter() - started,
        rate=rate,
        unit=unit,
        registers=report.registers,
        spills=report.spills,
        shared_memory=report.shared_memory,
        instruction_count=report.instruction_count,
        instruction_mix=dict(report.instruction_mix),
    )


# -- all of them ---------------------------------------------------------------------------------


def show(
    targets: Optional[Sequence[str]],
    only: Optional[Sequence[str]],
    everything: bool,
    jobs: Optional[int],
    json: bool,
) -> int:
    started = time.perf_counter()
    if not registry().backends:
        return _nothing(json)
    examples, broken = load_examples()
    chosen = _chosen(examples, only, everything)
    compile_for = _targets(targets)
    device = device_target()
    work = {key: _jobs(key, examples[key], compile_for, device) for key in chosen}
    columns = [("compile", spec) for spec in compile_for]
    if registry().simulator() is not None:
        columns.insert(0, ("simulate", ""))
    if device is not None:
        columns.append(("run", str(device)))
    names = [examples[key].name for key in chosen]
    shown = DemoTable(columns, names, min(console().width, 100))
    rows = [
        Row(name, "", "import", "skipped", reason) for name, reason in broken.items() if not only
    ]
    if not json:
        _print(shown.header())
        _print([f"{row.example}: skipped, {row.reason}" for row in rows])

    def finished(done: Sequence[Row]) -> None:
        rows.extend(done)
        if not json:
            _print(shown.lines(done))

    _run_all(work, jobs or min(os.cpu_count() or 1, 8), finished)
    left = sum(map(len, work.values())) - sum(row.kind != "import" for row in rows)
    lacks = _lacking(compile_for if targets is None else None, bool(broken) and not only)
    counts = Counter(row.result for row in rows)
    code: int = Exit.OK
    if counts["failed"]:
        code = Exit.FAILED
    elif lacks or not counts["passed"]:
        code = Exit.UNAVAILABLE
    if left:
        code = 128 + signal.SIGINT
    if json:
        print_json([asdict(row) for row in rows])
    else:
        seconds = time.perf_counter() - started
        _print(["", *LEGEND, *_verdict(rows, left, device, seconds)])
        if not only and not everything:
            _print([f"`gluon demo --all` takes all {len(examples)} examples."])
    for line in lacks:
        errors().print(line, highlight=False, markup=False, soft_wrap=True)
    return code


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        console().print(line, highlight=False, markup=False)
    sys.stdout.flush()


def _jobs(key: Key, example: Example, compile_for: Sequence[str], device: Any) -> list[Job]:
    """Return the jobs of an example, in the order of the columns."""
    jobs: list[Job] = [("compile", key, spec) for spec in compile_for]
    if registry().simulator() is not None:
        jobs.insert(0, ("simulate", key, _simulated(example, compile_for)))
    return jobs if device is None else [*jobs, ("run", key, str(device))]


def _nothing(json: bool) -> int:
    """Name the packages to install where no plugin is; each example would only say that it is not."""
    if json:
        print_json([])
    for line in ("no plugin is installed: nothing can be simulated or compiled", _remedy()):
        errors().print(line, highlight=False, markup=False, soft_wrap=True)
    return Exit.UNAVAILABLE


def _verdict(rows: Sequence[Row], left: int, device: Any, seconds: float) -> list[str]:
    """Return the results in numbers."""
    counts = Counter(row.result for row in rows)
    passed = Counter(row.kind for row in rows if row.result == "passed")
    targets = len({row.target for row in rows if row.kind == "compile" and row.result == "passed"})
    parts = [
        f"{passed['simulate']} simulated and compared with NumPy",
        f"{passed['compile']} compiled for {targets} target{'s' if targets != 1 else ''}",
        f"{passed['run']} run on the GPU" if device else "no GPU here",
    ]
    numbers = ", ".join(f"{counts[result]} {result}" for result in ("passed", "failed", "skipped"))
    lines = [f"{numbers} in {seconds:.0f} s", f"passed: {', '.join(parts)}"]
    if left:
        lines.append(f"interrupted: {left} were not reached")
    return lines


def _lacking(compile_for: Optional[Sequence[str]], broken: bool) -> list[str]:
    """Return the reasons why the demo is partial, with their remedies.

    Args:
        compile_for: the targets of the demo that are there, None where the user chose them.
        broken: whether examples could not be imported.
    """
    lacks = []
    if registry().simulator() is None:
        lacks.append("nothing was simulated: no simulator is installed")
    few = compile_for is not None and len(compile_for) < len(examples_package().TARGETS)
    if few or broken:
        lacks.append("some of the demo was left out: plugins for its targets are not installed")
    return [*lacks, _remedy()] if lacks else []


def _remedy() -> str:
    """Return the remedy where plugins are missing."""
    missing = absent()
    if missing:
        return f"install the missing packages: {install_line(missing)}"
    return "see `gluon doctor` for the state of the plugins"


def _chosen(
    examples: Mapping[Key, Example], only: Optional[Sequence[str]], everything: bool
) -> list[Key]:
    if not only:
        shown = examples_package().SHOWN
        few = [(name, 0) for name in shown if (name, 0) in examples]
        return list(examples) if everything else few
    names = [e.name for e in examples.values()]
    for word in only:
        if not any(word.lower() in name for name in map(str.lower, names)):
            raise UsageError(
                "no example is called that",
                argument="--only",
                got=repr(word),
                remedy=did_you_mean(word, names) or f"There are: {'; '.join(names)}.",
            )
    return [k for k, e in examples.items() if any(w.lower() in e.name.lower() for w in only)]


def _targets(names: Optional[Sequence[str]]) -> list[str]:
    """Return the targets to compile for: a typo is an error, a plugin that is not installed is left out."""
    if names:
        return [str(registry().target(spec)) for spec in names]
    targets = []
    for spec in examples_package().TARGETS:
        try:
            targets.append(str(registry().target(spec)))
        except GluonError as error:
            errors().print(f"not compiled for {spec}: {error.message}", highlight=False)
    return targets


def _simulated(example: Example, compile_for: Sequence[str]) -> str:
    """Return the target to simulate an example on: the default, else the first target, else the first architecture,
    that has its capabilities."""
    known = registry()
    simulator = known.simulator()
    assert simulator is not None
    default = known.default_architecture()
    wanted = [default, *(known.target(spec).architecture for spec in compile_for)]
    targets = [Target(simulator.name, arch) for arch in (*wanted, *known.architectures())]
    return str(next((target for target in targets if not example.lacks(target)), targets[0]))


def _run_all(
    work: Mapping[Key, Sequence[Job]],
    processes: int,
    finished: Callable[[Sequence[Row]], None],
) -> None:
    """Do all jobs, those of a device in this process; `finished` gets the rows of an example when it is done.
    An interruption ends it with the rows that there are."""
    rows: dict[Key, dict[Job, Row]] = {key: {} for key in work}

    def hand_over(key: Key) -> None:
        finished([rows[key][job] for job in work[key] if job in rows[key]])
        del rows[key]

    def done(job: Job, row: Row) -> None:
        key = job[1]
        rows[key][job] = row
        left = [other for other in work[key] if other not in rows[key]]
        if all(other[0] == "run" for other in left):
            rows[key].update({other: run_one(*other) for other in left})
            hand_over(key)

    elsewhere = [job for jobs in work.values() for job in jobs if job[0] != "run"]
    try:
        _in_processes(elsewhere, processes, done)
        for key, jobs in work.items():
            if jobs and all(job[0] == "run" for job in jobs):  # on a device alone
                rows[key] = {job: run_one(*job) for job in jobs}
                hand_over(key)
    except KeyboardInterrupt:
        for key in list(rows):
            hand_over(key)


def _in_processes(work: Sequence[Job], processes: int, done: Callable[[Job, Row], None]) -> None:
    # Fresh processes: a fork would inherit the threads and the device of this one.
    for job, row in each(f"{__name__}:run_one", work, processes):
        if isinstance(row, Ended):
            kind, (name, index), target = job
            module = sys.modules[f"{examples_package().__name__}.{name}"]
            row = Row(module.EXAMPLES[index].name, target, kind, "failed", str(row))
        done(job, row)
