"""What AMDGCN assembly says about itself: registers, spills, LDS and instructions."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Optional

from gluon_core.backend import Report

__all__ = ["instruction_mix", "note", "report"]

_INSTRUCTION = re.compile(r"^\s+([a-z][a-z0-9_]+)(?:\s|$)", re.MULTILINE)
_PREFIXES = ("s_", "v_", "ds_", "buffer_", "global_", "flat_", "scratch_", "image_", "tensor_")


def note(assembly: str, name: str) -> Optional[int]:
    """The number that the kernel's metadata gives for `name` (`vgpr_count`), None without one."""
    found = re.search(rf"^\s*\.{name}:\s+(\d+)", assembly, re.MULTILINE)
    return int(found.group(1)) if found else None


def instruction_mix(assembly: str) -> dict[str, int]:
    """Mnemonic class -> how often: `v_mfma`, `buffer_load`, `ds_read`, ..."""
    body = assembly.split(".amdgpu_metadata")[0]
    counts: Counter = Counter()
    for mnemonic in _INSTRUCTION.findall(body):
        if mnemonic.startswith(_PREFIXES):
            counts[_class(mnemonic)] += 1
    return dict(counts.most_common())


def _class(mnemonic: str) -> str:
    """The unit and the verb: `v_mfma_f32_16x16x16_f16` is `v_mfma`."""
    return "_".join(mnemonic.split("_")[:2])


def report(compiled: Any) -> Report:
    """The `Report` of a `gluon_core.compiler.CompiledKernel`; spills in bytes per thread."""
    assembly = compiled.asm["amdgcn"]
    mix = instruction_mix(assembly)
    spilled = note(assembly, "vgpr_spill_count")
    return Report(
        registers=note(assembly, "vgpr_count"),  # accumulation registers included
        spills=None if spilled is None else 4 * spilled,
        shared_memory=compiled.metadata.shared or 0,
        instruction_count=sum(mix.values()),
        instruction_mix=mix,
    )
