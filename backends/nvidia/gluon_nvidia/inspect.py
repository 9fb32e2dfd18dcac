"""Read the facts of a cubin: registers, spills, shared memory, occupancy, instructions, loops.

Read with the `cuobjdump` that ships in the Triton wheel, so no GPU is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import replace
from typing import Any, Mapping, Optional, Sequence
from urllib.parse import unquote

from gluon_core import errors
from gluon_core.plugin import machine_code
from gluon_core.plugin.compiler import Report
from gluon_core.plugin.triton_compiler import TritonCompiler

__all__ = [
    "disassemble",
    "emitted",
    "instructions",
    "listing",
    "occupancy",
    "registers",
    "report",
    "resource_usage",
    "unit",
]

_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Zx0-9_.]*)(?P<rest>[^;]*)",
    re.MULTILINE,
)
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
# Modifiers that say how much one instruction does: widths and shapes.
_SIZE = re.compile(r"U?\d+|\d+x\d+(x\d+)?|MT?\d+")
# Limits of one multiprocessor: warps and blocks (CUDA programming guide, compute capabilities); each of
# its four parts has a quarter of the 64 Ki registers, which warps take 256 at a time.
_MOST_WARPS = {75: 32, 86: 48, 87: 48, 89: 48, 110: 48, 120: 48, 121: 48}
_MOST_BLOCKS = {75: 16, 86: 16, 87: 16, 89: 24}
_REGISTERS, _RESERVED = 64 * 1024, 1024
_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")


def resource_usage(cubin: bytes) -> dict[str, int]:
    """Return `REG`, `STACK`, `SHARED` and `LOCAL` of the kernel in `cubin`."""
    facts: dict[str, int] = {}
    for key, value in _USAGE.findall(_run_tool("cuobjdump", cubin, "-res-usage")):
        facts.setdefault(key, int(value))
    return facts


def disassemble(cubin: bytes) -> str:
    """Return the machine code of `cubin` as text."""
    return _run_tool("cuobjdump", cubin, "-sass")


def instructions_of(cubin: bytes) -> Optional[str]:
    """Return the machine code of `cubin` as text in which branches name labels, or None without a tool for it."""
    try:
        return _run_tool("nvdisasm", cubin, "-c")
    except errors.BackendError:
        return None


_PLACE = re.compile(r'^\s*//## File "(.*)", line (\d+)( inlined at .*)?$')
_MACHINE = re.compile(r"^\s*(/\*[0-9a-f]{4,}\*/\s|\.L_x_\d+:)")


def listing(cubin: bytes) -> tuple[machine_code.CodeLine, ...]:
    """Return the instructions and labels of `cubin`, each instruction with the line that it is for."""
    lines = []
    file, line, fresh = "", 0, True
    for row in _run_tool("nvdisasm", cubin, "-g", "-c").splitlines():
        place = _PLACE.match(row)
        if place is not None:
            if fresh:  # of several, the innermost function comes first; `located` quotes paths
                file, line = unquote(place[1]), int(place[2])
            fresh = False
        elif _MACHINE.match(row):
            label = row.lstrip().startswith(".")
            lines.append(machine_code.CodeLine(row.strip(), *(("", 0) if label else (file, line))))
            fresh = True
    while lines and "NOP" in lines[-1].text or lines and lines[-1].text.startswith("."):
        lines.pop()
    return tuple(lines)


def instructions(sass: str) -> list[machine_code.Instruction]:
    """Return the kernel's instructions in order, named with their widths and shapes: `LDS.128`,
    `LDGSTS.128`, `HGMMA.64x128x16`; padding is left out."""
    instructions = []
    for line in _INSTRUCTION.finditer(sass):
        first, *modifiers = line["name"].split(".")
        if first == "NOP":
            continue
        kept = [modifier for modifier in modifiers if _SIZE.fullmatch(modifier)]
        target = _TARGET.search(line["rest"]) if first == "BRA" else None
        instructions.append(
            machine_code.Instruction(
                ".".join([first, *kept]),
                (hex(int(line["at"], 16)),),
                hex(int(target[1], 16)) if target else None,
            )
        )
    return instructions


_KINDS = (
    (re.compile(r"LDGSTS$|UTMALDG|UTMASTG|UBLKCP|UTMAREDG"), machine_code.Instruction.COPY),
    (re.compile(r"LDG?$"), machine_code.Instruction.LOAD),
    (re.compile(r"STG?$"), machine_code.Instruction.STORE),
    (re.compile(r"[A-Z]*(MMA|MMA2)$"), machine_code.Instruction.PRODUCT),
)
_BITS = re.compile(r"[UFSB]?(8|16|32|64|128|256)$")
_WHOLE_TILES = ("U",)  # engines that move whole boxes


def emitted(lines: Sequence[machine_code.CodeLine]) -> tuple[machine_code.Instruction, ...]:
    """Return the accesses of global memory and the matrix products among the lines of `listing`."""
    accesses = []
    for line in lines:
        for one in instructions(line.text):
            first, *modifiers = one.name.split(".")
            kind = next((kind for pattern, kind in _KINDS if pattern.match(first)), None)
            if kind is not None:
                sizes = [int(m[1]) for m in map(_BITS.match, modifiers) if m]
                width = (
                    0
                    if kind == machine_code.Instruction.PRODUCT or first.startswith(_WHOLE_TILES)
                    else 4
                )
                if width and sizes:
                    width = max(sizes) // 8
                accesses.append(
                    replace(one, kind=kind, file=line.file, line=line.line, width=width)
                )
    return tuple(accesses)


def unit(mnemonic: str) -> str:
    """Return a mnemonic without its modifiers."""
    return mnemonic.partition(".")[0]


def occupancy(architecture: Any, registers: int, num_warps: int, shared: int) -> int:
    """Return the warps on one multiprocessor: whole blocks, limited by registers, shared memory and its
    capacity."""
    number, limits = architecture.arch, architecture.limits
    each = -(-registers * 32 // 256) * 256
    by_registers = _REGISTERS // 4 // each * 4 if each else 64
    blocks = min(by_registers, _MOST_WARPS.get(number, 64)) // num_warps
    if shared:
        # Each block has a KiB of its own, which the limit of one block leaves out.
        blocks = min(blocks, (limits.shared_memory + _RESERVED) // (shared + _RESERVED))
    return min(blocks, _MOST_BLOCKS.get(number, 32)) * num_warps


def report(compiled: Any) -> Report:
    """Return the `Report` of a `gluon_core.compiler.CompiledKernel`."""
    usage = resource_usage(compiled.kernel)
    used, shared = usage.get("REG"), compiled.metadata.shared or 0
    warps, architecture = compiled.metadata.num_warps, compiled.target.architecture
    scratch = _scratch(usage)
    return Report.of(
        instructions(disassemble(compiled.kernel)),
        unit,
        registers=used,
        spills=scratch // 4,
        shared_memory=shared,
        scratch=scratch,
        occupancy=None if not used else occupancy(architecture, used, warps, shared),
    )


def registers(compiled: Any) -> tuple[Optional[int], int]:
    """Return registers and spills of each thread, as `report` does: a hundredth of the time of disassembling."""
    usage = resource_usage(compiled.kernel)
    return usage.get("REG"), _scratch(usage) // 4


def _scratch(usage: Mapping[str, int]) -> int:
    return max(usage.get("LOCAL", 0), usage.get("STACK", 0))


def _run_tool(name: str, cubin: bytes, *arguments: str) -> str:
    """Return the output of a tool on machine code.

    Raises:
        BackendError: there is no such tool, or it fails.
    """
    tool = TritonCompiler.tool(name)
    handle, path = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(cubin)
        done = subprocess.run([tool, *arguments, path], capture_output=True, text=True, check=False)
    finally:
        os.remove(path)
    if done.returncode:
        error = done.stderr.strip()[:400]
        raise errors.BackendError(f"{name} could not read the machine code", got=error)
    return done.stdout
