"""`gluon run`: a Python file with its kernels on a target."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any, ContextManager, Optional, Sequence

from gluon_cli.check import Verdict, against_device, simulated_twin
from gluon_cli.evidence import weigh
from gluon_cli.output import Exit, UsageError, print_json
from gluon_cli.scripts import add_folders, run_script
from gluon_core.errors import CapabilityError, PluginError, did_you_mean
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.paths import load_named
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record, recording
from gluon_core.simulation.watch import Watch

__all__ = ["Runs", "run_file"]

RESULTS = 4  # other ones that a file is to judge


@dataclass(frozen=True)
class Runs:
    """Under which schedules of a simulator to run.

    Args:
        count: that many, one after the other: latest, eager, and random ones. None for one run.
        schedule: of that one run.
        seed: of the first random schedule.
        timeout: seconds after which a launch ends.
        check: switch every check on, under 10 schedules if `count` is None, and compare with the
            device that is plugged in.
        progress: show how far long launches are.
        explore: under all schedules of each launch that differ, with every check on, for so many
            seconds (`within`) and `most` schedules of each.
        prove: the name of a kernel, or "*": prove properties for every trip count, within so many
            seconds.
    """

    count: Optional[int] = None
    schedule: Optional[str] = None
    seed: int = 0
    timeout: Optional[float] = None
    check: bool = False
    progress: bool = False
    explore: bool = False
    within: Optional[float] = None
    most: Optional[int] = None
    prove: Optional[str] = None

    def __bool__(self) -> bool:
        """Return True if only a simulator can grant this."""
        return self != Runs(seed=self.seed, progress=self.progress)

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of each run, for the simulator."""
        always: dict[str, Any] = {} if self.timeout is None else {"timeout": self.timeout}
        if self.progress:
            always["progress"] = True
        if self.check or self.explore:
            always.update(checks=True, everywhere=True)
        if self.explore:
            limits = {"within": self.within, "most": self.most}
            always.update({name: value for name, value in limits.items() if value is not None})
            return [{"schedule": "explore", **always}]
        if self.prove is not None:
            if self.within is not None:
                always["within"] = self.within
            return [{"prove": self.prove, "everywhere": True, **always}]
        if self.count is None:
            one = {} if self.schedule is None else {"schedule": self.schedule, "seed": self.seed}
            if self.schedule is not None and (kept := Path(self.schedule)).suffix == ".json":
                one = {"replay": str(kept)}
                always.update(checks=True, everywhere=True)
            return [{**one, **always}]
        named: list[dict[str, Any]] = [{"schedule": "latest"}, {"schedule": "eager"}]
        seeds = range(self.seed, self.seed + max(0, self.count - 2))
        named += [{"schedule": "random", "seed": seed} for seed in seeds]
        return [{**one, **always} for one in named[: self.count]]


def run_file(
    file: str,
    target: Optional[str],
    arguments: Sequence[str],
    json: bool = False,
    wish: Optional[Watch] = None,
    runs: Runs = Runs(),
    record: Optional[Record] = None,
    judged: bool = False,
) -> int:
    """Run `file` as `python file ...` would, with `GLUON_TARGET` set; its exit code is ours, unless it
    ended well and none of the requested checks happened.

    Args:
        json: print `{"exit": code}` and leave nothing else on stdout.
        wish: facts to collect on the way.
        runs: under which schedules. Output of the file is shown of the first run, and of one that
            fails.
        record: gets the launches; they are then for the caller to judge, unless `judged`.

    Raises:
        UsageError: no such file, or `wish` or `runs` cannot be granted on the target.
    """
    _readable(file)
    asked = None if target is None else registry().target(target)
    _together(runs, wish)
    if runs.check or runs.explore or runs.prove:
        runs = replace(runs, count=runs.count or 10 if runs.check else None)
        simulated = simulated_twin(target)
        asked = asked and simulated
        target = str(simulated)
    if target is not None:
        os.environ["GLUON_TARGET"] = str(registry().target(target))
    asked_for = target is not None and not runs.check  # `--check` compares with a device
    stand_in = _stand_in(target)
    if stand_in is not None:
        stand_in.begin(target, Path(file).read_bytes().decode(errors="replace"), asked_for)
    if wish or runs:
        _simulated(target, wish)
    sys.argv = [file, *arguments]
    add_folders(Path(file))
    judged = record is None or judged
    record = record or Record()
    with recording(record), redirect_stdout(sys.stderr) if json else nullcontext():
        code = _run_all(file, wish, runs, target)
        if runs.explore and not code:
            code = _other_results(file, runs, target, record)
    if code:
        if json:
            print_json({"exit": code})
        return code
    if not judged:
        return code
    judges = runs.check or runs.explore
    evidence = weigh(
        record, asked, judges, bool(wish or runs), None if runs.explore else runs.count
    )
    verdict = _verdict(file, target, runs) if runs.check and not evidence.code else None
    code = evidence.code or int(verdict is not None and verdict.failed)
    if json:
        more: dict[str, Any] = {}
        if judges or asked is not None:
            more.update(launches=evidence.launches, caught=evidence.caught, evidence=evidence.lines)
        if runs.check:
            more.update({"schedules": runs.count, **asdict(verdict or Verdict())})
        if stand_in is not None and (substitutes := list(stand_in.lines())):
            more["stand_in"] = substitutes
        print_json({"exit": code, **more})
        return code
    for line in () if stand_in is None else stand_in.lines(announced=True):
        print(line, file=sys.stderr)
    for line in [*evidence.lines, *(verdict.lines if verdict else ())]:
        print(line, file=sys.stdout if judges else sys.stderr)
    return code


def _readable(file: str) -> None:
    """Refuse a file that Python cannot run, before a traceback of ours does."""
    path = Path(file)
    if not path.is_file():
        if path.is_dir():
            raise UsageError("a folder, and no file", argument="FILE", got=file)
        close = did_you_mean(path.name, (p.name for p in path.parent.glob("*.py") if p.is_file()))
        raise UsageError("no such file", argument="FILE", got=file, remedy=close)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError("cannot be read", argument="FILE", got=str(error)) from error
    if path.suffix == ".ipynb":
        raise UsageError(
            "a notebook, and no Python file", argument="FILE", got=file,
            remedy=f"Convert it first: jupyter nbconvert --to script {path.name}.",
        )  # fmt: skip
    if path.suffix == ".py" and b"\0" in source:
        raise UsageError("not Python source: it contains null bytes", argument="FILE", got=file)


def _together(runs: Runs, wish: Optional[Watch]) -> None:
    """Refuse options that exclude each other."""
    others = {
        "--check": runs.check,
        "--schedules": runs.count is not None,
        "--schedule": runs.schedule is not None,
        "--profile, --trace or --pdb": bool(wish),
    }
    conflicting = next((name for name, chosen in others.items() if chosen), None)
    if runs.explore and conflicting is not None:
        raise UsageError(
            "runs each launch under many schedules of its own", argument="--explore",
            remedy=f"Leave {conflicting} out.",
        )  # fmt: skip
    lacking = next((f"--{n}" for n in ("within", "most") if getattr(runs, n) is not None), None)
    if lacking is not None and not (runs.explore or runs.prove):
        raise UsageError("belongs to --explore", argument=lacking)


def _stand_in(target: Optional[str] = None) -> Any:
    """Return the substitute for a device that is not there, active on a target; None where no plugin does."""
    if "standin" not in registry().offers("service"):
        return None
    stand_in = registry().service("standin")
    if target is not None:  # `gluon.jit` did so if the variable was set before its first use
        stand_in.activate(target)
    return stand_in


def _verdict(file: str, target: Optional[str], runs: Runs) -> Verdict:
    return against_device(file, registry().target(target), lambda: _run(file, nullcontext()))


def _simulator(target: Optional[str]) -> Optional[Backend]:
    """Return the backend that simulates `target`, else the one that can simulate anything."""
    if target is not None:
        chosen = registry().backend(registry().target(target).backend)
        if chosen.simulates:
            return chosen
    return registry().simulator()


def _run_all(file: str, wish: Optional[Watch], runs: Runs, target: Optional[str] = None) -> int:
    simulator = _simulator(target)
    if simulator is None or simulator.simulation.settings is None or not (runs or runs.progress):
        return _run(file, _watching(wish, target))
    configured = load_named(
        simulator.simulation.settings, f"backend {simulator.name!r}, simulation"
    )
    for number, settings in enumerate(runs.settings()):
        hidden = StringIO()
        shown = redirect_stdout(hidden) if number else nullcontext()
        code = None
        watching = _watching(wish, target)  # a prompt talks to the user whatever is hidden
        try:
            with configured(**settings), shown:
                code = _run(file, watching)
            if code:
                return code
        except CapabilityError:  # the target cannot run it: no failure of a schedule
            code = Exit.UNAVAILABLE
            raise
        finally:
            if code not in (Exit.OK, Exit.UNAVAILABLE) and runs.count is not None:
                print(hidden.getvalue(), end="")
                name, seed = settings["schedule"], settings.get("seed", 0)
                print(
                    f"run {number + 1} of {runs.count} failed; repeat it with --schedule {name}"
                    + (f" --seed {seed}" if name == "random" else ""),
                    file=sys.stderr,
                )
    return 0


def _other_results(file: str, runs: Runs, target: Optional[str], record: Record) -> int:
    """Let the file judge the results of its launches under other schedules, too."""
    simulator = _simulator(target)
    assert simulator is not None and simulator.simulation.settings is not None  # it ran there
    configured = load_named(
        simulator.simulation.settings, f"backend {simulator.name!r}, simulation"
    )
    walks = [one.walked for one in record.launches if one.walked is not None]
    known = record.launches.copy()
    more = max((one.results for one in walks), default=1) - 1
    try:
        for number in range(1, min(more, RESULTS) + 1):
            code: Optional[int] = None
            hidden = StringIO()
            try:
                with configured(**runs.settings()[0], leave=number), redirect_stdout(hidden):
                    code = _run(file, nullcontext())
            finally:
                if code != 0:
                    print(hidden.getvalue(), end="")
                    print(
                        "wrong with the results of launches under another schedule; repeat it with "
                        "--schedule and the file of the kernel, KERNEL.schedule.json",
                        file=sys.stderr,
                    )
            if code:
                return code
    finally:
        record.launches = known
    return 0


def _run(file: str, watching: ContextManager[Any]) -> int:
    before = set(threading.enumerate())
    try:
        with watching:
            try:
                run_script(file)
            except (AssertionError, RuntimeError) as error:
                # A module that the file imports asks torch for a device that is not there.
                if "active drivers" in str(error):
                    raise _without_a_device(file) from error
                stand_in = _stand_in()
                if stand_in is None or not stand_in.asks(error):
                    raise
                if not stand_in.begin(os.environ.get("GLUON_TARGET")):
                    raise
                run_script(file)
            for thread in set(threading.enumerate()) - before:  # as Python waits at its end
                if not thread.daemon:
                    thread.join()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _without_a_device(file: str) -> CapabilityError:
    """Return the error of a kernel of Triton's own, which asked Triton for its driver and got none."""
    twin = simulated_twin(None)
    emulators = [
        f"--target {backend.name}:{twin.architecture.name}"
        for backend in registry().backends.values()
        if backend.simulates and backend.simulation.machine_code
    ]
    return CapabilityError(
        "a kernel under @triton.jit needs a device, and there is none here",
        remedy=" or ".join(
            [
                *(f"Execute its machine code: gluon run {file} {option}," for option in emulators),
                f"make it a Gluon kernel: gluon port {file}.",
            ]
        ),
    )


def _watching(wish: Optional[Watch], target: Optional[str]) -> ContextManager[Any]:
    simulator = _simulator(target)
    return simulator.simulation.watch(wish) if wish and simulator is not None else nullcontext()


def _simulated(target: Optional[str], wish: Optional[Watch]) -> None:
    """Refuse a target that is not simulated, or whose backend cannot watch so."""
    simulator = _simulator(target)
    chosen = registry().target(target)
    if simulator is None:
        raise PluginError("no simulator is installed")
    if not chosen.simulated:
        raise UsageError(
            "only simulated kernels can be profiled, traced, debugged and scheduled",
            argument="--target",
            got=str(chosen),
            remedy=f"Try --target {simulator.name}:{chosen.architecture.name}.",
        )
    lacking = [
        f.name
        for f in fields(Watch)
        if getattr(wish, f.name, None) and f.name not in simulator.simulation.watches
    ]
    if wish and lacking:
        able = next(
            (
                backend
                for backend in registry().backends.values()
                if backend.simulates and lacking[0] in backend.simulation.watches
            ),
            None,
        )
        options = {f.name: f.metadata.get("option") for f in fields(Watch)}[lacking[0]]
        raise UsageError(
            f"{simulator.name} cannot grant this",
            argument=options or f"--{lacking[0].replace('_', '-')}",
            got=str(chosen),
            remedy=None if able is None else _instead(able, chosen),
        )


def _instead(able: Backend, chosen: Target) -> str:
    """Return the target of a backend that can grant the options that `chosen` cannot."""
    others = able.simulation.stands_in_for
    if not others or chosen.architecture.backend in others:
        return f"Try --target {able.name}:{chosen.architecture.name}."
    return f"{able.name} can, for architectures of {', '.join(others)} alone."
