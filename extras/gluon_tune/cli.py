"""The command `gluon tune`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli import complete
from gluon_cli.options import Json, TargetName

__all__ = ["tune"]


File = Annotated[
    Optional[str],
    typer.Argument(
        help="FILE or FILE:NAME of a tune.Task, or of an example with --space. Without it, --export "
        "and --merge work on the store alone.",
        metavar="FILE",
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        help="time (on a device), predicted (by the model of time), roofline (counts of the simulator), instructions, registers.",
        autocompletion=complete.one_of(
            "time", "predicted", "roofline", "instructions", "registers"
        ),
    ),
]
Space = Annotated[
    Optional[list[str]],
    typer.Option("--space", metavar="NAME=A,B,...", help="Values to search; repeatable."),
]
Shape = Annotated[
    Optional[list[str]],
    typer.Option(
        "--shape", metavar="NAME=VALUE;...", help="Shapes to tune for, instead; repeatable."
    ),
]
Search = Annotated[
    str,
    typer.Option(
        "--search",
        help="auto, exhaustive, optuna or random.",
        autocompletion=complete.one_of("auto", "exhaustive", "optuna", "random"),
    ),
]
Trials = Annotated[Optional[int], typer.Option("--trials", min=1, help="Configurations to try.")]
Minutes = Annotated[
    Optional[float], typer.Option("--minutes", help="Stop after that time, for each shape.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the search.")]
Workers = Annotated[
    Optional[int], typer.Option("--workers", "-j", min=1, help="Compilations at once.")
]
Dask = Annotated[
    Optional[str], typer.Option("--dask", metavar="ADDRESS", help="Work on this Dask cluster.")
]
Ray = Annotated[
    Optional[str],
    typer.Option("--ray", metavar="ADDRESS", help="Work on this Ray cluster; auto, local."),
]
Resource = Annotated[
    Optional[list[str]],
    typer.Option(
        "--resource", metavar="NAME=COUNT", help="Resource that a measuring worker must have."
    ),
]
RunLimit = Annotated[
    float, typer.Option("--run-limit", metavar="SECONDS", help="Kill a measurement after that.")
]
CompileLimit = Annotated[
    float, typer.Option("--compile-limit", metavar="SECONDS", help="... a compilation.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Try configurations again that the store knows.")
]
Store = Annotated[
    Optional[Path],
    typer.Option("--store", help="Where results are kept; GLUON_TUNE_STORE, ~/.gluon/tuned.db."),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Measure the stored best again; exit 1 where it is slower."),
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", help="How much slower it may be, relative.")
]
Export = Annotated[
    Optional[Path],
    typer.Option("--export", help="Write the store: FILE.json, or FILE.py, a table of source."),
]
Merge = Annotated[
    Optional[list[Path]],
    typer.Option("--merge", metavar="STORE", help="Take in another store; repeatable."),
]
Bundle = Annotated[
    Optional[Path], typer.Option("--bundle", help="Write the best ones into a bundle.")
]
Html = Annotated[
    Optional[Path], typer.Option("--html", help="Write a report that needs no network.")
]


def tune(
    file: File = None,
    target: TargetName = None,
    objective: Objective = "time",
    space: Space = None,
    shape: Shape = None,
    search: Search = "auto",
    trials: Trials = None,
    minutes: Minutes = None,
    seed: Seed = 0,
    workers: Workers = None,
    dask: Dask = None,
    ray: Ray = None,
    resource: Resource = None,
    run_limit: RunLimit = 10.0,
    compile_limit: CompileLimit = 120.0,
    again: Again = False,
    store: Store = None,
    check: Check = False,
    tolerance: Tolerance = 0.05,
    export: Export = None,
    merge: Merge = None,
    bundle: Bundle = None,
    html: Html = None,
    json: Json = False,
) -> Optional[int]:
    """Search for the configuration of a kernel that does best; `config="tuned"` launches it."""
    from gluon_tune import Settings
    from gluon_tune.command import Wish, show

    seconds = None if minutes is None else 60 * minutes
    settings = Settings(target, objective, search, trials, seconds, seed)
    settings = replace(settings, run_limit=run_limit, compile_limit=compile_limit, again=again)
    lists = (space or (), shape or (), dask, ray, resource or (), workers)
    files = (export, merge or (), bundle, html)
    return show(Wish(file, *lists, store, check, tolerance, *files, json), settings)
