"""Read the facts of AMDGCN assembly: registers, spills, LDS, occupancy, instructions, loops."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Optional, Sequence

from gluon_core.plugin import machine_code
from gluon_core.plugin.compiler import Report

__all__ = ["emitted", "instructions", "note", "occupancy", "report", "unit"]

_LINE = re.compile(
    r"^(?:(?P<label>[.\w$]+):|\s+(?P<name>[a-z][a-z0-9_]+)(?P<rest>(?:[ \t][^;\n]*)?))",
    re.MULTILINE,
)
_PREFIXES = ("s_", "v_", "ds_", "buffer_", "global_", "flat_", "scratch_", "image_", "tensor_")
# The choice of an encoding does not change an instruction's effect.
_ENCODING = re.compile(r"_(e32|e64|sdwa|dpp|dpp8)$")
_SIMDS = {64: 4, 32: 2}  # of a compute unit, by the width of a wave


def note(assembly: str, name: str) -> Optional[int]:
    """Return the number that the kernel's metadata gives for `name` (`vgpr_count`), None without one."""
    match = re.search(rf"^\s*(?:- )?\.{name}:\s+(\d+)", assembly, re.MULTILINE)
    return int(match.group(1)) if match else None


def instructions(assembly: str) -> list[machine_code.Instruction]:
    """Return the kernel's instructions in order; copies past the registers are marked `... lds`."""
    body = assembly.split(".amdgpu_metadata")[0]
    instructions, labels = [], []
    for line in _LINE.finditer(body):
        if line["label"]:
            labels.append(line["label"])
            continue
        name = line["name"]
        if not name.startswith(_PREFIXES):
            continue
        rest = line["rest"].split()
        branch = name.startswith(("s_branch", "s_cbranch")) and rest
        if name.startswith("buffer_") and rest and rest[-1] == "lds":
            name += " lds"
        name = _ENCODING.sub("", name)
        instructions.append(
            machine_code.Instruction(name, tuple(labels), rest[0] if branch else None)
        )
        labels = []
    return instructions


_KINDS = (
    (
        re.compile(r"(global|buffer)_load_\w*lds|global_load_async|\w+_store_async|\w+ lds$"),
        machine_code.Instruction.COPY,
    ),
    (re.compile(r"tensor_(load|store)"), machine_code.Instruction.COPY),
    (re.compile(r"(global|buffer|flat)_load"), machine_code.Instruction.LOAD),
    (re.compile(r"(global|buffer|flat)_store"), machine_code.Instruction.STORE),
    (re.compile(r"v_s?(mfma|wmma)"), machine_code.Instruction.PRODUCT),
)
_WIDTHS = (
    (re.compile(r"x4|b128"), 16),
    (re.compile(r"x3|b96"), 12),
    (re.compile(r"x2|b64"), 8),
    (re.compile(r"byte|[uib]8"), 1),
    (re.compile(r"short|[uib]16"), 2),
)


def emitted(lines: Sequence[machine_code.CodeLine]) -> tuple[machine_code.Instruction, ...]:
    """Return the accesses of global memory and the matrix products among lines of assembly."""
    accesses = []
    for line in lines:
        for one in instructions(line.text):
            kind = next((kind for pattern, kind in _KINDS if pattern.match(one.name)), None)
            if kind is not None:
                whole = kind == machine_code.Instruction.PRODUCT or one.name.startswith("tensor_")
                sizes = (size for pattern, size in _WIDTHS if pattern.search(one.name))
                width = 0 if whole else next(sizes, 4)
                accesses.append(
                    replace(one, kind=kind, file=line.file, line=line.line, width=width)
                )
    return tuple(accesses)


def unit(mnemonic: str) -> str:
    """Return the unit and the verb of a mnemonic: `v_mfma` of `v_mfma_f32_16x16x16_f16`."""
    return "_".join(mnemonic.split("_")[:2])


def occupancy(assembly: str, architecture: Any, num_warps: int, shared: int) -> Optional[int]:
    """Waves on one compute unit: whole blocks, by registers (LLVM's own figure for one SIMD) and
    by LDS."""
    match = re.search(r"^; Occupancy: (\d+)", assembly, re.MULTILINE)
    if match is None:
        return None
    blocks = int(match.group(1)) * _SIMDS[architecture.warp_size] // num_warps
    if shared:
        blocks = min(blocks, architecture.limits.shared_memory // shared)
    return blocks * num_warps


def report(compiled: Any) -> Report:
    """Return the `Report` of a `gluon_core.compiler.CompiledKernel`; spills in bytes per thread."""
    assembly = compiled.asm["amdgcn"]
    spilled = note(assembly, "vgpr_spill_count")
    total, agprs = note(assembly, "vgpr_count"), note(assembly, "agpr_count")
    files = {
        "vgpr": None if total is None else total - (agprs or 0),
        "agpr": agprs,
        "sgpr": note(assembly, "sgpr_count"),
    }
    shared = compiled.metadata.shared or 0
    architecture = compiled.target.architecture
    return Report.of(
        instructions(assembly),
        unit,
        registers=total,  # accumulation registers included
        spills=None if spilled is None else 4 * spilled,
        shared_memory=shared,
        scratch=note(assembly, "private_segment_fixed_size"),
        occupancy=occupancy(assembly, architecture, compiled.metadata.num_warps, shared),
        register_files={name: count for name, count in files.items() if count is not None},
    )
