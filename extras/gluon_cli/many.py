"""`gluon run` for several targets, and again whenever a file changes: a process for each run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_cli.output import OUTCOME, Exit, UsageError, console, errors, print_json, table
from gluon_core.registry.load import registry

__all__ = ["again", "listed", "on_each", "parsed", "watch"]


def listed(text: str, argument: str) -> list[str]:
    """Return the targets of a list with commas, as the registry names them, each once.

    Raises:
        UsageError: an empty list.
        TargetError: an unknown target.
    """
    targets = [str(registry().target(word.strip())) for word in text.split(",") if word.strip()]
    if not targets:
        raise UsageError("names no target", argument=argument, got=repr(text))
    return list(dict.fromkeys(targets))


def again(context: Any, **changed: Any) -> list[str]:
    """Return the command line of `context` as a process of its own, with these options otherwise."""
    words = []
    for parameter in context.command.params:
        value = changed.get(parameter.name, context.params.get(parameter.name))
        if parameter.param_type_name == "argument" or value is None:
            continue
        if value is True:
            words.append(parameter.opts[0])
        elif isinstance(value, (list, tuple)):
            words += [word for one in value for word in (parameter.opts[0], str(one))]
        elif value is not False:
            words += [parameter.opts[0], str(value)]
        elif parameter.secondary_opts:
            words.append(parameter.secondary_opts[0])
    file = context.params["file"]
    command = [sys.executable, "-m", "gluon_core", str(context.command.name)]
    return [*command, *words, "--", str(file), *context.args]


def on_each(
    context: Any,
    targets: Sequence[str],
    as_json: bool,
    changed: Callable[[str], Mapping[str, Any]] = lambda target: {},
) -> int:
    """Run a file on each target, one after the other; the exit code is the worst.

    Args:
        changed: options of the run on a target that are not those of the command line.
    """
    results: list[dict[str, Any]] = []
    for target in targets:
        started = time.perf_counter()
        if not as_json:
            console().rule(target, align="left", style="dim")
            sys.stdout.flush()
        command = again(context, targets=None, target=target, **changed(target))
        done, outcome = _called(command, as_json)
        seconds = time.perf_counter() - started
        row: dict[str, Any] = {
            "target": target,
            "exit": done.returncode,
            "outcome": outcome or _word(done.returncode),
            "seconds": round(seconds, 2),
        }
        if as_json:
            row.update(parsed(done.stdout))
        results.append(row)
    code = worst(row["exit"] for row in results)
    if as_json:
        print_json({"exit": code, "targets": results})
        return code
    rows = [(r["target"], r["outcome"], r["exit"], f"{r['seconds']:.1f} s") for r in results]
    console().print(table("", ("target", "outcome", ">exit code", ">time"), rows))
    return code


def _called(command: Sequence[str], as_json: bool) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a command; return it, and its outcome beyond the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcome"
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE if as_json else None,
            text=True,
            env={**os.environ, OUTCOME: str(path)},
        )
        return done, path.read_text() if path.exists() else ""


def worst(codes: Any) -> int:
    """Wrong before unknown, unknown before well."""
    distinct = set(codes)
    return Exit.FAILED if Exit.FAILED in distinct else max(distinct, default=0, key=abs)


def parsed(text: Optional[str]) -> dict[str, Any]:
    """Return the JSON that a process printed; nothing where it printed none."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _word(code: int) -> str:
    known = {0: "well", 1: "wrong", 2: "wrong command line", 3: "cannot run there"}
    return known.get(code, "ended with another code")


# -- again and again -------------------------------------------------------------------------------


def watch(context: Any, file: str, every: float = 0.2) -> int:
    """Run a file, and again when it or a Python file in its folder changes, until Ctrl-C."""
    folder = Path(file).resolve().parent
    seen: dict[Path, float] = {}
    try:
        while True:
            seen = _times(folder)
            code = subprocess.run(again(context, watch=None)).returncode
            errors().print(f"exit code {code}; watching {folder} (Ctrl-C ends)", style="dim")
            while _times(folder) == seen:
                time.sleep(every)
    except KeyboardInterrupt:
        return Exit.OK


def _times(folder: Path) -> dict[Path, float]:
    times = {}
    for path in folder.glob("*.py"):
        try:
            times[path] = path.stat().st_mtime
        except OSError:  # it has just gone
            continue
    return times
