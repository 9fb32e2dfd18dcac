"""Distances between instructions that the hardware does not keep by itself: CDNA's, and those of
matrix and transcendental instructions of RDNA and gfx1250.

Each rule says after how many wait states an instruction may use what another wrote; every instruction
between counts as one, `s_nop n` as n + 1. Binding examines all paths through the program; a violation is reported when the instruction is executed.

ISA: CDNA3 4.5 "Manually Inserted Wait States", CDNA2 4.5; RDNA3 and RDNA4 7.9, WMMA. LLVM knows the
same tables, and that on gfx11 a vector instruction does not wait for a transcendental one.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterator, Optional

from gluon_emu.amdgcn.decode.operands import EXEC, M0, VCC, Const, Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import smem, table
from gluon_emu.amdgcn.machine.expert import early, keeps_itself
from gluon_emu.amdgcn.machine.scalars import late
from gluon_emu.errors import HazardError

__all__ = ["checks", "passes"]

_MEMORY = ("buffer_", "global_", "flat_", "scratch_", "ds_", "image_")
# `s_waitcnt_depctr`, by name or as a number whose bits 12 to 15 are 0
_VECTORS_DONE = re.compile(r"va_vdst\(0\)|s_waitcnt_depctr 0x0?[0-9a-f]{1,3}$")
_PRODUCTS = ("v_wmma", "v_swmmac")
# passes of a matrix instruction -> wait states until it has read its addend
_ADDEND_READ = {2: 1, 4: 3, 8: 7, 16: 15}
_REPLAYING = ("gfx90a", "gfx942", "gfx950")
_HALVES = re.compile(r"v_wmma_\w+_16x16x32_b?f16$")
_ENDS = ("s_branch", "s_endpgm", "s_setpc_b64")
_MATRIX = re.compile(r"v_mfma_(?:scale_)?(\w+?)_(\d+)x(\d+)x(\d+)_?(?:\d+b_)?(\w+)$")


def states(ins: Instruction) -> int:
    """Wait states that an instruction stands for."""
    if ins.name == "s_nop" and isinstance(ins.operands[0], Const):
        return int(ins.operands[0].value) + 1
    return 1


def passes(name: str, architecture: str, narrow_formats: bool = False) -> int:
    """Return the passes of four cycles that a matrix instruction takes; 0 for others.

    Args:
        narrow_formats: whether neither operand of an f8f6f4 instruction has eight bits.

    ISA: CDNA2 7, CDNA3 7, CDNA4 7, tables of matrix instructions.
    """
    match = _MATRIX.match(name)
    if not match:
        return 0
    result, m, kind = match[1], int(match[2]), match[5]
    if m == 4:
        return 4 if result == "f64" else 2
    if result == "f64":
        return 8
    if "f8f6f4" in kind:
        return (8 if m == 16 else 16) >> narrow_formats
    narrow = kind.startswith(("f16", "bf16", "i8", "fp8", "bf8", "xf32"))
    if architecture in ("gfx908", "gfx90a") or not narrow:
        return 8 if m == 16 else 16
    return 4 if m == 16 else 8


def checks(code: Any) -> list[Optional[Callable[..., Any]]]:
    """Return for each instruction a report of one too close before it, or None."""
    program, context = code.program, code.context
    reports: list[Optional[Callable[..., Any]]] = [None] * len(program.instructions)
    rules = _Rules(code)
    if context.architecture in _REPLAYING and program.directives.get("reserve_xnack_mask", 0):
        for index, clause in rules.replayed().items():
            reports[index] = _overwrites(program.instructions[index], *clause)
    if context.generation != 9:
        for ins in program.instructions:
            if context.architecture == "gfx1250":
                close = rules.next_to_product(ins) if _vector_alone(ins) else None
                if close is not None:
                    reports[ins.index] = _between(ins, *close)
            elif ins.name.startswith(_PRODUCTS):
                earlier = rules.behind_product(ins)
                if earlier is not None:
                    reports[ins.index] = _missing(ins, earlier, "a factor", "v_nop")
        if keeps_itself(program):
            for index, premature in early(code).items():
                reports[index] = _too_early(program.instructions[index], *premature)
        if context.generation == 11:
            for ins in program.instructions:
                earlier = rules.behind_transcendental(ins) if ins.name.startswith("v_") else None
                if earlier is not None:
                    wait = "s_waitcnt_depctr depctr_va_vdst(0)"
                    reports[ins.index] = _missing(ins, earlier, "an operand", wait)
        if context.architecture.startswith("gfx120"):
            for index, kept in late(code, rules.before).items():
                reports[index] = _stale(program.instructions[index], *kept)
        return reports
    for ins in program.instructions:
        problem = rules.too_close(ins)
        if problem is not None:
            reports[ins.index] = _reporting(ins, *problem)
    return reports


def _hazard(ins: Instruction, words: Callable[[Any], str]) -> Callable[..., Any]:
    """Return a check that always fails: the report when the instruction is about to run."""

    def check(b: Any, machine: Any) -> None:
        raise machine.report(HazardError, words(machine), ins, b, 0)

    return check


def _reporting(
    ins: Instruction, earlier: Instruction, need: int, have: int, why: str
) -> Callable[..., Any]:
    return _hazard(
        ins,
        lambda machine: (
            f"{need} wait states are needed behind `{earlier.text}` ({why}), there are {have}: "
            f"s_nop {need - have - 1} before `{ins.text}`"
        ),
    )


def _missing(ins: Instruction, earlier: Instruction, use: str, missing: str) -> Callable[..., Any]:
    return _hazard(
        ins,
        lambda machine: (
            f"`{earlier.text}` may not have written yet what is {use} here: missing {missing} before "
            f"`{ins.text}`"
        ),
    )


def _overwrites(ins: Instruction, earlier: Instruction, register: int) -> Callable[..., Any]:
    return _hazard(
        ins,
        lambda machine: (
            f"with `{earlier.text}` this is one clause, which a page fault replays (XNACK), and it "
            f"writes {machine.register_name(register)}, which it reads: s_nop 0 before "
            f"`{ins.text}`"
        ),
    )


def _between(ins: Instruction, earlier: Instruction, need: int, have: int) -> Callable[..., Any]:
    return _hazard(
        ins,
        lambda machine: (
            f"{need} vector instructions are needed behind `{earlier.text}` before what it uses is "
            f"used, there are {have}: {need - have} v_nop before `{ins.text}`"
        ),
    )


def _too_early(
    ins: Instruction, earlier: Instruction, register: int, left: int, wait: str
) -> Callable[..., Any]:
    verb = "written" if wait == "va_vdst" else "read"

    return _hazard(
        ins,
        lambda machine: (
            f"`{earlier.text}` may not have {verb} {machine.register_name(register)} yet: missing "
            f"s_wait_alu depctr_{wait}({left}) before `{ins.text}`"
        ),
    )


def _stale(ins: Instruction, earlier: Instruction, register: int, wait: str) -> Callable[..., Any]:
    return _hazard(
        ins,
        lambda machine: (
            f"`{earlier.text}` writes {machine.register_name(register + smem.SCALAR)}, of which a vector "
            f"instruction has read what it held before, and that may come here once more: missing "
            f"s_wait_alu depctr_{wait}(0) before `{ins.text}`"
        ),
    )


class _Rules:
    def __init__(self, code: Any):
        self.code = code
        self.instructions = code.program.instructions
        self.architecture = code.context.architecture
        self.newer = self.architecture not in ("gfx900", "gfx906", "gfx908", "gfx90a")
        self.family = [table.find(i.name).family for i in self.instructions]  # type: ignore[union-attr]
        self.passes = [passes(i.name, self.architecture, _narrow(i)) for i in self.instructions]
        self.masks = [self._mask(i) for i in self.instructions]
        self.longest = max([5, *(p + 5 for p in self.passes)])
        self.before: list[list[int]] = [[] for _ in self.instructions]
        labels = code.program.labels
        for ins in self.instructions:
            if ins.index + 1 < len(self.instructions) and ins.name not in _ENDS:
                self.before[ins.index + 1].append(ins.index)
            if ins.name.startswith(("s_branch", "s_cbranch")):
                target = labels.get(str(ins.operands[0]))
                if target is not None and target < len(self.instructions):
                    self.before[target].append(ins.index)
        self.matrix = any(self.passes)

    def _mask(self, ins: Instruction) -> frozenset[int]:
        """Scalar registers that a vector instruction writes: its results and VCC or EXEC."""
        if self.family[ins.index] not in ("valu", "trans"):
            return frozenset()
        masks = {r for r in self.code.results[ins.index] if r >= smem.SCALAR}
        if ins.name.startswith("v_cmpx"):
            masks |= {smem.SCALAR + EXEC, smem.SCALAR + EXEC + 1}
        return frozenset(masks)

    def _vector(self, index: int) -> bool:
        return self.family[index] in ("valu", "trans")

    def _back(self, index: int, limit: int) -> Iterator[tuple[int, int]]:
        """Yield (instruction, wait states between) of possible predecessors, nearest first."""
        queue = [(p, 0) for p in self.before[index]]
        best: dict[int, int] = {}
        while queue:
            current, distance = queue.pop(0)
            if distance >= limit or best.get(current, 1 << 30) <= distance:
                continue
            best[current] = distance
            yield current, distance
            step = distance + states(self.instructions[current])
            queue += [(p, step) for p in self.before[current]]

    def behind_product(self, ins: Instruction) -> Optional[Instruction]:
        """Return the matrix instruction that writes a factor of `ins` with no vector instruction
        between."""
        factors = {r for o in ins.operands[1:3] for r in _rows(o, self.code.context)}
        queue, seen = list(self.before[ins.index]), set()
        while queue:
            current = queue.pop()
            if current in seen:
                continue
            seen.add(current)
            earlier: Instruction = self.instructions[current]
            if earlier.name.startswith(_PRODUCTS):
                if set(_rows(earlier.operands[0], self.code.context)) & factors:
                    return earlier
            elif not earlier.name.startswith("v_"):
                queue += self.before[current]
        return None

    def replayed(self) -> dict[int, tuple[Instruction, int]]:
        """Return the loads that with those right before them write an operand of one of them: index -> (the one
        before, register). As in LLVM, loads more than five instructions apart are in different clauses."""
        replays: dict[int, tuple[Instruction, int]] = {}
        clause: list[int] = []
        labels = set(self.code.program.labels.values())
        results, sources = self.code.results, self.code.sources
        for ins in self.instructions:
            current, family = ins.index, self.family[ins.index]
            loads = family in ("vmem", "smem") and results[current] and "_atomic_" not in ins.name
            if not loads or current in labels or (clause and self.family[clause[0]] != family):
                clause = []
            if not loads:
                continue
            clause = clause[-5:]
            both = [*clause, current]
            written = frozenset().union(*(results[i] for i in both))
            shared = written & frozenset().union(*(sources[i] for i in both))
            if clause and shared:
                replays[current] = self.instructions[clause[-1]], min(shared)
            clause = [current] if current in replays else [*clause, current]
        return replays

    def next_to_product(self, ins: Instruction) -> Optional[tuple[Instruction, int, int]]:
        """(WMMA of gfx1250, vector instructions that are needed, that there are) where `ins` comes too
        early to use its result, or to overwrite its factors, in the same basic block. Not for dual and
        transcendental instructions: LLVM keeps no such distance for these."""
        code = self.code
        if self.family[ins.index] == "trans":
            return None
        product = ins.name.startswith(_PRODUCTS)
        reads = set(code.sources[ins.index])
        if product:  # as the addend a result is taken in time
            reads = {r for o in ins.operands[1:3] for r in _rows(o, code.context)}
        writes = set() if product else code.results[ins.index]
        labels = set(code.program.labels.values())
        distance, current = 0, ins.index
        while current not in labels and current and distance < 4:
            current -= 1
            earlier: Instruction = self.instructions[current]
            need = _shadow(earlier)
            if need > distance:
                result = set(code.results[current])
                factors = {r for o in earlier.operands[1:3] for r in _rows(o, code.context)}
                if result & reads or (result | factors) & writes:
                    return earlier, need, distance
            distance += earlier.name.startswith(("v_", "tensor_"))  # LLVM counts the same way
        return None

    def behind_transcendental(self, ins: Instruction) -> Optional[Instruction]:
        """Return the transcendental instruction that writes an operand of `ins`, fewer than six vector
        instructions or two transcendental ones before, with nothing that waits between."""
        sources = {r for r in self.code.sources[ins.index] if r < smem.SCALAR}
        queue = [(p, 0, 0) for p in self.before[ins.index]]
        seen = set()
        while queue and sources:
            current, vectors, others = queue.pop()
            if (current, vectors, others) in seen or vectors > 5 or others > 1:
                continue
            seen.add((current, vectors, others))
            earlier: Instruction = self.instructions[current]
            family = self.family[current]
            if earlier.name.startswith(_MEMORY) or _VECTORS_DONE.search(earlier.text):
                continue
            if family == "trans" and self.code.results[current] & sources:
                return earlier
            step = (vectors + earlier.name.startswith("v_"), others + (family == "trans"))
            queue += [(p, *step) for p in self.before[current]]
        return None

    def too_close(self, ins: Instruction) -> Optional[tuple[Instruction, int, int, str]]:
        """Return (the instruction before, wait states that are needed, that there are, why)."""
        limit = self.longest if self.matrix else 5
        for current, distance in self._back(ins.index, limit):
            for need, why in self._needs(current, ins.index):
                if need > distance:
                    return self.instructions[current], need, distance, why
        return None

    def _needs(self, first: int, second: int) -> Iterator[tuple[int, str]]:
        code, ins = self.code, self.instructions[second]
        sources, results = code.sources[second], code.results[second]
        written = code.results[first]
        vector = self._vector(second)
        family = self.family[second]
        if self.passes[first]:
            yield from self._behind_matrix(first, second)
            return
        scalars = self.masks[first]
        if scalars:
            if family in ("vmem", "smem") and scalars & sources and family == "vmem":
                yield 5, "a vector instruction writes a scalar register that memory reads"
            if ins.name in ("v_readlane_b32", "v_writelane_b32"):
                chosen = ins.operands[2]
                if isinstance(chosen, Reg) and smem.SCALAR + chosen.first in scalars:
                    yield 4, "a vector instruction writes the lane number"
            if ins.name.startswith("v_div_fmas") and smem.SCALAR + VCC in scalars:
                yield 4, "a vector instruction writes VCC that a division reads"
            if ins.suffix == "dpp" and smem.SCALAR + EXEC in scalars:
                yield 5, "a vector instruction writes EXEC before DPP"
            if self.newer and vector and self._reads_scalar(second, scalars):
                yield 2, "a vector instruction writes a scalar register that another reads"
        if self._vector(first):
            if vector and ins.suffix == "dpp" and isinstance(ins.operands[1], Reg):
                moved = code.context.row(ins.operands[1]) if ins.operands[1].kind != "s" else -1
                if moved in written:
                    yield 2, "a register that DPP moves"
            if self.passes[second] and written & sources:
                yield 2, "a register that a matrix instruction reads"
            if self.newer and vector:
                if self.family[first] == "trans" and family != "trans" and written & sources:
                    yield 1, "the result of a transcendental instruction"
                if _partial(self.instructions[first]) and written & (sources | results):
                    yield 1, "a part of a register"
                if ins.name in ("v_readlane_b32", "v_readfirstlane_b32") and written & sources:
                    yield 1, "a register that is read into a scalar one"
        if self.instructions[first].name.startswith("s_") and "lds" in ins.modifiers:
            target = self.instructions[first].operands[:1]
            if target and isinstance(target[0], Reg) and target[0].kind == "s":
                if target[0].first == M0 and self.family[first] == "salu":
                    yield 1, "M0 is written before a load into LDS"

    def _reads_scalar(self, index: int, scalars: frozenset[int]) -> bool:
        ins = self.instructions[index]
        if scalars & self.code.sources[index]:
            return True
        implicit = ins.name.startswith("v_div_fmas") or (
            ins.name == "v_cndmask_b32" and len(ins.operands) == 3
        )
        return implicit and smem.SCALAR + VCC in scalars

    def _behind_matrix(self, first: int, second: int) -> Iterator[tuple[int, str]]:
        code = self.code
        count = self.passes[first]
        written = code.results[first]
        sources, results = code.sources[second], code.results[second]
        double = self.instructions[first].name.startswith("v_mfma_f64")
        name = self.instructions[first].name
        exact = double or (
            name.endswith("f32") and not name.endswith("xf32")
        )  # on a unit of their own
        more = 4 if self.architecture == "gfx950" else 3
        settled = count + (2 if exact and self.newer else more)
        if self.passes[second]:
            operands = self.instructions[second].operands
            factors = {r for o in operands[1:3] for r in _rows(o, code.context)}
            addend = set(_rows(operands[3], code.context))
            if written & factors:
                yield settled, "the result of a matrix instruction as a factor"
            if written & addend and addend != written and not double:
                yield count, "a part of the result of a matrix instruction as the addend"
            return
        late = _ADDEND_READ.get(count, 0)
        if self._vector(second) and late and not double and not (self.newer and exact):
            if results & set(_rows(self.instructions[first].operands[3], code.context)):
                yield late, "the addend of a matrix instruction, which it still reads"
        if self.family[second] in ("valu", "trans", "vmem", "lds") and written & (
            sources | results
        ):
            if self.family[second] in ("vmem", "lds") and not written & sources:
                return  # loads take longer than any matrix instruction
            yield settled, "the result of a matrix instruction"


def _vector_alone(ins: Instruction) -> bool:
    return ins.name.startswith("v_") and ins.second is None


def _shadow(ins: Instruction) -> int:
    """Vector instructions that another must be behind a WMMA of gfx1250 whose registers it uses.

    LLVM places as many `v_nop` behind products of 16-bit numbers; those of others are not known here.
    """
    return 4 if _HALVES.match(ins.name) else 0


def _narrow(ins: Instruction) -> bool:
    return all(int(ins.modifiers.get(n, "0"), 0) >= 2 for n in ("cbsz", "blgp"))


def _rows(operand: Any, context: Any) -> list[int]:
    if not isinstance(operand, Reg) or operand.kind == "s":
        return []
    return [context.row(operand, i) for i in range(operand.count)]


def _partial(ins: Instruction) -> bool:
    """Return whether an instruction writes a part of its destination by SDWA or `op_sel`."""
    if ins.suffix == "sdwa":
        return ins.modifiers.get("dst_sel", "DWORD") != "DWORD"
    text = ins.modifiers.get("op_sel")
    bits = [bit.strip() for bit in (text or "").strip("[]").split(",")]
    return len(bits) == 4 and bits[-1] == "1"
