"""`gluon tune`: search for the configuration of a kernel that does best."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional, Sequence

from rich.markup import escape

from gluon_cli.output import Exit, UsageError, console, errors, print_json, table
from gluon_cli.parse import parse_assignments, parse_value
from gluon_core.registry.load import registry
from gluon_tune import Outcome, Settings, Store, search
from gluon_tune.check import check
from gluon_tune.engine import Dask, Engine, Local, RayCluster
from gluon_tune.export import write
from gluon_tune.report import amount, effects, frontier, gain, headline, page, spoken
from gluon_tune.session import Progress
from gluon_tune.task import Reference

__all__ = ["Wish", "show"]


@dataclass(frozen=True)
class Wish:
    """The options of the command line other than the settings of the search.

    Args:
        spec: FILE or FILE:NAME; None works on the store alone.
        space, shape: as typed.
        dask, ray: addresses; resources: as typed.
        workers: how many compile at once.
        store: its file.
        check: measure the stored best again.
        tolerance: how much slower it may be.
        export, merge, bundle, html: files.
        json: print JSON.
    """

    spec: Optional[str] = None
    space: Sequence[str] = ()
    shape: Sequence[str] = ()
    dask: Optional[str] = None
    ray: Optional[str] = None
    resources: Sequence[str] = ()
    workers: Optional[int] = None
    store: Optional[Path] = None
    check: bool = False
    tolerance: float = 0.05
    export: Optional[Path] = None
    merge: Sequence[Path] = ()
    bundle: Optional[Path] = None
    html: Optional[Path] = None
    json: bool = False


def show(wish: Wish, settings: Settings) -> int:
    if wish.spec is None:
        return _store_only(wish)
    reference = Reference.to(wish.spec, _space(wish.space), _shapes(wish.shape))
    with Store(wish.store) as store:
        engine = _engine(wish, settings)
        try:
            if wish.check:
                return _check(reference, settings, engine, store, wish)
            bar = _Bar(quiet=wish.json, objective=settings.objective)
            with bar:
                outcomes = search(
                    reference, settings, engine=engine, store=store, progress=bar.hear
                )
        finally:
            engine.close()
        if wish.html is not None:
            title = f"gluon tune {Path(wish.spec).name}"
            wish.html.write_text(page(title, outcomes), encoding="utf-8")
        _files(wish, store, outcomes, settings)
    if wish.json:
        print_json([_plain(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            _print(outcome)
        print(f"kept in {store.path}", file=sys.stderr)
    if any(outcome.interrupted for outcome in outcomes):
        errors().print("[bold red]interrupted[/]: the results so far are kept", highlight=False)
        return 130
    return Exit.OK if all(outcome.best for outcome in outcomes) else Exit.FAILED


def _space(items: Sequence[str]) -> Optional[dict[str, list[Any]]]:
    """`BLOCK=128,256` as the values of BLOCK."""
    space: dict[str, list[Any]] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError("must be NAME=VALUE,VALUE,...", argument="--space", got=repr(item))
        value = parse_value(f"[{text}]", "--space")
        space[name.strip()] = list(value)
    return space or None


def _shapes(items: Sequence[str]) -> Optional[list[dict[str, Any]]]:
    """`n=4096` or `M=4096;N=4096`, each a shape."""
    shapes = [parse_assignments([p for p in item.split(";") if p], "--shape") for item in items]
    return shapes or None


def _engine(wish: Wish, settings: Settings) -> Engine:
    resources = {n: float(v) for n, v in parse_assignments(wish.resources, "--resource").items()}
    if wish.dask and wish.ray:
        raise UsageError("choose one of --dask and --ray", argument="--dask")
    if wish.dask:
        return Dask(wish.dask, resources)
    if wish.ray:
        return RayCluster(wish.ray, resources)
    if resources:
        raise UsageError("needs --dask or --ray", argument="--resource")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Local(wish.workers or cores or 1)


# -- while it runs -------------------------------------------------------------------------------


class _Bar:
    """The progress of a search: a bar on a terminal, else a line for each better result, and every ten
    seconds."""

    def __init__(self, quiet: bool, objective: str):
        self._objective = objective
        self._terminal = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._drawn: Any = None
        self._task: Any = None
        self._reported = 0.0
        self._best: Optional[float] = None

    def __enter__(self) -> _Bar:
        if self._terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._drawn = Progress(*columns, console=errors())
            self._drawn.start()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def hear(self, state: Progress) -> None:
        best = "nothing works so far"
        if state.best is not None:
            best = f"{amount(state.best.value, self._objective)}: {spoken(state.best.config)}"
        left = "" if state.left is None else f"about {state.left:.0f} s left; "
        if self._drawn is not None:
            if self._task is None or state.done == 1:
                self._task = self._drawn.add_task("", total=state.wanted)
            self._drawn.update(
                self._task,
                completed=state.done,
                total=state.wanted,
                description=f"{left}best {best}",
            )
            return
        value = None if state.best is None else state.best.value
        news = value != self._best or state.done == state.wanted
        if self._quiet or not (news or time.monotonic() - self._reported > 10):
            return
        self._reported, self._best = time.monotonic(), value
        print(f"{state.done} of {state.wanted}; {left}best {best}", file=sys.stderr, flush=True)


# -- results ------------------------------------------------------------------------------


def _plain(outcome: Outcome) -> dict[str, Any]:
    best, start = outcome.best, outcome.start
    return {
        **asdict(outcome.key),
        "shape": dict(outcome.shape),
        "best": None if best is None else asdict(best),
        "default": None if start is None else asdict(start),
        "tried": outcome.tried,
        "configurations": outcome.total,
        "seconds": outcome.seconds,
        "interrupted": outcome.interrupted,
        "statuses": _counts(outcome),
        "device": dict(outcome.facts),
    }


def _counts(outcome: Outcome) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in outcome.trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    return counts


def _print(outcome: Outcome) -> None:
    key, objective, best = outcome.key, outcome.key.objective, outcome.best
    where = " on ".join(filter(None, (key.target, key.device)))
    out = console()
    out.print(f"[bold]{escape(headline(outcome))}[/] for {where}", highlight=False)
    counts = ", ".join(f"{count} {status}" for status, count in _counts(outcome).items())
    of = f" of {outcome.total}" if outcome.total else ""
    print(
        f"{len(outcome.trials)}{of} configurations in {outcome.seconds:.1f} s: {counts or 'none'}"
    )
    if best is None:
        for reason in list(dict.fromkeys(t.reason for t in outcome.trials if t.reason))[:5]:
            print(f"  {reason}")
        return
    rows: list[Optional[Sequence[Any]]] = []
    for number, trial in frontier(outcome.trials):
        rows.append((number, amount(trial.value, objective), spoken(trial.config)))
    out.print(table("frontier", (">trial", f">{objective}", "configuration"), rows))
    rows = []
    for name, groups in effects(outcome.trials).items():
        for value, (count, least, middle) in groups.items():
            rows.append((f"{name}={value}", count, f"{least:.3f}", f"{middle:.3f}"))
        rows.append(None)
    if rows:
        columns = ("parameter", ">worked", ">best", ">median")
        out.print(table("effect of each parameter, relative to the best", columns, rows))
    line = f"best: {spoken(best.config)}: {amount(best.value, objective)}"
    if best.low is not None and best.high is not None and best.low != best.high:
        line += f" ({amount(best.low, objective)} to {amount(best.high, objective)})"
    if outcome.start is not None and outcome.start.value and best.value:
        line += f", {gain(outcome)}"
    print(line)


def _check(
    reference: Reference, settings: Settings, engine: Engine, store: Store, wish: Wish
) -> int:
    checks = check(reference, settings, engine=engine, store=store, tolerance=wish.tolerance)
    if wish.json:
        print_json([asdict(one) for one in checks])
    else:
        rows = [
            (
                one.key.bucket,
                spoken(one.trial.config),
                amount(one.trial.value, one.key.objective),
                amount(one.now.value, one.key.objective),
                ("slower" if one.now.status == "ok" else f"{one.now.status}: {one.now.reason}")
                if one.slower
                else "as before",
            )
            for one in checks
        ]
        columns = ("arguments", "configuration", ">before", ">now", "")
        console().print(table(f"the best of {store.path}", columns, rows))
    if not checks:
        print(f"nothing to check: {store.path} knows nothing of this task here", file=sys.stderr)
        return Exit.UNAVAILABLE
    return Exit.FAILED if any(one.slower for one in checks) else Exit.OK


# -- files ---------------------------------------------------------------------------------------


def _store_only(wish: Wish) -> int:
    if not (wish.export or wish.merge):
        raise UsageError(
            "names no file to tune",
            argument="FILE",
            remedy="Or work on the store: --export, --merge.",
        )
    with Store(wish.store) as store:
        _files(wish, store, (), Settings())
    return Exit.OK


def _files(wish: Wish, store: Store, outcomes: Sequence[Outcome], settings: Settings) -> None:
    for path in wish.merge:
        if not path.is_file():
            raise UsageError("no such file", argument="--merge", got=str(path))
        with Store(path, readonly=True) as other:
            count = store.merge(other)
        print(f"{count} trials of {path} taken in", file=sys.stderr)
    if wish.export is not None:
        count = write(store, str(wish.export))
        print(f"{count} configurations written to {wish.export}", file=sys.stderr)
    if wish.bundle is not None and wish.spec is not None:
        _bundle(wish, outcomes)


def _bundle(wish: Wish, outcomes: Sequence[Outcome]) -> None:
    """Compile the best configuration of each shape into a bundle."""
    from gluon_bundle import Bundle
    from gluon_tune import Placeholders

    task = Reference.to(str(wish.spec), _space(wish.space), _shapes(wish.shape)).load()
    bundle = Bundle()
    for outcome in outcomes:
        if outcome.best is None:
            continue
        target = outcome.key.target
        config = task.whole(outcome.best.config, registry().target(target))
        args = task.arguments(Placeholders(), **outcome.shape)
        values = task.values(args, config)
        compiled = task.function.warmup(*values, grid=(1,), target=target, **config)
        names = {name for name in task.function.arg_names}
        options = {name: value for name, value in config.items() if name not in names}
        bundle.add(compiled.src, target=target, **options)
    digest = bundle.write(str(wish.bundle))
    print(f"{wish.bundle}: sha256 {digest}", file=sys.stderr)
