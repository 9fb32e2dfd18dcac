"""Runs of many random programs: processes, and a log of JSON lines that the next run goes on with."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pkgutil
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional

from gluon_core.processes import each

__all__ = ["MOST", "add", "answers", "entries"]

MOST = 300.0  # seconds of one program in a process of its own
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def answers(
    function: str,
    calls: Iterable[tuple[Any, ...]],
    jobs: int,
    seconds: Optional[float] = None,
    spent: Callable[[Any], bool] = lambda answer: False,
    limit: float = MOST,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Call "module:function" with each call, and yield (call, answer) as they end.

    Args:
        jobs: processes; with 1 it is this one.
        seconds: after which no call begins.
        spent: whether a process that gave this answer takes no other call.
        limit: seconds of one call, where there are processes.

    Yields:
        `gluon_core.processes.Ended` in place of the answer of a process that died or was late.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    left = (call for call in calls if time.monotonic() < end)
    if jobs <= 1:
        work = pkgutil.resolve_name(function)
        for call in left:
            yield call, work(*call)
        return
    # Processes share the cores already: a library's threads in each of them only take turns.
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
    yield from each(function, left, jobs, limit=limit, environment=environment, spent=spent)


def entries(log: Path) -> list[dict[str, Any]]:
    """Return what a log holds, but for the line that a run wrote when it was stopped."""
    rows = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def add(log: Path, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Write each row to the log as it comes, and pass it on."""
    with log.open("a", encoding="utf-8") as file:
        file.write("\n" * bool(file.tell()))  # behind a line that was not finished
        for row in rows:
            file.write(json.dumps(row) + "\n")
            file.flush()
            yield row
