"""From the arguments of a launch to machine code that runs: the kernarg segment and the registers
that a kernel starts with.

LLVM, "User Guide for AMDGPU Backend": Kernel Argument Segment, Initial Kernel Execution State,
Kernel Descriptor, Preloaded Kernel Arguments.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import ArgumentError, BackendError
from gluon_core.processes import usable_cores
from gluon_core.simulation.evidence import note
from gluon_emu.amdgcn.decode.codeobject import assembly_of
from gluon_emu.amdgcn.decode.operands import EXEC, TTMP
from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.isa.smem import SCALAR
from gluon_emu.amdgcn.machine.code import Code, bind, rows_of
from gluon_emu.amdgcn.machine.descriptor import encode_descriptor
from gluon_emu.amdgcn.machine.hostcall import Hostcalls, asks
from gluon_emu.amdgcn.machine.order import order_of
from gluon_emu.amdgcn.machine.run import Machine
from gluon_emu.amdgcn.machine.scratch import behind_buffer, resource
from gluon_emu.amdgcn.machine.spread import separable, spread
from gluon_emu.amdgcn.machine.state import Batch
from gluon_emu.amdgcn.machine.trace import Tally
from gluon_emu.amdgcn.machine.trace import write as write_trace
from gluon_emu.amdgcn.replaced import replacement
from gluon_emu.arguments import arguments_of, encode
from gluon_emu.memory import Allocation, GlobalMemory
from gluon_emu.settings import Settings, of_launch

__all__ = ["execute", "make_launcher", "prepared"]

_GARBAGE = np.uint32(0x7FA5A5A5)  # a signalling NaN, and no likely address
_RESIDENT = 128  # waves that run at once
_STATE_BYTES = 256 << 20
_WORTHWHILE = 1.0  # seconds of work that are shared among processes


@dataclass
class Launch:
    """One launch: the place of its workgroups, and their arguments.

    Args:
        grid: workgroups along x, y and z.
        waves: of a workgroup.
        cluster: workgroups of a cluster, along x.
        kernarg: the segment of arguments.
        lds_bytes: of a workgroup.
        service: of the runtime, where the kernel can ask for one.
        scratch: of the resident waves, where the kernel has it behind a buffer.
        packet: that dispatched the kernel, where it asks for it.
    """

    code: Code
    grid: tuple[int, int, int]
    waves: int
    kernarg: np.ndarray
    lds_bytes: int
    cluster: int = 1
    allocations: list[Allocation] = field(default_factory=list)
    service: Optional[Hostcalls] = None
    scratch: Optional[Allocation] = None
    packet: Optional[Allocation] = None


def make_launcher(compiled: Any) -> Callable[..., Any]:
    """`launch(grid, stream, *arguments)` for a `CompiledKernel` of AMD's pipeline.

    Raises:
        BackendError: there is no assembly, nor a code object that a tool here disassembles.
    """
    try:
        text = compiled.asm["amdgcn"]
    except KeyError:
        text = _disassembled(compiled)
    own = bind(parse(text, compiled.metadata.name))
    metadata = compiled.metadata
    compiled.function = compiled.module = own.program

    def box(_: Any, meta: Any, base: int, shape: list[int], strides: list[int]) -> bytes:
        return encode_descriptor(meta, base, shape, strides, metadata.num_warps).tobytes()

    def launch(grid: Any, stream: Any, *values: Any) -> None:
        settings, overridden = of_launch()
        code = own if settings.assembly is None else replacement(own, settings.assembly)
        arguments = arguments_of(compiled, grid, stream, values, box)
        lds = int(metadata.shared or 0)
        request = prepared(
            code, arguments.grid, arguments.leaves, arguments.scratch, arguments.allocations,
            lds, settings, arguments.cluster,
        )  # fmt: skip
        note(settings.off, overridden)
        execute(request, settings)

    return launch


def prepared(
    code: Code,
    grid: tuple[int, int, int],
    leaves: list[tuple[str, Any, Any]],
    scratch: list[int],
    allocations: list[Allocation],
    dynamic_lds: int,
    settings: Settings,
    cluster: int = 1,
    threads: Optional[int] = None,
) -> Launch:
    """Return a launch of `code` with these arguments.

    Args:
        grid: workgroups along x, y and z.
        leaves: (name, type, value) of each argument, addresses for pointers.
        scratch: addresses of buffers that the compiler asked for, behind the arguments.
        allocations: the memory that the addresses point into; buffers of the runtime are added.
        dynamic_lds: bytes of LDS in addition to those that the code declares.
        threads: of a workgroup; by default the number that the code declares.

    Raises:
        ArgumentError: the code takes other arguments.
    """
    program = code.program
    lanes = program.info.wave_size
    threads = threads or program.info.number("max_flat_workgroup_size", lanes)
    static = program.directives.get("group_segment_fixed_size", 0)
    service = None
    if asks(program.info):
        service = Hostcalls(max(settings.resident or 0, 2 * _RESIDENT))
        allocations.append(service.allocation)
    kernarg = _kernarg(program, leaves, scratch, _hidden(grid, threads, dynamic_lds), service)
    allocations.append(Allocation("the kernel arguments", kernarg, False))
    waves = -(-threads // lanes)
    return Launch(code, grid, waves, kernarg, static + dynamic_lds, cluster, allocations, service)


def _disassembled(compiled: Any) -> str:
    """Return the assembly of a kernel that is there as a code object alone."""
    try:
        code = compiled.asm["hsaco"]
        return assembly_of(code, compiled.metadata.name)
    except (KeyError, BackendError) as error:
        raise BackendError(
            f"{compiled.metadata.name} comes without its assembly, and "
            + ("without a code object" if isinstance(error, KeyError) else error.message),
            expected=getattr(error, "expected", None) or 'asm["amdgcn"]',
            got=getattr(error, "got", None) or ", ".join(compiled.asm) or "nothing",
            remedy="Compile the kernel from its source.",
        ) from None


# -- arguments -------------------------------------------------------------------------------------


def _kernarg(
    program: Program,
    leaves: list[tuple[str, Any, Any]],
    scratch: list[int],
    hidden: dict[str, int],
    service: Optional[Hostcalls] = None,
) -> np.ndarray:
    """Return the segment, as the metadata of the code object lays it out."""
    info = program.info
    size = max(
        info.number("kernarg_segment_size"),
        max((a.offset + a.size for a in info.arguments), default=0),
        16,
    )
    buffer = np.zeros((size + 15) // 8, np.uint64).view(np.uint8)
    shown = [a for a in info.arguments if not a.kind.startswith("hidden_")]
    if not len(leaves) <= len(shown) <= len(leaves) + len(scratch):
        raise ArgumentError(
            "the code object takes other arguments than the kernel",
            expected=f"{len(shown)} values",
            got=f"{len(leaves)}: {', '.join(name for name, _, _ in leaves)}",
        )
    values = [(kind, value) for _, kind, value in leaves]
    values += [("i64", address) for address in scratch]
    for argument, (kind, value) in zip(shown, values):
        data = encode(kind, value, argument.size)
        buffer[argument.offset : argument.offset + argument.size] = np.frombuffer(data, np.uint8)
    if service is not None:
        hidden["hidden_hostcall_buffer"] = service.address
    for argument in info.arguments:
        if argument.kind in hidden:
            data = encode("i64", hidden[argument.kind], argument.size)
            buffer[argument.offset : argument.offset + argument.size] = np.frombuffer(
                data, np.uint8
            )
    return buffer


def _hidden(grid: tuple[int, int, int], threads: int, dynamic_lds: int) -> dict[str, int]:
    hidden = {f"hidden_block_count_{axis}": n for axis, n in zip("xyz", grid)}
    hidden.update({f"hidden_group_size_{axis}": n for axis, n in zip("xyz", (threads, 1, 1))})
    hidden["hidden_dynamic_lds_size"] = dynamic_lds
    hidden["hidden_grid_dims"] = 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    return hidden


# -- the machine -----------------------------------------------------------------------------------


def execute(request: Launch, settings: Settings) -> Tally:
    """Run all workgroups, as many at once as fit; return the executed instructions.

    Raises:
        EmulatorError: the code violates a rule.
    """
    code = request.code
    rows = rows_of(code.program)
    total = request.grid[0] * request.grid[1] * request.grid[2]
    most = settings.resident or _RESIDENT
    most = min(most, max(1, _STATE_BYTES // (rows * code.context.lanes * 4)))
    together = max(1, most // request.waves)
    together = max(request.cluster, together // request.cluster * request.cluster)
    if code.program.directives.get("user_sgpr_private_segment_buffer") and code.scratch_bytes:
        waves = min(together, total) * request.waves
        request.scratch = behind_buffer(waves, code.context.lanes, code.scratch_bytes)
        request.allocations.append(request.scratch)
    if code.program.directives.get("user_sgpr_dispatch_ptr"):
        request.packet = _packet(request)
        request.allocations.append(request.packet)
    data = [Allocation(r.name, r.memory, r.writable) for r in code.program.data.regions]
    memory = GlobalMemory([*request.allocations, *data])
    started = time.monotonic()
    deadline = None if settings.timeout is None else started + settings.timeout
    tally = Tally(len(code.steps), watched=bool(settings.trace))

    order = None
    if settings.order:
        order = order_of(code, memory, total, request.waves, together * request.waves)

    def run(first: int, end: int, counted: Tally) -> None:
        numbers = np.arange(first, end)
        x, y, z = request.grid
        groups = np.stack((numbers % x, numbers // x % y, numbers // (x * y)), 1)
        machine = Machine(
            code,
            memory,
            groups,
            request.waves,
            request.lds_bytes,
            settings,
            deadline,
            counted,
            request.cluster,
            order,
            request.grid,
        )
        machine.service = request.service
        if order is not None:
            order.enter(first, end - first)
        machine.add(_start(machine, request, rows))
        machine.run()
        if settings.progress and time.monotonic() - started > 2:
            print(f"{code.program.name}: workgroup {end} of {total}", file=sys.stderr)

    parts = [(i, min(i + together, total)) for i in range(0, total, together)]
    processes = (settings.processes or usable_cores()) if hasattr(os, "fork") else 1
    with np.errstate(all="ignore"):
        for number, (first, end) in enumerate(parts):
            left = parts[number:]
            seconds = (time.monotonic() - started) / number * len(left) if number else 0.0
            if (
                processes > 1
                and len(left) > 1
                and seconds > _WORTHWHILE
                and order is None
                and separable(code.program)
            ):
                spread(left, run, memory, tally, min(processes, len(left)))
                break
            run(first, end, tally)
    if settings.trace:
        write_trace(settings.trace, code, tally, request.grid)
    return tally


def _packet(request: Launch) -> Allocation:
    """HSA, "Kernel dispatch packet": sizes of a workgroup and of the grid in lanes, bytes, addresses."""
    lanes = request.waves * request.code.context.lanes
    words = struct.pack(
        "<6H5I4Q",
        2, 3, lanes, 1, 1, 0, lanes * request.grid[0], *request.grid[1:],
        request.code.scratch_bytes, request.lds_bytes, 0, request.kernarg.ctypes.data, 0, 0,
    )  # fmt: skip
    return Allocation("the dispatch packet", np.frombuffer(bytearray(words), np.uint8), False)


def _start(machine: Machine, request: Launch, rows: int) -> Batch:
    """Return all resident waves at the kernel's first instruction."""
    code = request.code
    directives, context = code.program.directives, code.context
    lanes, waves = context.lanes, request.waves
    total = len(machine.groups) * waves
    v = np.full((rows, total, lanes), _GARBAGE, np.uint32)
    s = np.full((130, total), _GARBAGE, np.uint32)
    number = np.arange(total)
    v[0] = (number % waves * lanes)[:, None] + np.arange(lanes)  # y and z, above, are 0
    group = number // waves
    _user_registers(s, directives, request)
    ids = machine.groups[group]
    if context.generation >= 12:
        cluster = request.cluster
        s[TTMP + 9] = ids[:, 0] // cluster
        s[TTMP + 7] = ids[:, 1] | ids[:, 2] << 16
        s[TTMP + 8] = number % waves << 25
        s[TTMP + 6] = ids[:, 0] % cluster | (cluster - 1) << 12
        machine.hardware["IB_STS2"] = (1 if cluster > 1 else 0) << 6
    else:
        register = directives.get("user_sgpr_count", 0)
        for axis, letter in enumerate("xyz"):
            if directives.get(f"system_sgpr_workgroup_id_{letter}", axis == 0):
                s[register] = ids[:, axis]
                register += 1
        if directives.get("system_sgpr_workgroup_info"):
            s[register] = 0
            register += 1
        if directives.get("system_sgpr_private_segment_wavefront_offset"):
            s[register] = (
                0 if request.scratch is None else number * (request.scratch.data.size // total)
            )
    s[125] = 0
    s[EXEC : EXEC + 2] = 0xFFFFFFFF if lanes == 64 else 0
    s[EXEC] = 0xFFFFFFFF
    mode = (
        directives.get("float_round_mode_32", 0) | directives.get("float_round_mode_16_64", 0) << 2
    )
    mode |= directives.get("float_denorm_mode_32", 0) << 4
    mode |= directives.get("float_denorm_mode_16_64", 3) << 6
    scc = np.zeros(total, bool)
    batch = Batch(machine, v, s, scc, number, group, code.program.entry, mode)
    batch.written = {0, *(SCALAR + int(i) for i in np.nonzero((s != _GARBAGE).any(1))[0])}
    return batch


_USER = (
    ("user_sgpr_private_segment_buffer", 4),
    ("user_sgpr_dispatch_ptr", 2),
    ("user_sgpr_queue_ptr", 2),
    ("user_sgpr_kernarg_segment_ptr", 2),
    ("user_sgpr_dispatch_id", 2),
    ("user_sgpr_flat_scratch_init", 2),
    ("user_sgpr_private_segment_size", 1),
)


def _user_registers(s: np.ndarray, directives: dict[str, int], request: Launch) -> None:
    register, kernarg = 0, request.kernarg
    for name, count in _USER:
        if not directives.get(name):
            continue
        s[register : register + count] = 0
        if name == "user_sgpr_kernarg_segment_ptr":
            address = kernarg.ctypes.data
            s[register], s[register + 1] = address & 0xFFFFFFFF, address >> 32
        elif name == "user_sgpr_dispatch_ptr" and request.packet is not None:
            s[register], s[register + 1] = (
                request.packet.start & 0xFFFFFFFF,
                request.packet.start >> 32,
            )
        elif name == "user_sgpr_private_segment_buffer" and request.scratch is not None:
            for word, value in enumerate(resource(request.scratch)):
                s[register + word] = value
        elif name == "user_sgpr_private_segment_size":
            s[register] = request.code.scratch_bytes
        register += count
    words = kernarg.view(np.uint32)
    offset = directives.get("user_sgpr_kernarg_preload_offset", 0)
    for i in range(directives.get("user_sgpr_kernarg_preload_length", 0)):
        if offset + i < words.size:
            s[register + i] = words[offset + i]
