"""Branches, barriers, waits and what changes the state of a wave.

ISA: CDNA3 4 and 12.5, RDNA3 5 and 16.5, RDNA4 5 and 16.5.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.decode.operands import EXEC, VCC, Const, Reg
from gluon_emu.decode.text import Instruction
from gluon_emu.errors import TrapError, span_of
from gluon_emu.isa import bind as _bind
from gluon_emu.isa.bind import Context
from gluon_emu.isa.table import Step, custom

__all__ = ["BLOCK", "END", "SWITCH"]

# Signals to the scheduler: the wave waits at its instruction, has ended, or others should be asked.
BLOCK, END, SWITCH = "block", "end", "switch"


def _nothing(*names: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Time or order only, which is not modelled."""
        return lambda b: None

    custom(*names, family="other", results=0)(bind)


_nothing(
    "s_clause", "s_delay_alu", "s_waitcnt_depctr", "s_wait_alu", "s_wait_xcnt", "s_sleep",
    "s_setprio", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "s_inst_prefetch",
    "s_set_inst_prefetch_distance", "s_nop", "s_ttracedata", "s_ttracedata_imm", "s_wakeup",
    "s_incperflevel", "s_decperflevel", "s_set_vgpr_msb", "s_monitor_sleep", "s_sleep_var",
    "s_setprio_inc_wg", "s_code_end", "s_prefetch_inst", "s_prefetch_inst_pc_rel",
    "s_prefetch_data", "s_prefetch_data_pc_rel", "s_buffer_prefetch_data", "s_wait_event",
)  # fmt: skip

# -- branches --------------------------------------------------------------------------------------


def _target(ins: Instruction, ctx: Context) -> int:
    return ctx.program.labels[str(ins.operands[0])]


@custom("s_branch", family="branch", results=0)
def s_branch(ins: Instruction, ctx: Context) -> Step:
    """PC = the label."""
    target = _target(ins, ctx)
    return lambda b: target


def _branch(test: Any) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """if the condition holds: PC = the label."""
        target, behind = _target(ins, ctx), ins.index + 1

        def step(b: Any) -> Any:
            taken = test(b)
            if taken.all():
                return target
            if not taken.any():
                return None
            other = b.split(taken)
            other.pc, b.pc = target, behind
            b.machine.add(other)
            return SWITCH

        return step

    return bind


def _nonzero(number: int) -> Any:
    def test(b: Any) -> Any:
        words = b.s[number : number + b.lanes // 32]
        return (words != 0).any(0)

    return test


custom("s_cbranch_scc0", family="branch", results=0)(_branch(lambda b: ~b.scc))
custom("s_cbranch_scc1", family="branch", results=0)(_branch(lambda b: b.scc))
custom("s_cbranch_vccz", family="branch", results=0)(_branch(lambda b: ~_nonzero(VCC)(b)))
custom("s_cbranch_vccnz", family="branch", results=0)(_branch(_nonzero(VCC)))
custom("s_cbranch_execz", family="branch", results=0)(_branch(lambda b: ~_nonzero(EXEC)(b)))
custom("s_cbranch_execnz", family="branch", results=0)(_branch(_nonzero(EXEC)))

# An address of code is the index of an instruction; 48 bits, of which some generations extend the sign.
_CODE = 0x6000 << 32


@custom("s_getpc_b64", "s_get_pc_i64", family="branch")
def s_getpc_b64(ins: Instruction, ctx: Context) -> Step:
    """D = the address of the next instruction."""
    write = _bind.scalar_writer(ins.operands[0], "u64", ctx)
    value = np.uint64(_CODE + 4 * (ins.index + 1))
    return lambda b: write(b, np.full(b.scc.shape, value))


def _jump(links: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """PC = S0, and D = the address behind this instruction."""
        read = _bind.scalar_reader(ins.operands[-1], "u64", ctx)
        write = _bind.scalar_writer(ins.operands[0], "u64", ctx) if links else None
        back = np.uint64(_CODE + 4 * (ins.index + 1))

        def step(b: Any) -> Any:
            places = (read(b) - np.uint64(_CODE)) >> np.uint64(2)
            first = places[0]
            elsewhere = places != first
            if elsewhere.any():  # those that go elsewhere come back to the jump
                other = b.split(elsewhere)
                other.pc = ins.index
                b.machine.add(other)
            if write is not None:
                write(b, np.full(b.scc.shape, back))
            b.pc = int(first)
            return SWITCH

        return step

    return bind


custom("s_setpc_b64", "s_set_pc_i64", family="branch", results=0)(_jump(False))
custom("s_swappc_b64", "s_swap_pc_i64", family="branch")(_jump(True))


@custom("s_endpgm", "s_endpgm_saved", family="branch", results=0)
def s_endpgm(ins: Instruction, ctx: Context) -> Step:
    """The wave ends."""
    return lambda b: END


@custom("s_trap", family="branch", results=0)
def s_trap(ins: Instruction, ctx: Context) -> Step:
    """The trap handler takes over; here the launch ends."""

    def step(b: Any) -> None:
        raise b.machine.report(TrapError, f"the kernel trapped ({ins.operands[0]})", ins, b, 0)

    return step


@custom("s_sendmsg", "s_sendmsghalt", family="other", results=0)
def s_sendmsg(ins: Instruction, ctx: Context) -> Step:
    """Messages to the rest of the chip, such as that registers may be freed, change nothing here."""
    return lambda b: None


@custom("s_sendmsg_rtn_b32", "s_sendmsg_rtn_b64", family="smem")
def s_sendmsg_rtn(ins: Instruction, ctx: Context) -> Step:
    """D = what the message asks for, such as the time."""
    wide = ins.name.endswith("64")
    write = _bind.scalar_writer(ins.operands[0], "u64" if wide else "u32", ctx)

    def step(b: Any) -> None:
        b.machine.time += 1
        dtype = np.uint64 if wide else np.uint32
        write(b, np.full(b.scc.shape, b.machine.time, dtype))

    return step


@custom("s_memtime", "s_memrealtime", family="smem")
def s_memtime(ins: Instruction, ctx: Context) -> Step:
    """D = a clock: here the number of questions."""
    write = _bind.scalar_writer(ins.operands[0], "u64", ctx)

    def step(b: Any) -> None:
        b.machine.time += 1
        write(b, np.full(b.scc.shape, b.machine.time, np.uint64))

    return step


# -- waits -----------------------------------------------------------------------------------------

_COUNT = re.compile(r"(\w+?)cnt\((\d+|0x[0-9a-f]+)\)")


@custom("s_waitcnt", family="wait", results=0)
def s_waitcnt(ins: Instruction, ctx: Context) -> Step:
    """Wait until the named counters are at most what is given."""
    operand = ins.operands[0]
    if isinstance(operand, Const):
        limits = _unpacked(int(operand.value), ctx.generation)
    else:
        limits = {name: int(n, 0) for name, n in _COUNT.findall(str(operand))}
    pairs = [(name, left) for name, left in limits.items() if name != "exp"]

    def step(b: Any) -> None:
        for name, left in pairs:
            if b.outstanding.wait(name, left):
                b.machine.useful[ins.index] = True

    return step


def _unpacked(value: int, generation: int) -> dict[str, int]:
    if generation >= 11:
        found = {"vm": value >> 10 & 63, "lgkm": value >> 4 & 63}
        return {n: v for n, v in found.items() if v != 63}
    found = {"vm": value & 15 | (value >> 14 & 3) << 4, "lgkm": value >> 8 & 15}
    return {n: v for n, v in found.items() if v != (63 if n == "vm" else 15)}


def _wait_one(*counters: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Wait until a counter is at most what is given."""
        operand = ins.operands[-1] if ins.operands else None
        text = str(operand).split(",")[-1].strip()
        left = int(text, 0)
        if len(counters) == 2:
            pairs = [(counters[0], left >> 8 & 63), (counters[1], left & 63)]
        else:
            pairs = [(counters[0], left)]

        def step(b: Any) -> None:
            for name, n in pairs:
                if b.outstanding.wait(name, n):
                    b.machine.useful[ins.index] = True

        return step

    return bind


custom("s_waitcnt_vscnt", "s_waitcnt_storecnt", family="wait", results=0)(_wait_one("vs"))
custom("s_waitcnt_vmcnt", family="wait", results=0)(_wait_one("vm"))
custom("s_waitcnt_lgkmcnt", family="wait", results=0)(_wait_one("lgkm"))
custom("s_waitcnt_expcnt", family="wait", results=0)(_wait_one("exp"))
for _name in ("load", "store", "ds", "km", "async", "tensor", "sample", "bvh", "exp"):
    custom(f"s_wait_{_name}cnt", family="wait", results=0)(_wait_one(_name))
custom("s_wait_loadcnt_dscnt", family="wait", results=0)(_wait_one("load", "ds"))
custom("s_wait_storecnt_dscnt", family="wait", results=0)(_wait_one("store", "ds"))


@custom("s_wait_idle", family="wait", results=0)
def s_wait_idle(ins: Instruction, ctx: Context) -> Step:
    """Wait until everything is done."""

    def step(b: Any) -> None:
        for name in ("load", "store", "ds", "km", "async", "tensor"):
            b.outstanding.wait(name, 0)

    return step


# -- barriers --------------------------------------------------------------------------------------


@custom("s_barrier", family="barrier", results=0)
def s_barrier(ins: Instruction, ctx: Context) -> Step:
    """Wait until all waves of the workgroup that have not ended are here."""

    def step(b: Any) -> Any:
        machine = b.machine
        machine.arrive(b, again=False)
        return machine.pass_barrier(b, ins.index + 1)

    return step


def _workgroup_barrier(ins: Instruction) -> None:
    """
    Raises:
        BackendError: a named barrier or one of a cluster, which are not modelled.
    """
    which = ins.operands[0]
    if not (isinstance(which, Const) and which.value == -1):
        raise BackendError(
            f"`{ins.text}`: the emulator knows the barrier of the workgroup only",
            span=span_of(ins.location),
        )


@custom("s_barrier_signal", "s_barrier_signal_isfirst", family="barrier", results=0)
def s_barrier_signal(ins: Instruction, ctx: Context) -> Step:
    """Arrive at the barrier of the workgroup; SCC = whether nobody has, for `isfirst`."""
    _workgroup_barrier(ins)
    asks = ins.name.endswith("isfirst")

    def step(b: Any) -> Any:
        if asks:
            b.scc = b.machine.first_to_arrive(b)
        b.machine.arrive(b, again=True)
        b.pc = ins.index + 1
        return SWITCH

    return step


@custom("s_barrier_wait", family="barrier", results=0)
def s_barrier_wait(ins: Instruction, ctx: Context) -> Step:
    """Wait until all have arrived."""
    _workgroup_barrier(ins)
    return lambda b: b.machine.pass_barrier(b, ins.index + 1)


# -- the state of a wave ---------------------------------------------------------------------------

_HWREG = re.compile(r"hwreg\(([^,)]+)(?:,\s*(\d+),\s*(\d+))?\)")


def _hardware_register(text: str) -> tuple[str, int, int]:
    found = _HWREG.match(text)
    if not found:
        raise ValueError(text)
    name = found[1].removeprefix("HW_REG_").removeprefix("WAVE_")
    return name, int(found[2] or 0), int(found[3] or 32)


@custom("s_getreg_b32", family="salu")
def s_getreg_b32(ins: Instruction, ctx: Context) -> Step:
    """D = a field of a hardware register."""
    name, offset, size = _hardware_register(str(ins.operands[1]))
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)
    mask = np.uint32((1 << size) - 1)

    def step(b: Any) -> None:
        value = b.mode if name == "MODE" else b.machine.hardware.get(name, 0)
        write(b, np.full(b.scc.shape, np.uint32(value >> offset) & mask, np.uint32))

    return step


def _set_register(ins: Instruction, ctx: Context) -> Step:
    """A field of a hardware register = S0; of MODE, rounding and denormals matter here."""
    name, offset, size = _hardware_register(str(ins.operands[0]))
    source = ins.operands[1]
    field = (1 << size) - 1

    def step(b: Any) -> None:
        if name != "MODE":
            return
        if isinstance(source, Const):
            value = int(source.value) & field
        else:
            assert isinstance(source, Reg)
            value = int(b.s[source.first][0]) & field
        b.set_mode(b.mode & ~(field << offset) | value << offset)

    return step


custom("s_setreg_b32", "s_setreg_imm32_b32", family="salu", results=0)(_set_register)


@custom("s_denorm_mode", family="salu", results=0)
def s_denorm_mode(ins: Instruction, ctx: Context) -> Step:
    """MODE's four bits for denormals."""
    value = ins.operands[0]
    assert isinstance(value, Const)
    bits = int(value.value) & 15
    return lambda b: b.set_mode(b.mode & ~0xF0 | bits << 4)


@custom("s_round_mode", family="salu", results=0)
def s_round_mode(ins: Instruction, ctx: Context) -> Step:
    """MODE's four bits for rounding; only to nearest even is modelled."""
    value = ins.operands[0]
    assert isinstance(value, Const)
    bits = int(value.value) & 15
    return lambda b: b.set_mode(b.mode & ~0xF | bits)
