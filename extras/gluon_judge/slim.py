"""`gluon slim`: which synchronization of a kernel is unnecessary, with a proof, and why the rest is needed."""

from __future__ import annotations

import linecache
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any, Callable, Iterator, Optional, Sequence

from gluon_core.errors import GluonError
from gluon_core.simulation.evidence import Proved
from gluon_prove.verdict import prove
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.lookup import prepare
from gluon_sim.executor.models import models_for
from gluon_sim.launcher import Launch, SimulatedKernel, Verdict
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.source import in_library

__all__ = ["NEEDED", "OPEN", "UNNECESSARY", "Change", "Slimmed", "slimmed"]

UNNECESSARY, NEEDED, OPEN = "unnecessary", "needed", "open"

# Ops that wait until so many pieces of work are left, and the position of that number.
_PENDING = {
    "async_wait_group": 0,
    "async_tma_store_wait": 0,
    "async_tdm_wait": 0,
    "warpgroup_mma_wait": 1,
}
_REMOVABLE = (
    "fence",
    "barrier",
    "cluster_barrier",
    "mbarrier_wait",
    "lds_barrier_wait",
    "amd_cluster_wait",
    "cluster_wait",
)
_SCHEDULES = (("latest", 0), ("eager", 0), ("random", 1), ("random", 2))
# The prover follows shared and tensor memory; the order of accesses to global memory is outside of its model.
_UNMODELLED = ("barrier", "cluster_barrier")
_ASSUMED = ("assumed", "not looked at", "no race", "for every")


@dataclass(frozen=True)
class Change:
    """One synchronization, and the outcome of removing or weakening it.

    Args:
        file, line: of the kernel.
        source: the text of the line.
        op: the op, such as "fence_async_shared".
        change: "removed", "with one more pending" or "for one block instead of the cluster".
        verdict: "unnecessary", "needed" or "open".
        lines: the proof, the counterexample with its schedule, or the reason why it is open.
    """

    file: str
    line: int
    source: str
    op: str
    change: str
    verdict: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Slimmed:
    """The outcome for one kernel.

    Args:
        kernel: its name and target.
        verdict: that of the prover on the kernel as it is.
        lines: of that verdict.
        changes: one for each synchronization; none where the kernel itself is not proved.
    """

    kernel: str
    verdict: str
    lines: tuple[str, ...]
    changes: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Mutant:
    """Ops of one line, and how to change them: `edit` returns the function that undoes it."""

    ops: tuple[Op, ...]
    change: str
    edit: Callable[[Op], Callable[[], None]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        undo = [self.edit(op) for op in self.ops]
        try:
            yield
        finally:
            for one in reversed(undo):
                one()


def slimmed(launch: Launch, within: float) -> Slimmed:
    """Try to remove or weaken each synchronization of a launched kernel.

    Args:
        within: seconds for all of it; changes after that are open.
    """
    deadline = monotonic() + within
    base, error = _proof(launch, within / 4)
    if error is not None or base.verdict != "proved":
        return Slimmed(base.name, base.verdict, base.lines, ())
    before = launch.memory.contents()
    try:
        launch.run_once()
        right = launch.memory.contents()
        strict = replace(launch, settings=replace(launch.settings, fences="error"))
        if _simulated(strict, (before, right)) is None:
            launch = strict  # a fence that only some compilers add by themselves is needed
        changes = []
        for mutant in _mutants(launch):
            changes.append(_tried(launch, mutant, base, (before, right), deadline))
    finally:
        launch.memory.restore(before)
    return Slimmed(base.name, base.verdict, base.lines, tuple(changes))


def _proof(launch: Launch, seconds: float) -> Verdict:
    return prove(replace(launch, settings=replace(launch.settings, within=max(seconds, 1.0))))


def _mutants(launch: Launch) -> list[_Mutant]:
    groups: dict[tuple[str, int, str], list[Op]] = {}
    for op in launch.kernel.program.program.walk_ops():
        synchronizes = op.name in _PENDING or op.name.startswith(_REMOVABLE)
        if synchronizes and op.loc.line and not in_library(op.loc.file):
            groups.setdefault((op.loc.file, op.loc.line, op.name), []).append(op)
    mutants = []
    for (_, _, name), ops in groups.items():
        if name in _PENDING:
            mutants.append(_Mutant(tuple(ops), "with one more pending", _one_more))
        if all(not op.results for op in ops):
            mutants.append(_Mutant(tuple(ops), "removed", _removed))
        if name == "fence_async_shared" and all(op.args == (True,) for op in ops):
            mutants.append(
                _Mutant(tuple(ops), "for one block instead of the cluster", _of_one_block)
            )
    return mutants


def _removed(op: Op) -> Callable[[], None]:
    block = op.block
    assert block is not None
    ops, position = block.ops, block.ops.index(op)
    ops.pop(position)
    return lambda: ops.insert(position, op)


def _with_arguments(op: Op, arguments: tuple[Any, ...]) -> Callable[[], None]:
    old, op.args = op.args, arguments

    def undo() -> None:
        op.args = old

    return undo


def _one_more(op: Op) -> Callable[[], None]:
    place = _PENDING[op.name]
    return _with_arguments(op, (*op.args[:place], int(op.args[place]) + 1, *op.args[place + 1 :]))


def _of_one_block(op: Op) -> Callable[[], None]:
    return _with_arguments(op, (False,))


def _tried(
    launch: Launch, mutant: _Mutant, base: Proved, contents: tuple[Any, Any], deadline: float
) -> Change:
    op = mutant.ops[0]
    source = linecache.getline(op.loc.file, op.loc.line).strip()

    def change(verdict: str, lines: Sequence[str]) -> Change:
        return Change(
            op.loc.file, op.loc.line, source, op.name, mutant.change, verdict, tuple(lines)
        )

    if monotonic() > deadline:
        return change(OPEN, ["time is over"])
    text = launch.kernel.compiled.asm["program"]
    whole = text.compiled
    with mutant.applied():
        try:
            text.compiled = prepare(text.program, models_for(launch.kernel.target))
            changed = replace(launch, kernel=SimulatedKernel(launch.kernel.compiled))
            simulated = _simulated(changed, contents)
            if simulated is not None:
                return change(NEEDED, simulated)
            left = max(1.0, (deadline - monotonic()) / 4)
            proved, error = _proof(changed, left)
        finally:
            text.compiled = whole
    if error is not None:
        return change(NEEDED, [*proved.lines, *str(error).splitlines()])
    if proved.verdict != "proved":
        return change(
            OPEN, [f"no schedule that ran fails, and the prover: {proved.verdict}", *proved.lines]
        )
    lost = _lost(base, proved)
    if lost:
        return change(NEEDED, lost)
    if op.name in _UNMODELLED:
        words = "no schedule that ran fails; the order of accesses to global memory is outside of the proof"
        return change(OPEN, [words])
    return change(UNNECESSARY, proved.lines)


def _lost(base: Proved, changed: Proved) -> list[str]:
    """Return the reservations of a proof that the one of the whole kernel did not have."""
    known = {line.partition(" (line")[0] for line in base.lines}
    return [
        line
        for line in changed.lines
        if line.partition(" (line")[0] not in known and not line.startswith(_ASSUMED)
    ]


def _simulated(launch: Launch, contents: tuple[Any, Any]) -> Optional[list[str]]:
    """Run a changed kernel under some schedules; return the report of the first that fails, with the schedule."""
    before, right = contents
    for schedule, seed in _SCHEDULES:
        launch.memory.restore(before)
        settings = replace(
            launch.settings, schedule=schedule, seed=seed, prove=None, races=True, barriers=True, leaks=True,
            deadlocks=True, uninitialised=True, timeout=30.0,
        )  # fmt: skip
        name = f"schedule {schedule}" + (f", seed {seed}" if schedule == "random" else "")
        try:
            replace(launch, settings=settings).run_once()
        except SimulatorError as error:
            return [f"{name}: {type(error).__name__}", *str(error).splitlines()]
        except GluonError as error:
            return [f"{name}: {error}"]
        different = launch.memory.changed(right)
        if different:
            return [f"{name}: {', '.join(different)} hold other results"]
    return None
