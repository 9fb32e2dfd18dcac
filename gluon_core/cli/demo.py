"""`gluon demo`: every example on the simulator, compiled for several GPUs, and on the GPU there is."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Mapping, Optional, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gluon_core
from gluon_core.cli.example import Example, device_target
from gluon_core.cli.output import Exit, UsageError, byte_count, console, errors, print_json, table
from gluon_core.cli.packages import absent, install_line
from gluon_core.contract.registry import registry
from gluon_core.contract.targets import Target
from gluon_core.errors import GluonError, did_you_mean

__all__ = ["Row", "examples_package", "load_examples", "run_one", "show"]

PACKAGE = "gluon_examples"
_KINDS = ("import", "simulate", "run", "compile")
_DIED = "the process died"


@dataclass(frozen=True)
class Row:
    """One line of the demo's table.

    Args:
        kind: "simulate", "compile" or "run".
        result: `right`, `compiled`, or in few words why not.
        failed: whether something is wrong, as opposed to not possible here.
    """

    example: str
    target: str
    kind: str
    result: str
    failed: bool = False
    seconds: float = 0.0
    rate: Optional[float] = None
    unit: str = ""
    registers: Optional[int] = None
    spills: Optional[int] = None
    shared_memory: Optional[int] = None
    instruction_count: Optional[int] = None
    instruction_mix: Mapping[str, int] = field(default_factory=dict)


# -- the examples --------------------------------------------------------------------------------


def examples_package() -> ModuleType:
    """The package of examples: installed with gluon-core, or the folder `examples` of a checkout.

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
    found: dict[tuple[str, int], Example] = {}
    broken: dict[str, str] = {}
    for name in examples_package().FILES:
        try:
            module = importlib.import_module(f"{PACKAGE}.{name}")
        except (GluonError, ImportError) as error:
            broken[name] = str(error).splitlines()[0]
            continue
        found.update({(name, i): e for i, e in enumerate(module.EXAMPLES)})
    return found, broken


# -- one job -------------------------------------------------------------------------------------


Job = tuple[str, "tuple[str, int]", str]  # kind, example, target


def run_one(kind: str, key: tuple[str, int], spec: str) -> Row:
    """Simulate, compile or run one example on one target; what goes wrong is the row's result."""
    module = importlib.import_module(f"{examples_package().__name__}.{key[0]}")
    example: Example = module.EXAMPLES[key[1]]
    started = time.perf_counter()
    try:
        target = registry().target(spec)
        missing = example.lacks(target)
        if missing:
            return Row(example.name, str(target), kind, f"needs {', '.join(missing)}")
        return _job(kind, example, target, started)
    except GluonError as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        seconds = time.perf_counter() - started
        return Row(example.name, spec, kind, text, failed=True, seconds=seconds)


def _job(kind: str, example: Example, target: Target, started: float) -> Row:
    if kind == "simulate":
        check = example.check(target)
        result, failed = check.problem or "right", check.problem is not None
        return Row(example.name, str(target), kind, result, failed, check.seconds)
    result, failed, rate, unit = "compiled", False, None, ""
    if kind == "run":
        check = example.check(target)
        result, failed = check.problem or "right", check.problem is not None
        if not failed and (example.bytes_moved or example.flops):
            rate, unit = example.rate(target)
    report = example.compile(target).report()
    return Row(
        example.name,
        str(target),
        kind,
        result,
        failed,
        time.perf_counter() - started,
        rate,
        unit,
        report.registers,
        report.spills,
        report.shared_memory,
        report.instruction_count,
        dict(report.instruction_mix),
    )


def _worker() -> None:
    """Let a worker end without the interpreter's teardown: Triton 3.9's bindings print what they
    think has leaked at that point, below our table."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once; the parent shows what there is
    multiprocessing.util.Finalize(None, os._exit, args=(0,), exitpriority=-100)


# -- all of them ---------------------------------------------------------------------------------


def show(
    targets: Optional[Sequence[str]],
    only: Optional[Sequence[str]],
    jobs: Optional[int],
    json: bool,
) -> int:
    started = time.perf_counter()
    if not registry().backends:
        return _nothing(json)
    examples, broken = load_examples()
    chosen = _chosen(examples, only)
    compile_for = _targets(targets)
    simulator = registry().simulator()
    rows: list[Row] = [
        Row(name, "", "import", reason) for name, reason in broken.items() if not only
    ]
    work: list[Job] = []
    if simulator is not None:
        work += [("simulate", key, _simulated(examples[key], compile_for)) for key in chosen]
    work += [("compile", key, spec) for spec in compile_for for key in chosen]
    device = device_target()
    on_device = [("run", key, str(device)) for key in chosen] if device is not None else []
    done = _run_all(work, on_device, jobs or min(os.cpu_count() or 1, 8))
    rows += done
    left = len(work) + len(on_device) - len(done)
    rows.sort(key=lambda row: _position(row, examples, device))
    lacks = _lacking(compile_for if targets is None else None, bool(broken) and not only)
    code: int = Exit.OK
    if any(row.failed for row in rows):
        code = Exit.FAILED
    elif lacks or not done:
        code = Exit.UNAVAILABLE
    if left:
        code = 128 + signal.SIGINT
    if json:
        print_json([asdict(row) for row in rows])
    else:
        out = console()
        if rows:
            out.print(_table(rows))
        seconds = time.perf_counter() - started
        for line in _verdict(rows, left, device, seconds):
            out.print(line, highlight=False, markup=False)
    for line in lacks:
        errors().print(line, highlight=False, markup=False, soft_wrap=True)
    return code


def _nothing(json: bool) -> int:
    """Say what there is to install where no plugin is; each example would only say that it is not."""
    if json:
        print_json([])
    for line in ("no plugin is installed: nothing can be simulated or compiled", _mend()):
        errors().print(line, highlight=False, markup=False, soft_wrap=True)
    return Exit.UNAVAILABLE


def _verdict(rows: Sequence[Row], left: int, device: Any, seconds: float) -> list[str]:
    """What the rows say together: how much of what was tried, and what was not."""
    tried = [row for row in rows if row.kind != "import" and not _cannot(row)]
    counts = {kind: sum(row.kind == kind for row in tried) for kind in _KINDS}
    targets = len({row.target for row in tried if row.kind == "compile"})
    wrong = sum(row.failed for row in rows)
    parts = [
        f"{counts['simulate']} simulated and compared with NumPy",
        f"{counts['compile']} compiled for {targets} target{'s' if targets != 1 else ''}",
        f"{counts['run']} run on the GPU"
        if device
        else "none run on a GPU, for there is none here",
    ]
    lines = [
        f"{len(tried)} results, {wrong or 'none'} wrong, in {seconds:.0f} s: {', '.join(parts)}"
    ]
    if not tried:
        lines = ["nothing was tried"]
    cannot = sum(map(_cannot, rows))
    if cannot:
        lines.append(f"{cannot} left out, where the target has not what the kernel needs")
    if left:
        lines.append(f"interrupted: {left} were not reached")
    return lines


def _cannot(row: Row) -> bool:
    return not row.failed and row.result.startswith("needs ")


def _lacking(compile_for: Optional[Sequence[str]], broken: bool) -> list[str]:
    """What keeps the demo from being all of it, and what to do about it.

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
    return [*lacks, _mend()] if lacks else []


def _mend() -> str:
    """What to do where plugins are missing."""
    missing = absent()
    if missing:
        return f"install what is missing: {install_line(missing)}"
    return "see `gluon doctor` for what is wrong with the plugins"


def _chosen(
    examples: Mapping[tuple[str, int], Example], only: Optional[Sequence[str]]
) -> list[tuple[str, int]]:
    if not only:
        return list(examples)
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


def _targets(given: Optional[Sequence[str]]) -> list[str]:
    """What to compile for: a typo is an error, a plugin that is not installed is left out."""
    if given:
        return [str(registry().target(spec)) for spec in given]
    found = []
    for spec in examples_package().TARGETS:
        try:
            found.append(str(registry().target(spec)))
        except GluonError as error:
            errors().print(f"not compiled for {spec}: {error.message}", highlight=False)
    return found


def _simulated(example: Example, compile_for: Sequence[str]) -> str:
    """Where to simulate an example: the default, else the first target, else the first architecture,
    that has what it needs."""
    known = registry()
    simulator = known.simulator()
    assert simulator is not None
    default = known.default_architecture()
    wanted = [default, *(known.target(spec).architecture for spec in compile_for)]
    targets = [Target(simulator.name, arch) for arch in (*wanted, *known.architectures())]
    return str(next((target for target in targets if not example.lacks(target)), targets[0]))


def _run_all(work: Sequence[Job], on_device: Sequence[Job], processes: int) -> list[Row]:
    rows: list[Row] = []
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors(),
        transient=True,
    )
    with bar:
        task = bar.add_task(_doing(work), total=len(work) + len(on_device))
        try:
            if work:
                _in_processes(work, processes, rows, lambda: bar.advance(task))
            for job in on_device:
                bar.update(task, description=f"running on {job[2]}")
                rows.append(run_one(*job))
                bar.advance(task)
        except KeyboardInterrupt:
            pass  # what is done is shown, and that it is not all
    return rows


def _doing(work: Sequence[Job]) -> str:
    kinds = {kind for kind, _, _ in work}
    words = {"simulate": "simulating", "compile": "compiling"}
    return " and ".join(word for kind, word in words.items() if kind in kinds) or "running"


def _in_processes(
    work: Sequence[Job], processes: int, rows: list[Row], advance: Callable[[], None]
) -> None:
    # Fresh processes: a fork would inherit the threads and the device of this one.
    context = multiprocessing.get_context("spawn")
    count = min(processes, len(work))
    with ProcessPoolExecutor(count, mp_context=context, initializer=_worker) as pool:
        try:
            waiting = {pool.submit(run_one, *job): job for job in work}
            for future in as_completed(waiting):
                rows.append(_row(future, waiting[future]))
                advance()
        except KeyboardInterrupt:
            # Ctrl-C of a terminal ends the workers, too: what they were at is not a failure.
            rows[:] = [row for row in rows if row.result != _DIED]
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _row(future: Future[Row], job: Job) -> Row:
    kind, (name, _), target = job
    try:
        return future.result()
    except BrokenProcessPool:
        return Row(name, target, kind, _DIED, failed=True)


def _position(
    row: Row, examples: Mapping[Any, Example], device: Any
) -> tuple[int, int, tuple[int, str]]:
    names = [e.name for e in examples.values()]
    place = names.index(row.example) if row.example in names else len(names)
    return place, _KINDS.index(row.kind), _order(row.target)


def _order(target: str) -> tuple[int, str]:
    known = [arch.name for arch in registry().architectures()]
    name = target.rpartition(":")[2]
    return (known.index(name) if name in known else len(known), name)


def _table(rows: Sequence[Row]) -> Any:
    """A block for each example; what a screen of 80 columns holds. JSON has the instruction mix."""
    lines: list[Any] = []
    last = None
    wide = console().width >= 140
    for row in rows:
        if row.example != last:
            lines += [None] * (last is not None) + [(row.example,)]
        mix = _first_of(row.instruction_mix, console().width - 120)
        cells = [
            f"  {row.target}",
            _result(row),
            row.registers,
            row.spills,
            None if row.shared_memory is None else byte_count(row.shared_memory),
            row.instruction_count,
        ]
        lines.append([*cells, mix] if wide else cells)
        last = row.example
    columns = ["kernel, target", "result", ">regs", ">spills", ">shared", ">instr"]
    made = table("", [*columns, "most frequent"] if wide else columns, lines)
    made.caption = "regs: 32-bit registers of a thread; shared: memory of a block"
    made.caption_justify = "left"
    return made


def _first_of(mix: Mapping[str, int], width: int) -> str:
    """The most frequent instructions, as many as fit into a line."""
    text = ""
    for name, count in mix.items():
        more = f"{text}{'  ' * bool(text)}{name} {count}"
        if len(more) > width:
            break
        text = more
    return text


def _result(row: Row) -> str:
    text = row.result
    if row.kind == "simulate" and not row.failed and row.seconds:
        text = f"{text}, {row.seconds:.2f} s"
    return f"{text}, {row.rate:.2f} {row.unit}" if row.rate is not None else text
