"""Dependencies that code of gfx1250 keeps by itself when it asks for that (HW_REG_WAVE_SCHED_MODE = 2).

The hardware then lets memory instructions read vector registers before the vector instructions that
write them are done, and vector instructions write registers before memory instructions have read them.
`s_wait_alu depctr_va_vdst(n)` waits until at most n vector instructions are under way, `depctr_vm_vsrc(n)`
until at most n memory instructions have sources to read. A data-flow analysis at binding finds the instructions that may be in flight on any path; an instruction that comes too early is reported when it is executed.

LLVM, "User Guide for AMDGPU Backend", and its pass that inserts these waits: expert scheduling mode.
Here instructions of one kind are taken to end in order, so a reported wait is certainly missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Optional

from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import smem
from gluon_emu.amdgcn.isa.atomics import returns

__all__ = ["early", "keeps_itself"]

_MEMORY = ("buffer_", "global_", "flat_", "scratch_", "ds_", "cluster_")
_COUNTED = re.compile(r"(va_vdst|vm_vsrc)\((\d+)\)")
_ENDS = ("s_branch", "s_endpgm", "s_setpc_b64", "s_set_pc_i64")
_FULL = (15, 7)  # a counter that is full keeps more from being started
_ENDED = re.compile(r"s_wait_(load|store|ds|async)cnt(?:_(ds)cnt)?\s+(\S+)")


@dataclass(frozen=True)
class _Use:
    """A register that something under way writes or reads.

    Args:
        count: instructions of its kind that were started, this included.
        where: index of the instruction.
        counter: that says when a memory instruction has ended, and its number there.
    """

    count: int
    where: int
    counter: str = ""
    number: int = 0


class _State:
    """The instructions that may be in flight: results of vector instructions (0), sources of memory instructions (1)."""

    def __init__(self) -> None:
        self.counts = [0, 0]
        self.issued: dict[str, int] = {}
        self.open: list[dict[int, _Use]] = [{}, {}]

    def copy(self) -> "_State":
        other = _State()
        other.counts, other.issued = list(self.counts), dict(self.issued)
        other.open = [dict(o) for o in self.open]
        return other

    def start(
        self, kind: int, registers: Any, index: int, counter: str = "", times: int = 1
    ) -> None:
        self.counts[kind] += times
        number = self.issued[counter] = self.issued.get(counter, 0) + 1
        for register in registers:
            self.open[kind][register] = _Use(self.counts[kind], index, counter, number)

    def wait(self, kind: int, left: int) -> None:
        done = self.counts[kind] - left
        self.open[kind] = {r: u for r, u in self.open[kind].items() if u.count > done}

    def ended(self, counter: str, left: int) -> None:
        """Memory instructions that have ended have read their sources."""
        done = self.issued.get(counter, 0) - left
        self.open[1] = {
            r: u for r, u in self.open[1].items() if u.counter != counter or u.number > done
        }

    def younger(self, kind: int, register: int) -> Optional[tuple[int, _Use]]:
        """Return (how many were started since, it) of the latest use of a register; None for none."""
        newest = self.open[kind].get(register)
        age = 0 if newest is None else self.counts[kind] - newest.count
        return None if newest is None or age >= _FULL[kind] else (age, newest)

    def join(self, other: "_State") -> bool:
        """Merge the state of another path; return whether that adds something."""
        changed = False
        for kind in (0, 1):
            for register in other.open[kind]:
                theirs, mine = other.younger(kind, register), self.younger(kind, register)
                if theirs is None or (mine is not None and mine[0] <= theirs[0]):
                    continue
                age, use = theirs
                behind = other.issued.get(use.counter, 0) - use.number
                self.open[kind][register] = _Use(
                    self.counts[kind] - age, use.where, use.counter,
                    self.issued.get(use.counter, 0) - behind,
                )  # fmt: skip
                changed = True
        return changed


def keeps_itself(program: Any) -> bool:
    """Return whether a program asks the hardware not to keep dependencies."""
    return any(
        ins.name.startswith("s_setreg") and "WAVE_SCHED_MODE, 0, 2)" in ins.text and ins.text.endswith("2")
        for ins in program.instructions
    )  # fmt: skip


def early(code: Any) -> dict[int, tuple[Instruction, int, int, str]]:
    """Return the instructions that come too early: (after which, register, n, the wait for at most n)."""
    instructions = code.program.instructions
    starts = sorted({0, *code.program.labels.values()})
    ends = {a: b for a, b in zip(starts, [*starts[1:], len(instructions)])}
    states: dict[int, _State] = {0: _State()}
    problems: dict[int, tuple[Instruction, int, int, str]] = {}
    queue = [0]
    while queue:
        block = queue.pop()
        if block >= len(instructions):
            continue
        state = states[block].copy()
        flows = True
        for ins in instructions[block : ends[block]]:
            problem = _step(code, ins, state)
            if problem is not None and ins.index not in problems:
                problems[ins.index] = problem
            if ins.name == "s_branch" or ins.name.startswith("s_cbranch"):
                _enter(states, queue, code.program.labels.get(str(ins.operands[0])), state)
            if ins.name in _ENDS:
                flows = False
                break
        if flows:
            _enter(states, queue, ends[block], state)
    return problems


def _enter(
    states: dict[int, _State], queue: list[int], block: Optional[int], state: _State
) -> None:
    if block is None:
        return
    if block not in states:
        states[block] = state.copy()
    elif not states[block].join(state):
        return
    queue.append(block)


def _step(
    code: Any, ins: Instruction, state: _State
) -> Optional[tuple[Instruction, int, int, str]]:
    name = ins.name
    if name == "s_wait_alu":
        for which, left in _waits(ins):
            state.wait(which, left)
        return None
    ended = _ENDED.match(ins.text)
    if ended:
        left = int(ended[3], 0)
        state.ended(ended[1], left >> 8 & 63 if ended[2] else left)
        if ended[2]:
            state.ended("ds", left & 63)
        return None
    problem = None
    if name.startswith("v_"):
        results = [r for r in code.results[ins.index] if r < smem.SCALAR]
        problem = _first(code, state, 1, results, "vm_vsrc")
        # A product with scales counts twice: the scales are loaded by an instruction of its own.
        state.start(0, results, ins.index, times=1 + name.startswith("v_wmma_scale"))
    elif name.startswith(_MEMORY) and "prefetch" not in name:
        sources = [r for r in code.sources[ins.index] if r < smem.SCALAR]
        results = [r for r in code.results[ins.index] if r < smem.SCALAR]
        problem = _first(code, state, 0, [*sources, *results], "va_vdst")
        state.start(1, sources, ins.index, _counter(ins))
    return problem


def _first(
    code: Any, state: _State, kind: int, registers: Any, wait: str
) -> Optional[tuple[Instruction, int, int, str]]:
    pending = [(seen, r) for r in registers if (seen := state.younger(kind, r)) is not None]
    if not pending:
        return None
    (left, use), register = min(pending, key=lambda one: (one[0][0], one[1]))
    return code.program.instructions[use.where], register, left, wait


def _counter(ins: Instruction) -> str:
    if ins.name.startswith("ds_"):
        return "ds"
    if "async" in ins.name:
        return "async"
    stores = "_store_" in ins.name or ("_atomic_" in ins.name and not returns(ins))
    return "store" if stores else "load"


def _waits(ins: Instruction) -> list[tuple[int, int]]:
    """(0 for va_vdst or 1 for vm_vsrc, n) that `s_wait_alu` waits for."""
    if "depctr" in ins.text:
        return [(int(n == "vm_vsrc"), int(left)) for n, left in _COUNTED.findall(ins.text)]
    value = int(str(ins.text.split()[1]), 0)
    waits = [(0, value >> 12 & 15), (1, value >> 2 & 7)]
    return [(kind, left) for kind, left in waits if left != _FULL[kind]]
