"""Branches, barriers, waits and changes of the state of a wave.

ISA: CDNA3 4 and 12.5, RDNA3 5 and 16.5, RDNA4 5 and 16.5.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import EXEC, M0, VCC, Const, immediate
from gluon_emu.amdgcn.decode.program import CODE, Instruction, code_address
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Step, custom
from gluon_emu.errors import AccessError, EmulatorError, TrapError, span_of

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
    "s_setprio_inc_wg", "s_prefetch_inst", "s_prefetch_inst_pc_rel",
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
            jumped = int(taken.sum())
            if not jumped:
                return None
            b.machine.tally.jumped[ins.index] += jumped
            if jumped == taken.size:
                return target
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


@custom("s_getpc_b64", "s_get_pc_i64", family="branch")
def s_getpc_b64(ins: Instruction, ctx: Context) -> Step:
    """D = the address of the next instruction."""
    write = _bind.scalar_writer(ins.operands[0], "u64", ctx)
    value = np.uint64(code_address(ins.index + 1))
    return lambda b: write(b, np.full(b.scc.shape, value))


def _jump(links: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """PC = S0, and D = the address behind this instruction."""
        read = _bind.scalar_reader(ins.operands[-1], "u64", ctx)
        write = _bind.scalar_writer(ins.operands[0], "u64", ctx) if links else None
        back = np.uint64(code_address(ins.index + 1))

        def step(b: Any) -> Any:
            places = (read(b) - np.uint64(CODE)) >> np.uint64(2)
            first = places[0]
            if first >= len(ctx.program.instructions):
                raise b.machine.report(
                    AccessError,
                    f"a jump to {int(read(b)[0]):#x}, where there is no code",
                    ins,
                    b,
                    0,
                )
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


@custom("s_call_b64", "s_call_i64", family="branch")
def s_call(ins: Instruction, ctx: Context) -> Step:
    """D = the address behind this instruction, PC = the label."""
    target = ctx.program.labels[str(ins.operands[-1])]
    write = _bind.scalar_writer(ins.operands[0], "u64", ctx)
    back = np.uint64(code_address(ins.index + 1))

    def step(b: Any) -> int:
        write(b, np.full(b.scc.shape, back))
        return target

    return step


@custom("s_endpgm", "s_endpgm_saved", family="branch", results=0)
def s_endpgm(ins: Instruction, ctx: Context) -> Step:
    """End the wave."""
    return lambda b: END


@custom("s_code_end", family="branch", results=0)
def s_code_end(ins: Instruction, ctx: Context) -> Step:
    """Report a wave that runs past the last instruction."""

    def step(b: Any) -> None:
        last = ctx.program.instructions[ins.index - 1]
        raise b.machine.report(
            AccessError, f"runs past the end of the code, which is `{last.text}`", ins, b, 0
        )

    return step


@custom("s_trap", family="branch", results=0)
def s_trap(ins: Instruction, ctx: Context) -> Step:
    """End the launch, as the trap handler takes over."""
    return lambda b: _trap(ins, b, f"the kernel trapped ({ins.operands[0]})")


@custom("s_sethalt", family="branch", results=0)
def s_sethalt(ins: Instruction, ctx: Context) -> Step:
    """Stop the wave for good if bit 0 is set, as after a trap that no handler took."""
    halts = immediate(ins.operands[0]) & 1
    return lambda b: _trap(ins, b, "the kernel halted") if halts else None


def _trap(ins: Instruction, b: Any, message: str) -> None:
    message = b.machine.assertion(ins, b) or message
    raise b.machine.report(TrapError, message, ins, b, int(np.argmin(b.waves)))


@custom("s_sendmsg", "s_sendmsghalt", family="other", results=0)
def s_sendmsg(ins: Instruction, ctx: Context) -> Step:
    """Interrupts wake the service of the runtime that prints; other messages to the rest of the chip,
    such as that registers may be freed, change nothing here."""
    text = str(ins.operands[0])

    def interrupt(b: Any) -> None:
        service = b.machine.service
        missing = service.serve() if service is not None else 0
        if missing:
            raise b.machine.report(
                EmulatorError,
                f"asks for service {missing} of the runtime; only printing is here",
                ins,
                b,
                0,
            )

    return interrupt if "INTERRUPT" in text or text == "1" else lambda b: None


@custom("s_sendmsg_rtn_b32", "s_sendmsg_rtn_b64", family="smem")
def s_sendmsg_rtn(ins: Instruction, ctx: Context) -> Step:
    """D = the answer to the message, such as the time."""
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


@custom("s_get_shader_cycles_u64", family="salu")
def s_get_shader_cycles(ins: Instruction, ctx: Context) -> Step:
    """D = a clock, as `s_memtime` has it."""
    step: Step = s_memtime(ins, ctx)
    return step


# -- waits -----------------------------------------------------------------------------------------

_COUNT = re.compile(r"(\w+?)cnt\((\d+|0x[0-9a-f]+)\)")


@custom("s_waitcnt", family="wait", results=0)
def s_waitcnt(ins: Instruction, ctx: Context) -> Step:
    """Wait until the named counters reach their limits."""
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
        limits = {"vm": value >> 10 & 63, "lgkm": value >> 4 & 63}
        return {n: v for n, v in limits.items() if v != 63}
    limits = {"vm": value & 15 | (value >> 14 & 3) << 4, "lgkm": value >> 8 & 15}
    return {n: v for n, v in limits.items() if v != (63 if n == "vm" else 15)}


def _wait_one(*counters: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Wait until a counter reaches its limit."""
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
        b.machine.arrive_once(b, ins.index)
        return b.machine.pass_barrier(b, _WORKGROUP, ins.index + 1)

    return step


_WORKGROUP = -1
_LAST_NAMED = 16


def _by_barrier(ins: Instruction, act: Any) -> Step:
    """`act(batch, barrier, members)` for the barrier that an immediate or M0 names.

    M0: bits 0 to 5 the barrier, 16 to 21 how many arrivals complete it.

    Raises:
        BackendError: there is no such barrier.
    """
    operand = ins.operands[-1]
    if isinstance(operand, Const):
        which = int(operand.value)
        if which not in (-1, -3) and not 0 < which <= _LAST_NAMED:
            raise BackendError(
                "there is no such barrier",
                expected=f"-1 (workgroup), -3 (cluster), 1 to {_LAST_NAMED}",
                got=which,
            )
        return lambda b: act(b, which, 0)

    def step(b: Any) -> Any:
        words = b.s[M0]
        if (words != words[0]).any():  # one barrier at a time; the others come back here
            other = b.split(words != words[0])
            other.pc = ins.index
            b.machine.add(other)
        word = int(words[0])
        which = word & 63
        if not 0 < which <= _LAST_NAMED:
            raise b.machine.report(AccessError, f"there is no barrier {which}", ins, b, 0)
        return act(b, which, word >> 16 & 63)

    return step


@custom("s_barrier_signal", "s_barrier_signal_isfirst", family="barrier", results=0)
def s_barrier_signal(ins: Instruction, ctx: Context) -> Step:
    """Arrive at a barrier; SCC = whether nobody has, for `isfirst`."""
    asks = ins.name.endswith("isfirst")

    def arrive(b: Any, which: int, members: int) -> Any:
        if asks:
            b.scc = b.machine.barriers.first(b, which)
        b.machine.arrive(b, which, members)
        b.pc = ins.index + 1
        return SWITCH

    return _by_barrier(ins, arrive)


@custom("s_barrier_wait", family="barrier", results=0)
def s_barrier_wait(ins: Instruction, ctx: Context) -> Step:
    """Wait until the barrier is complete."""
    return _by_barrier(ins, lambda b, which, _: b.machine.pass_barrier(b, which, ins.index + 1))


@custom("s_barrier_init", family="barrier", results=0)
def s_barrier_init(ins: Instruction, ctx: Context) -> Step:
    """Set the arrivals that a named barrier expects to M0."""

    def set_up(b: Any, which: int, members: int) -> Any:
        count = members or int(b.s[M0][0]) >> 16 & 63
        b.machine.barriers.set_up(b, which, count)
        b.pc = ins.index + 1
        return SWITCH

    return _by_barrier(ins, set_up)


@custom("s_barrier_join", family="barrier", results=0)
def s_barrier_join(ins: Instruction, ctx: Context) -> Step:
    """Join a barrier: the wave waits for completions from now on."""

    def join(b: Any, which: int, _: int) -> Any:
        b.machine.barriers.join(b, which)
        b.pc = ins.index + 1
        return SWITCH

    return _by_barrier(ins, join)


@custom("s_barrier_leave", family="barrier", results=0)
def s_barrier_leave(ins: Instruction, ctx: Context) -> Step:
    """Leave the named barrier; SCC = 0, as the wave is still counted there."""

    def step(b: Any) -> None:
        b.scc = np.zeros(b.scc.shape, bool)

    return step


@custom("s_get_barrier_state", family="barrier")
def s_get_barrier_state(ins: Instruction, ctx: Context) -> Step:
    """D = whether the barrier is set up, arrivals from bit 4, members from bit 12."""
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)

    def read(b: Any, which: int, _: int) -> Any:
        write(b, b.machine.barriers.state(b, which))
        b.pc = ins.index + 1
        return SWITCH

    return _by_barrier(ins, read)


# -- the state of a wave ---------------------------------------------------------------------------

_HWREG = re.compile(r"hwreg\(([^,)]+)(?:,\s*(\d+),\s*(\d+))?\)")


def _hardware_register(text: str) -> tuple[str, int, int]:
    match = _HWREG.match(text)
    if not match:
        raise ValueError(text)
    name = match[1].removeprefix("HW_REG_").removeprefix("WAVE_")
    return name, int(match[2] or 0), int(match[3] or 32)


@custom("s_getreg_b32", family="salu")
def s_getreg_b32(ins: Instruction, ctx: Context) -> Step:
    """D = a field of a hardware register."""
    name, offset, size = _hardware_register(str(ins.operands[1]))
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)
    mask = np.uint32((1 << size) - 1)

    def step(b: Any) -> None:
        if name.startswith("SHADER_CYCLES"):  # a clock, like `s_memtime`
            b.machine.time += 1
            value = b.machine.time >> (32 if name.endswith("_HI") else 0) & 0xFFFFFFFF
        else:
            value = b.mode if name == "MODE" else b.machine.hardware.get(name, 0)
        write(b, np.full(b.scc.shape, np.uint32(value >> offset) & mask, np.uint32))

    return step


def _set_register(ins: Instruction, ctx: Context) -> Step:
    """Set a field of a hardware register to S0; of MODE, rounding and denormals matter here."""
    name, offset, size = _hardware_register(str(ins.operands[0]))
    read = _bind.scalar_reader(ins.operands[1], "u32", ctx)
    field = (1 << size) - 1

    def step(b: Any) -> None:
        if name != "MODE":
            return
        value = int(np.ravel(read(b))[0]) & field
        _change_mode(b, ins, b.mode & ~(field << offset) | value << offset)

    return step


def _change_mode(b: Any, ins: Instruction, mode: int) -> None:
    try:
        b.set_mode(mode)
    except BackendError as error:
        error.message = f"{error.message}, and `{ins.text}` asks for something else"
        error.span = span_of(ins.location)
        raise


custom("s_setreg_b32", "s_setreg_imm32_b32", family="salu", results=0)(_set_register)


@custom("s_denorm_mode", family="salu", results=0)
def s_denorm_mode(ins: Instruction, ctx: Context) -> Step:
    """MODE's four bits for denormals."""
    bits = immediate(ins.operands[0]) & 15
    return lambda b: _change_mode(b, ins, b.mode & ~0xF0 | bits << 4)


@custom("s_round_mode", family="salu", results=0)
def s_round_mode(ins: Instruction, ctx: Context) -> Step:
    """MODE's four bits for rounding; only to nearest even is modelled."""
    bits = immediate(ins.operands[0]) & 15
    return lambda b: _change_mode(b, ins, b.mode & ~0xF | bits)
