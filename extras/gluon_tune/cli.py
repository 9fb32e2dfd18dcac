"""The command `gluon tune`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

import typer

from gluon_cli import complete
from gluon_cli.options import Json, TargetName

__all__ = ["tune"]


def tune(
    file: Annotated[
        Optional[str],
        typer.Argument(
            help="FILE or FILE:NAME of a tune.Task, or of an example with --space. Without it, --export "
            "and --merge work on the store alone.",
            metavar="FILE",
        ),
    ] = None,
    target: TargetName = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="time (on a device), roofline (what the simulator counts), instructions, registers.",
            autocompletion=complete.one_of("time", "roofline", "instructions", "registers"),
        ),
    ] = "time",
    space: Annotated[
        Optional[list[str]],
        typer.Option("--space", metavar="NAME=A,B,...", help="What to search; repeatable."),
    ] = None,
    shape: Annotated[
        Optional[list[str]],
        typer.Option(
            "--shape", metavar="NAME=VALUE;...", help="What to tune for, instead; repeatable."
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            help="auto, exhaustive, optuna or random.",
            autocompletion=complete.one_of("auto", "exhaustive", "optuna", "random"),
        ),
    ] = "auto",
    trials: Annotated[
        Optional[int], typer.Option("--trials", min=1, help="Configurations to try.")
    ] = None,
    minutes: Annotated[
        Optional[float], typer.Option("--minutes", help="Stop after that time, for each shape.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of what the search draws.")] = 0,
    workers: Annotated[
        Optional[int], typer.Option("--workers", "-j", min=1, help="Compilations at once.")
    ] = None,
    dask: Annotated[
        Optional[str], typer.Option("--dask", metavar="ADDRESS", help="Work on this Dask cluster.")
    ] = None,
    ray: Annotated[
        Optional[str],
        typer.Option("--ray", metavar="ADDRESS", help="Work on this Ray cluster; auto, local."),
    ] = None,
    resource: Annotated[
        Optional[list[str]],
        typer.Option(
            "--resource", metavar="NAME=COUNT", help="What a worker that measures must have."
        ),
    ] = None,
    run_limit: Annotated[
        float, typer.Option("--run-limit", metavar="SECONDS", help="Kill a measurement after that.")
    ] = 10.0,
    compile_limit: Annotated[
        float, typer.Option("--compile-limit", metavar="SECONDS", help="... a compilation.")
    ] = 120.0,
    again: Annotated[
        bool, typer.Option("--again", help="Try what the store knows once more.")
    ] = False,
    store: Annotated[
        Optional[Path],
        typer.Option(
            "--store", help="Where results are kept; GLUON_TUNE_STORE, ~/.gluon/tuned.db."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Measure the stored best again; exit 1 where it is slower."),
    ] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="How much slower it may be, relative.")
    ] = 0.05,
    export: Annotated[
        Optional[Path],
        typer.Option("--export", help="Write the store: FILE.json, or FILE.py, a table of source."),
    ] = None,
    merge: Annotated[
        Optional[list[Path]],
        typer.Option("--merge", metavar="STORE", help="Take in another store; repeatable."),
    ] = None,
    bundle: Annotated[
        Optional[Path], typer.Option("--bundle", help="Write the best ones into a bundle.")
    ] = None,
    html: Annotated[
        Optional[Path], typer.Option("--html", help="Write a report that needs no network.")
    ] = None,
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
