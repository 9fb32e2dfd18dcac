"""Whether a launch is watched, and by whom."""

from __future__ import annotations

from typing import Any, Optional

from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.tools.debug import Debugger
from gluon_sim.tools.watcher import Launch, watchers_now

__all__ = ["has_breakpoints", "start"]


def start(program: CompiledProgram, compiled: Any, grid: tuple[int, int, int]) -> Optional[Launch]:
    """What to run a launch in, or None where nobody watches."""
    watchers = watchers_now()
    if has_breakpoints(program) and not any(w.keeps_values for w in watchers):
        watchers = (*watchers, Debugger())
    return Launch(program, compiled, grid, watchers) if watchers else None


def has_breakpoints(program: CompiledProgram) -> bool:
    """Does the kernel call `breakpoint()`? Looked up once per program."""
    found = program.program.found
    if found.breakpoints is None:
        found.breakpoints = any(op.name == "breakpoint" for op in program.program.walk_ops())
    return found.breakpoints
