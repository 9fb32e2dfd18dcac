"""The tasks that wait for, or race with, each other when a launch ends with an error."""

from __future__ import annotations

import ast
import linecache
import re
from typing import Any, Optional

from gluon_core.errors import GluonError
from gluon_sim.errors import Access, DeadlockError, RaceError, Scene
from gluon_sim.findings import Party, Trouble

__all__ = ["function_around", "trouble"]


def trouble(kernel: str, target: str, error: GluonError) -> Trouble:
    """Return a mistake as a picture: its parties, and which blocks which."""
    span = error.span
    parties: tuple[Party, ...] = ()
    relation = ""
    if isinstance(error, DeadlockError):
        parties, relation = _deadlock(error), "waits for"
    elif isinstance(error, RaceError) and len(error.accesses) == 2:
        first, second = (_access(one) for one in error.accesses)
        parties, relation = (first, Party(**{**vars(second), "waits_for": (0,)})), "no order"
    elif span is not None:
        parties = (Party(kernel, str(error).splitlines()[0], span.file, span.line),)
    return Trouble(
        type(error).__name__,
        kernel,
        target,
        str(error),
        span.file if span is not None else "",
        span.line if span is not None else 0,
        relation,
        parties,
    )


def _access(one: Access) -> Party:
    file, line = (one.span.file, one.span.line) if one.span is not None else ("", 0)
    program = "another program" if one.program is None else f"program {one.program}"
    how = "asynchronous " if one.queue is not None else ""
    proxy = "" if one.proxy == "generic" else f", {one.proxy} proxy"
    return Party(f"{one.task}, {program}", f"{how}{one.kind} by {one.op}{proxy}", file, line)


def _deadlock(error: DeadlockError) -> tuple[Party, ...]:
    """Return the tasks that wait, then the lines that would let one go on, each waiting for the task
    that is in its function, then the tasks that are over."""
    scenes = error.waiting[:16]
    lines: dict[tuple[str, int], int] = {}
    for scene in scenes:
        if scene.span is not None:
            for line in scene.candidates:
                lines.setdefault((scene.span.file, line), len(scenes) + len(lines))
    parties = [
        Party(
            scene.task,
            _wants(scene),
            *_place(scene),
            tuple(lines[_place(scene)[0], line] for line in scene.candidates)
            if scene.span is not None
            else (),
        )
        for scene in scenes
    ]
    for file, line in lines:
        there = function_around(file, line)
        stuck = [
            number
            for number, scene in enumerate(scenes)
            if _place(scene)[0] == file and _place(scene)[1] in there
        ]
        state = "was never reached" if stuck else "was not reached, and its task is over"
        parties.append(Party("", state, file, line, tuple(stuck)))
    parties += [Party(name, "is over") for name in error.ended[:16]]
    return tuple(parties)


def _wants(scene: Scene) -> str:
    if scene.phase is None:
        return scene.text.partition(" waits for ")[2] or scene.text
    missing = []
    if scene.pending:
        missing.append(f"{scene.pending} arrival{'s' if scene.pending > 1 else ''}")
    if scene.size:
        missing.append(f"{scene.size} bytes")
    place = re.search(r"barrier .*?(?= in program|[,;:]|$)", scene.text)
    where = f" of the {place[0]}" if place else ""
    return f"phase {scene.phase}{where}: {' and '.join(missing) or 'nobody'} missing"


def _place(scene: Scene) -> tuple[str, int]:
    return (scene.span.file, scene.span.line) if scene.span is not None else ("", 0)


def function_around(file: str, line: int) -> range:
    """Return the lines of the function that `line` belongs to, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return range(line, line + 1)
    best = range(line, line + 1)
    size: Optional[int] = None
    node: Any
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        last = node.end_lineno or node.lineno
        if first <= line <= last and (size is None or last - first < size):
            best, size = range(first, last + 1), last - first
    return best
