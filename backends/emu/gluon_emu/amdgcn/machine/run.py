"""The loop that runs a program: batches of waves, barriers, reports.

The batch that is furthest behind runs, until it reaches another one (they join), parts, or waits.
So waves that took different ways meet where the ways do. A batch that keeps going back, as one that
waits for another's store does, lets the others go on after a while.
"""

from __future__ import annotations

import time
from typing import Any, Optional, Type

import numpy as np

from gluon_emu.amdgcn.decode.operands import Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa.control import BLOCK, END, SWITCH
from gluon_emu.amdgcn.isa.memory import spilled
from gluon_emu.amdgcn.isa.smem import SCALAR
from gluon_emu.amdgcn.machine.assertions import describe
from gluon_emu.amdgcn.machine.barriers import WORKGROUP, Barriers
from gluon_emu.amdgcn.machine.code import Code
from gluon_emu.amdgcn.machine.copied import Copied
from gluon_emu.amdgcn.machine.lds import Lds
from gluon_emu.amdgcn.machine.scratch import Scratch
from gluon_emu.amdgcn.machine.state import Batch
from gluon_emu.amdgcn.machine.trace import Tally, bank_cycles
from gluon_emu.amdgcn.machine.waits import limits_of
from gluon_emu.errors import (
    DeadlockError,
    EmulatorError,
    MissingWaitError,
    TimeLimitError,
    UninitialisedError,
    span_of,
)
from gluon_emu.memory import GlobalMemory
from gluon_emu.settings import Settings

__all__ = ["Machine"]

_PATIENCE = 200  # jumps back that a batch may make before others that could run do; a wait for another program takes all of them
_WAIT_NAMES = {
    "vm": "s_waitcnt vmcnt({n})",
    "lgkm": "s_waitcnt lgkmcnt({n})",
    "vs": "s_waitcnt_vscnt null, {n}",
    "load": "s_wait_loadcnt {n}",
    "store": "s_wait_storecnt {n}",
    "ds": "s_wait_dscnt {n}",
    "km": "s_wait_kmcnt {n}",
    "async": "s_wait_asynccnt {n}",
    "tensor": "s_wait_tensorcnt {n}",
}


class Machine:
    """The resident workgroups of one launch.

    Args:
        code: the bound program.
        memory: the memory that the arguments point to.
        groups: (x, y, z) of each resident workgroup.
        waves: of a workgroup.
        lds_bytes: of a workgroup.
        settings: the checks.
        deadline: of `time.monotonic`, None for none.
        cluster: workgroups of a cluster, which are next to each other.
        order: an `Order` where workgroups can learn from each other.
        grid: workgroups along x, y and z, for reports.
    """

    def __init__(
        self,
        code: Code,
        memory: GlobalMemory,
        groups: np.ndarray,
        waves: int,
        lds_bytes: int,
        settings: Settings,
        deadline: Optional[float] = None,
        tally: Optional[Tally] = None,
        cluster: int = 1,
        order: Any = None,
        grid: tuple[int, int, int] = (1, 1, 1),
    ):
        self.order, self.grid = order, grid
        self.service: Any = None  # of the runtime
        self.code, self.program = code, code.program
        self.memory, self.settings = memory, settings
        self.groups, self.waves_per_group = groups, waves
        self.deadline = deadline
        total = len(groups) * waves
        generation = code.context.generation
        lds_counter = "ds" if generation >= 12 else "lgkm"
        memory_counter = "load" if generation >= 12 else "vm"
        self.lds_keys = (
            (lds_counter, "lds"),
            (memory_counter, "mem"),
            ("async", "async"),
            ("tensor", "tensor"),
        )
        self.lds = Lds(len(groups), waves, lds_bytes, code.granule, self)
        self.copied = Copied(self)
        self.scratch = Scratch(total, code.context.lanes, code.scratch_bytes, self)
        self.barriers = Barriers(len(groups), waves, cluster, self)
        self.ended = np.zeros(total, bool)
        self.hardware: dict[str, int] = {}
        self.compared: dict[int, list[np.ndarray]] = {}  # operands of comparisons for assertions
        self.limits = limits_of(generation)
        self.time = 0
        self.batches: list[Batch] = []
        self.blocked: list[Batch] = []
        self.tally = tally or Tally(len(code.steps))
        self.counts, self.useful = self.tally.counts, self.tally.useful

    # -- running -----------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)

    def run(self) -> None:
        """Run all batches to their end.

        Raises:
            EmulatorError: the code violates a rule.
        """
        while self.batches or self.blocked:
            if not self.batches:
                self.batches, self.blocked = self.blocked, []
                if not any(self.barriers.ready(b, b.barrier).any() for b in self.batches):
                    raise self._deadlock()
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise self._late()
            self._run(self._next())

    def _next(self) -> Batch:
        """Take out the batch that is furthest behind, joined with those at its instruction."""
        eager = [b for b in self.batches if b.patience < _PATIENCE]
        if not eager:
            for b in self.batches:
                b.patience = 0
            eager = self.batches
        chosen = min(eager, key=lambda b: b.pc)
        rest = []
        for other in self.batches:
            if other is chosen:
                continue
            if chosen.joins(other):
                chosen.join(other)
            else:
                rest.append(other)
        self.batches = rest
        return chosen

    def _run(self, b: Batch) -> None:
        steps, registers, keys = self.code.steps, self.code.registers, self.code.own_keys
        counts = self.counts
        limit = min((o.pc for o in self.batches if o.pc > b.pc), default=1 << 60)
        others = bool(self.batches)
        waits = self.settings.waits
        hazards = self.code.hazards if self.settings.hazards else None
        sources, results = self.code.sources, self.code.results
        written = b.written
        unwritten = True if self.settings.uninitialised else None
        pc, ticks, size = b.pc, 0, b.waves.size
        while True:
            pending = b.outstanding.pending
            if pending and waits and not pending.keys().isdisjoint(registers[pc]):
                self._check_pending(b, pc, keys[pc])
            if unwritten is not None:
                if sources[pc] <= written:
                    written |= results[pc]
                else:
                    self._uninitialised(b, pc)
            if hazards is not None and (check := hazards[pc]) is not None:
                check(b, self)
            counts[pc] += size
            target = steps[pc](b)
            if target is None:
                pc += 1
            elif target is SWITCH:
                self.batches.append(b)
                return
            elif target is BLOCK:
                b.pc = pc
                self.blocked.append(b)
                return
            elif target is END:
                self.ended[b.waves] = True
                self.batches += self.blocked
                self.blocked = []
                return
            else:
                if target <= pc and others:
                    b.patience += 1
                    if b.patience >= _PATIENCE:
                        b.pc = target
                        self.batches.append(b)
                        return
                if target <= pc:
                    limit = min((o.pc for o in self.batches if o.pc > target), default=1 << 60)
                pc = target
            if pc >= limit:
                b.pc = pc
                self.batches.append(b)
                return
            ticks += 1
            if not ticks & 255 and self.deadline is not None and time.monotonic() > self.deadline:
                b.pc = pc
                self.batches.append(b)
                raise self._late()

    # -- barriers ----------------------------------------------------------------------------------

    def arrive(self, b: Batch, which: int, members: int = 0) -> None:
        """Let the waves of `b` arrive at a barrier; check all waiting waves again."""
        self.barriers.arrive(b, which, members)
        self.batches += self.blocked
        self.blocked = []

    def arrive_once(self, b: Batch, here: int) -> None:
        """Arrive at the workgroup's barrier at `here`, but for waves that did and wait there."""
        new = self.barriers.arrived[b.waves] == self.barriers.passed[b.waves]
        if new.all():
            self.arrive(b, WORKGROUP)
        elif new.any():  # others waited when these joined them
            other = b.split(new)
            other.pc = here
            self.arrive(other, WORKGROUP)
            self.batches.append(other)

    def pass_barrier(self, b: Batch, which: int, behind: int) -> Any:
        """Let waves whose barrier is complete go on to `behind`."""
        b.barrier = which
        ready = self.barriers.ready(b, which)
        if ready.all():
            self.barriers.go_on(b, which)
            b.pc = behind
            return SWITCH
        if not ready.any():
            return BLOCK
        other = b.split(ready)
        self.barriers.go_on(other, which)
        other.pc = behind
        self.batches.append(other)
        return BLOCK

    # -- reports -----------------------------------------------------------------------------------

    def assertion(self, ins: Instruction, b: Batch) -> str:
        """Return the message that the waves of a batch printed before they trapped."""
        return describe(ins, b)

    def wait_name(self, counter: str, left: str = "n") -> str:
        return _WAIT_NAMES[counter].format(n=left)

    def _check_pending(self, b: Batch, pc: int, own: tuple[tuple[str, str], ...]) -> None:
        ins = self.program.instructions[pc]
        results = self.code.results[pc]
        for register in self.code.registers[pc]:
            entry = b.outstanding.pending.get(register)
            if entry is None:
                continue
            if entry.key in own and register in results and register not in self.code.sources[pc]:
                continue  # operations of one kind write in order
            waiting = b.outstanding.open_in(entry, b.waves.size)
            if not waiting.any():
                continue
            earlier = self.program.instructions[entry.where]
            issued = b.outstanding.issued_of(*entry.key)
            wave = int(np.nonzero(waiting)[0][0])
            left = (np.broadcast_to(issued, (b.waves.size,)) - np.broadcast_to(entry.number, (b.waves.size,)))[wave]  # fmt: skip
            name = self.register_name(register)
            verb = "writes" if register in results else "reads"
            need = self.wait_name(entry.counter, "0" if entry.unordered else str(int(left)))
            raise self.report(
                MissingWaitError,
                f"missing {need} before `{ins.text}`, which {verb} {name}: `{earlier.text}` "
                f"({earlier.location or f'line {earlier.line} of the assembly'}) may still write it",
                ins,
                b,
                wave,
            )

    def _uninitialised(self, b: Batch, pc: int) -> None:
        """Spread registers that nothing has written through arithmetic, as compilers leave halves of
        pairs undefined; where they would be seen, they are reported."""
        ins = self.program.instructions[pc]
        missing = self.code.sources[pc] - b.written
        if self.code.visible[pc]:
            missing -= spilled(b, ins, self.code.context)
            if not missing:
                return
            names = ", ".join(sorted(self.register_name(r) for r in missing))
            raise self.report(
                UninitialisedError, f"uses {names}, which nothing has written", ins, b, 0
            )
        b.written |= self.code.results[pc]
        b.written -= self.code.spoilt(pc, missing)

    def register_name(self, register: int) -> str:
        if register >= SCALAR:
            return str(Reg("s", register - SCALAR))
        vgprs = self.code.context.vgprs
        return f"v{register}" if register < vgprs else f"a{register - vgprs}"

    def place_of(self, wave: int) -> tuple[tuple[int, int, int], int]:
        """(workgroup, wave in it) of a resident wave."""
        group = self.groups[wave // self.waves_per_group]
        return (int(group[0]), int(group[1]), int(group[2])), wave % self.waves_per_group

    def report(
        self,
        kind: Type[EmulatorError],
        message: str,
        ins: Instruction,
        b: Optional[Batch] = None,
        row: Optional[int] = None,
        lane: Optional[int] = None,
    ) -> EmulatorError:
        """Return an error about an instruction, in a wave (row of the batch) and lane."""
        where = ""
        error_place = None
        if b is not None and row is not None:
            group, wave = error_place = self.place_of(int(b.waves[row]))
            where = f", workgroup {group}, wave {wave}" + ("" if lane is None else f", lane {lane}")
        calls = ins.location.inlined if ins.location else ()
        if self.program.file:
            where = f" ({self.program.file}:{ins.line}){where}"
        error = kind(f"{message}\n  in `{ins.text}`{where}", span=span_of(ins.location))
        error.instruction = ins.text
        if error_place:
            error.workgroup, error.wave = error_place
        if calls:
            error.message += "".join(f"\n  inlined at {f}:{n}" for f, n in calls)
        return error

    def _stuck(self) -> str:
        lines = []
        for b in sorted([*self.batches, *self.blocked], key=lambda b: b.pc):
            ins = self.program.instructions[b.pc]
            group, wave = self.place_of(int(b.waves[0]))
            many = f" and {b.waves.size - 1} more waves" if b.waves.size > 1 else ""
            lines.append(
                f"  workgroup {group}, wave {wave}{many}: at instruction {b.pc}, `{ins.text}`"
                + (f" ({ins.location})" if ins.location else "")
            )
        shown = lines[:16] + ([f"  and {len(lines) - 16} more places"] if len(lines) > 16 else [])
        return "\n".join(shown)

    def _deadlock(self) -> EmulatorError:
        self.blocked = self.batches
        self.batches = []
        ins = self.program.instructions[self.blocked[0].pc]
        return DeadlockError(
            f"no wave of {self.program.name} can go on\n{self._stuck()}", span=span_of(ins.location)
        )

    def _late(self) -> EmulatorError:
        ins = self.program.instructions[min(b.pc for b in self.batches)]
        return TimeLimitError(
            f"{self.program.name} did not end in {self.settings.timeout:g} s\n{self._stuck()}",
            remedy="A larger timeout may be all it needs; a loop that never ends shows above.",
            span=span_of(ins.location),
        )

    # -- counting ----------------------------------------------------------------------------------

    def moved(self, index: int, count: int) -> None:
        """Count the bytes of global memory that an instruction moved."""
        self.tally.moved[index] += count

    def used_lds(self, index: int, place: np.ndarray, size: int, b: Batch) -> None:
        """Count an instruction's use of LDS; bank conflicts are counted while tracing."""
        if self.tally.watched:
            self.tally.conflicts[index] += bank_cycles(place, size, b.exec, self.code.banks)
