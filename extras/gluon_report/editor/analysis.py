"""Run `gluon hints` on a file, in a process of its own that ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from gluon_report.inlay import Hint

__all__ = ["Analysis", "Problem", "analysed"]


@dataclass(frozen=True)
class Problem:
    """The reason for which a file has no hints.

    Args:
        message: what is wrong, in words.
        line: from 0, where it is known.
        column: from 0.
        wrong: True for an error of a kernel, False where the file could not be analysed.
    """

    message: str
    line: int = 0
    column: int = 0
    wrong: bool = False


@dataclass(frozen=True)
class Analysis:
    """The hints of a text, and the reason why it has none, or not all.

    Args:
        text: of the file when it was run.
        named: in the order of their places.
    """

    text: str
    named: tuple[Hint, ...] = ()
    problem: Optional[Problem] = None


async def analysed(path: Path, target: Optional[str], patience: float) -> Analysis:
    """Return the analysis of a file. The process that runs it is ended after `patience` seconds, and when the caller is cancelled."""
    text = path.read_text(encoding="utf-8", errors="replace")
    command = [sys.executable, "-m", "gluon_cli", "hints", str(path), "--json"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *(["--target", target] if target else []),
        cwd=path.parent,
        stdin=asyncio.subprocess.DEVNULL,  # the server's own is the editor's
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # what the file starts ends with it
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), patience)
    except asyncio.TimeoutError:
        return Analysis(
            text, problem=Problem(f"not analysed: it ran for longer than {patience:g} seconds")
        )
    finally:
        _end(process)
    return _read(text, path, output.decode("utf-8", "replace"), process.returncode)


def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and those that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def _read(text: str, path: Path, output: str, code: Optional[int]) -> Analysis:
    try:
        content = json.loads(output)
    except ValueError:
        return Analysis(text, problem=Problem(f"not analysed: its process ended with code {code}"))
    problem = None
    if isinstance(content, dict):
        problem = _problem(content.get("error", {}), path)
        content = content.get("hints", [])
    return Analysis(text, tuple(Hint.of_inlay(one, str(path)) for one in content), problem)


def _problem(error: dict[str, Any], path: Path) -> Problem:
    message = str(error.get("message") or "not analysed").partition("\n  at ")[0]
    file, line = error.get("file"), error.get("line")
    if not file or not line:
        return Problem(f"not analysed: {message}")
    if Path(file).resolve() != path.resolve():
        return Problem(f"{file}:{line}: {message}", wrong=True)
    return Problem(message, int(line) - 1, max(0, int(error.get("column") or 1) - 1), wrong=True)
