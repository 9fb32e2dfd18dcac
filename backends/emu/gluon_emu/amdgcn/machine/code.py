"""A program bound for execution: a function per instruction, and the facts that checks need about each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import Reg
from gluon_emu.amdgcn.decode.program import Instruction, Program
from gluon_emu.amdgcn.isa import families, lds, smem, table
from gluon_emu.amdgcn.isa.addresses import counters
from gluon_emu.amdgcn.isa.atomics import returns
from gluon_emu.amdgcn.isa.bind import Context, selection_bit
from gluon_emu.amdgcn.machine.assertions import watched
from gluon_emu.amdgcn.machine.hazards import checks
from gluon_emu.errors import UnknownInstructionError, span_of

__all__ = ["Code", "bind", "reasons", "unknown"]

assert families  # fills the table

_SHOWING = ("vmem", "smem", "lds", "branch", "barrier")
_PICKING = (
    "v_perm_b32", "v_bfi", "v_and", "v_alignbit", "v_alignbyte", "v_pack", "v_lshl_or", "v_or",
    "v_cndmask", "v_bfe", "s_and", "s_or", "s_cselect", "s_bfe", "s_pack", "v_bitop3", "v_permlane",
)  # fmt: skip

_EIGHT_NUMBERS = ("v_cvt_scale_pk8_", "v_cvt_scalef32_pk8_")

# Instructions whose first operand is a source as well.
_READING_RESULT = (
    "v_fmac", "v_mac_", "v_dual_fmac", "v_dot2c", "v_dot4c", "v_dot8c", "v_pk_fmac", "v_smfmac", "v_swap",
    "v_permlane32_swap", "v_permlane16_swap", "s_addk", "s_mulk", "s_cmov",
)  # fmt: skip


@dataclass
class Code:
    """A bound program.

    Args:
        steps: `f(batch)` of each instruction.
        registers: all registers that an instruction uses, by the numbers of `Entry.registers`.
        results: those that it writes; `sources` those that it reads.
        visible: whether the operands of an instruction show outside of registers.
        own_keys: (counter, kind) of memory operations that an instruction starts.
        hazards: checks of distances to instructions before, or None.
        granule: bytes of the narrowest access to LDS.
        banks: of LDS.
    """

    program: Program
    context: Context
    steps: list[Callable[[Any], Any]] = field(default_factory=list)
    registers: list[frozenset[int]] = field(default_factory=list)
    results: list[frozenset[int]] = field(default_factory=list)
    sources: list[frozenset[int]] = field(default_factory=list)
    own_keys: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    visible: list[bool] = field(default_factory=list)
    hazards: list[Optional[Callable[..., Any]]] = field(default_factory=list)
    granule: int = 4
    scratch_bytes: int = 0
    banks: int = 32

    def spoilt(self, index: int, missing: frozenset[int]) -> set[int]:
        """Return the results of an instruction that are undefined when `missing` of its sources are.

        An instruction that selects bits needs none of a source; the low result of a pair does not depend on the high one, a
        copy of a pair copies each half, and a conversion of eight numbers converts each.
        """
        ins = self.program.instructions[index]
        if ins.name.startswith(_PICKING):
            return set()
        spoilt: set[int] = set()
        pairs = [numbers(o, self.context) for o in ins.operands]
        if ins.name.startswith(("v_mov_b64", "s_mov_b64")) and len(pairs[0]) == len(pairs[1]):
            return {result for result, source in zip(*pairs) if source in missing}
        if ins.name.startswith(_EIGHT_NUMBERS) and not missing.intersection(*pairs[2:]):
            into, source = pairs[:2]
            taken = ((into[i * len(into) // 8], source[i * len(source) // 8]) for i in range(8))
            return {result for result, register in taken if register in missing}
        high = {r for pair in pairs for r in pair[1:]}
        for result in self.results[index]:
            own = [pair for pair in pairs if result in pair]
            low_of_pair = any(len(p) > 1 and p[0] == result for p in own)
            if missing <= high and low_of_pair:
                continue
            spoilt.add(result)
        return spoilt


def generation_of(architecture: str) -> int:
    """9, 10, 11 or 12: the digits of the name before the last two."""
    digits = architecture.removeprefix("gfx")
    return int(digits[:-2])


def unknown(program: Program) -> list[Instruction]:
    """Instructions that no table has, the first of each mnemonic."""
    missing: dict[str, Instruction] = {}
    for ins in program.instructions:
        for half in (ins, ins.second):
            if half is not None and half.name not in missing and table.find(half.name) is None:
                missing[half.name] = half
    return list(missing.values())


def refuse_unknown(program: Program) -> None:
    """Refuse a program with instructions that have no semantics.

    Raises:
        UnknownInstructionError: it lists all instructions without semantics.
    """
    missing = unknown(program)
    if not missing:
        return
    lines = "".join(
        f"\n  `{ins.text}` ({ins.location or f'line {ins.line} of the assembly'})"
        for ins in missing
    )
    error = UnknownInstructionError(
        f"{program.name} has {len(missing)} instructions that the emulator cannot execute:{lines}",
        span=span_of(missing[0].location),
    )
    error.instruction = missing[0].text
    raise error


def _context(program: Program) -> Context:
    return Context(
        program,
        program.info.wave_size,
        _count(program, "v"),
        generation_of(program.architecture),
        program.architecture,
    )


def reasons(program: Program) -> dict[int, str]:
    """Return the instructions that cannot run, by their index, with the reason."""
    context, missing = _context(program), {ins.name for ins in unknown(program)}
    failed = {}
    for ins in program.instructions:
        names = {half.name for half in (ins, ins.second) if half is not None}
        if names & missing:
            failed[ins.index] = "no semantics"
            continue
        try:
            _step(ins, context)
        except BackendError as error:
            failed[ins.index] = error.message
    return failed


def bind(program: Program) -> Code:
    """Bind every instruction.

    Raises:
        UnknownInstructionError: there are some without semantics.
        BackendError: an instruction has operands that nobody expected.
    """
    refuse_unknown(program)
    context = _context(program)
    code = Code(program, context)
    code.banks = 64 if program.architecture in ("gfx950", "gfx1250") else 32
    code.scratch_bytes = program.directives.get("private_segment_fixed_size", 0)
    widths = [w for w in (lds.narrowest(i.name) for i in program.instructions) if w]
    code.granule = min([4, *widths])
    for ins in program.instructions:
        code.steps.append(_step(ins, context))
        results, sources = _registers(ins, context)
        code.results.append(results)
        code.sources.append(sources)
        code.registers.append(results | sources)
        code.own_keys.append(_keys(ins, context))
        op = table.find(ins.name)
        assert op is not None
        code.visible.append(
            op.family in _SHOWING
            or ins.name.startswith(("s_cmp", "v_cmpx"))
            or "saveexec" in ins.name
        )
    code.hazards = checks(code)
    for index, remember in watched(program, context).items():
        code.steps[index] = _after(remember, code.steps[index])
    return code


def _after(first: Callable[[Any], None], step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def both(b: Any) -> Any:
        first(b)
        return step(b)

    return both


def _step(ins: Instruction, context: Context) -> Callable[[Any], Any]:
    op = table.find(ins.name)
    assert op is not None
    try:
        if ins.second is None:
            return op.bind(ins, context)
        other = table.find(ins.second.name)
        assert other is not None  # or `refuse_unknown` had named it
        if op.pair is None or other.pair is None:
            raise BackendError("no half of a dual instruction")
        return _both(*op.pair(ins, context), *other.pair(ins.second, context))
    except BackendError as error:
        error.message = f"the emulator does not understand `{ins.text}`: {error.message}"
        error.span = span_of(ins.location)
        raise
    except (AttributeError, ValueError, IndexError, KeyError, TypeError) as error:
        raise BackendError(
            f"the emulator does not understand `{ins.text}`: {type(error).__name__}: {error}",
            span=span_of(ins.location),
        ) from error


def _both(first: Any, write_first: Any, second: Any, write_second: Any) -> Callable[[Any], Any]:
    """Run a dual instruction: both halves read before either writes."""

    def step(b: Any) -> None:
        one = first(b)
        two = second(b)
        if not isinstance(one, int):
            one = one.copy()  # it may be a view of the other half's result
        write_second(b, two)
        write_first(b, one)

    return step


def _count(program: Program, kind: str) -> int:
    highest = 0
    for ins in program.instructions:
        for half in (ins, ins.second):
            for operand in half.operands if half is not None else ():
                if isinstance(operand, Reg) and operand.kind == kind:
                    highest = max(highest, operand.first + operand.count)
    return max(highest, program.directives.get("next_free_vgpr", 0) if kind == "v" else 0, 1)


def rows_of(program: Program) -> int:
    """Vector registers and accumulation registers together."""
    return _count(program, "v") + _count(program, "a")


def numbers(operand: Any, context: Context) -> tuple[int, ...]:
    """Return the registers of an operand as `Entry.registers` counts them."""
    if not isinstance(operand, Reg):
        return ()
    if operand.kind == "s":
        if operand.first in (124, 125) or operand.first >= 128:
            return ()
        return tuple(smem.SCALAR + operand.first + i for i in range(operand.count))
    return tuple(context.row(operand, i) for i in range(operand.count))


def _registers(ins: Instruction, context: Context) -> tuple[frozenset[int], frozenset[int]]:
    results: set[int] = set()
    sources: set[int] = set()
    for half in (ins, ins.second):
        if half is None:
            continue
        op = table.find(half.name)
        assert op is not None
        written = op.results
        if op.family == "vmem" and "atomic" in half.name:
            written = 1 if returns(half) else 0
        if half.name.startswith("v_cmpx") and len(half.operands) == 2:  # it writes EXEC alone
            written = 0
        if "lds" in half.modifiers and op.family == "vmem":
            written = 0
        for place, operand in enumerate(half.operands):
            into = results if place < written else sources
            registers = numbers(operand, context)
            if half.name.startswith("v_pk_") and len(registers) == 2 and place >= written:
                picks = {_pick(half, place - written, high) for high in (False, True)}
                if half.name == "v_pk_mov_b32":
                    picks = {_pick(half, place - written, False)}
                registers = tuple(registers[int(pick)] for pick in picks)
            into.update(registers)
        if half.name.startswith(_READING_RESULT):
            sources.update(numbers(half.operands[0], context))
    return frozenset(results), frozenset(sources)


def _pick(ins: Instruction, place: int, high: bool) -> bool:
    """Which half of a source goes into the low or the high result of a packed instruction."""
    return selection_bit(ins.modifiers.get("op_sel_hi" if high else "op_sel"), place, high)


def _keys(ins: Instruction, context: Context) -> tuple[tuple[str, str], ...]:
    op = table.find(ins.name)
    assert op is not None
    if op.family == "lds":
        return (("ds" if context.generation >= 12 else "lgkm", "lds"),)
    if op.family == "vmem" and op.results:
        return tuple(counters(context, False))
    return ()
