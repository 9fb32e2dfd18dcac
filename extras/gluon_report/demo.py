"""`gluon demo`: examples on the simulator, compiled for several GPUs, and on the GPU there is."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import runpy
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import gluon_core
from gluon_cli.compile_for import hardware_kernel
from gluon_cli.launched import gluon_kernels
from gluon_cli.output import Exit, UsageError, console, errors, print_json
from gluon_cli.packages import absent, install_line
from gluon_core.errors import CapabilityError, GluonError, did_you_mean
from gluon_core.plugin.targets import Target
from gluon_core.processes import Ended, each
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record, recording
from gluon_report.demo_table import LEGEND, DemoTable, Row
from gluon_tune import device_target

__all__ = ["examples_package", "file_of", "run_one", "show"]

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


def file_of(name: str) -> Path:
    """Return the file of the example `name`, such as "gemm/portable"."""
    return Path(examples_package().__path__[0]) / f"{name}.py"


# -- one job -------------------------------------------------------------------------------------


Job = tuple[str, str, str, bool]  # kind, example, target, whether the instructions are counted


def run_one(kind: str, name: str, spec: str, counted: bool = True) -> Row:
    """Simulate, compile or run one example on one target; "" simulates on the first one that has its capabilities.

    Args:
        counted: count the instructions of compiled kernels; disassembling takes a third of a second.
    """
    started = time.perf_counter()
    tried = [registry().target(spec)] if spec else _simulated()
    missing: Optional[CapabilityError] = None
    for target in tried:
        try:
            return _job(kind, name, target, started, counted)
        except CapabilityError as error:
            missing = error
        except Exception as error:
            text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            seconds = time.perf_counter() - started
            return Row(name, str(target), kind, "failed", text, seconds)
    return Row(name, spec or str(tried[0]), kind, "skipped", str(missing).splitlines()[0])


def _job(kind: str, name: str, target: Target, started: float, counted: bool) -> Row:
    if kind != "compile":
        _run_file(name, target)
        return Row(name, str(target), kind, "passed", seconds=time.perf_counter() - started)
    simulator = registry().simulator()
    record = Record()
    with recording(record):
        _run_file(name, Target(simulator.name if simulator else "", target.architecture))
    # One row for each example: its largest kernel.
    kernels = [hardware_kernel(kernel, target) for kernel in gluon_kernels(record)]
    largest = max(kernels, key=lambda kernel: kernel.n_regs or 0)
    row = Row(
        name,
        str(target),
        kind,
        "passed",
        seconds=time.perf_counter() - started,
        registers=largest.n_regs,
        spills=largest.n_spills,
    )
    if not counted:
        return row
    report = largest.report()
    return replace(
        row,
        seconds=time.perf_counter() - started,
        shared_memory=report.shared_memory,
        instruction_count=report.instruction_count,
        instruction_mix=dict(report.instruction_mix),
    )


def _run_file(name: str, target: Target) -> None:
    """Run an example as a program on a target; it checks itself."""
    with _environment("GLUON_TARGET", str(target)), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(file_of(name)), run_name="__main__")


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _simulated() -> list[Target]:
    """Return the simulated targets in the order in which they are tried: the default, those of the demo, all others."""
    known = registry()
    simulator = known.simulator()
    assert simulator is not None
    wanted = [known.default_architecture(), *known.architectures()]
    return [Target(simulator.name, architecture) for architecture in dict.fromkeys(wanted)]


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
    chosen = _chosen(only, everything)
    compile_for = _targets(targets)
    device = device_target()
    work = {name: _jobs(name, compile_for, device, counted=json) for name in chosen}
    columns = [("compile", spec) for spec in compile_for]
    if registry().simulator() is not None:
        columns.insert(0, ("simulate", ""))
    if device is not None:
        columns.append(("run", str(device)))
    shown = DemoTable(columns, chosen, min(console().width, 100))
    rows: list[Row] = []
    if not json:
        _print(shown.header())

    def finished(done: Sequence[Row]) -> None:
        rows.extend(done)
        if not json:
            _print(shown.lines(done))

    _run_all(work, jobs or min(os.cpu_count() or 1, 8), finished)
    left = sum(map(len, work.values())) - len(rows)
    lacks = _lacking(compile_for if targets is None else None)
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
            _print([f"`gluon demo --all` takes all {len(_names())} examples."])
    for line in lacks:
        errors().print(line, highlight=False, markup=False, soft_wrap=True)
    return code


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        console().print(line, highlight=False, markup=False)
    sys.stdout.flush()


def _names() -> tuple[str, ...]:
    package = examples_package()
    names: tuple[str, ...] = (*package.SHOWN, *package.MORE)
    return names


def _jobs(name: str, compile_for: Sequence[str], device: Any, counted: bool) -> list[Job]:
    """Return the jobs of an example, in the order of the columns."""
    jobs: list[Job] = [("compile", name, spec, counted) for spec in compile_for]
    if registry().simulator() is not None:
        jobs.insert(0, ("simulate", name, "", counted))
    return jobs if device is None else [*jobs, ("run", name, str(device), counted)]


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
        f"{passed['simulate']} simulated, each result compared by its program",
        f"{passed['compile']} compiled for {targets} target{'s' if targets != 1 else ''}",
        f"{passed['run']} run on the GPU" if device else "no GPU here",
    ]
    numbers = ", ".join(f"{counts[result]} {result}" for result in ("passed", "failed", "skipped"))
    lines = [f"{numbers} in {seconds:.0f} s", f"passed: {', '.join(parts)}"]
    if left:
        lines.append(f"interrupted: {left} were not reached")
    return lines


def _lacking(compile_for: Optional[Sequence[str]]) -> list[str]:
    """Return the reasons why the demo is partial, with their remedies.

    Args:
        compile_for: the targets of the demo that are there, None where the user chose them.
    """
    lacks = []
    if registry().simulator() is None:
        lacks.append("nothing was simulated: no simulator is installed")
    if compile_for is not None and len(compile_for) < len(examples_package().TARGETS):
        lacks.append("some of the demo was left out: plugins for its targets are not installed")
    return [*lacks, _remedy()] if lacks else []


def _remedy() -> str:
    """Return the remedy where plugins are missing."""
    missing = absent()
    if missing:
        return f"install the missing packages: {install_line(missing)}"
    return "see `gluon doctor` for the state of the plugins"


def _chosen(only: Optional[Sequence[str]], everything: bool) -> list[str]:
    names = _names()
    if not only:
        return list(names if everything else examples_package().SHOWN)
    for word in only:
        if not any(word.lower() in name for name in names):
            raise UsageError(
                "no example has this name",
                argument="--only",
                got=repr(word),
                remedy=did_you_mean(word, names) or f"There are: {'; '.join(names)}.",
            )
    return [name for name in names if any(word.lower() in name for word in only)]


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


def _run_all(
    work: Mapping[str, Sequence[Job]],
    processes: int,
    finished: Callable[[Sequence[Row]], None],
) -> None:
    """Do all jobs, those of a device in this process; `finished` gets the rows of an example when it is done.
    An interruption ends it with the rows that there are."""
    rows: dict[str, dict[Job, Row]] = {name: {} for name in work}

    def hand_over(name: str) -> None:
        finished([rows[name][job] for job in work[name] if job in rows[name]])
        del rows[name]

    def done(job: Job, row: Row) -> None:
        name = job[1]
        rows[name][job] = row
        left = [other for other in work[name] if other not in rows[name]]
        if all(other[0] == "run" for other in left):
            rows[name].update({other: run_one(*other) for other in left})
            hand_over(name)

    elsewhere = [job for jobs in work.values() for job in jobs if job[0] != "run"]
    try:
        _in_processes(elsewhere, processes, done)
        for name, jobs in work.items():
            if jobs and all(job[0] == "run" for job in jobs):  # on a device alone
                rows[name] = {job: run_one(*job) for job in jobs}
                hand_over(name)
    except KeyboardInterrupt:
        for name in list(rows):
            hand_over(name)


def _in_processes(work: Sequence[Job], processes: int, done: Callable[[Job, Row], None]) -> None:
    # Fresh processes: a fork would inherit the threads and the device of this one.
    for job, row in each(f"{__name__}:run_one", work, processes):
        if isinstance(row, Ended):
            kind, name, target, _ = job
            row = Row(name, target, kind, "failed", str(row))
        done(job, row)
