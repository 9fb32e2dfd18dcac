"""What a cubin says about itself: registers, spills, shared memory and instructions.

Read with the `cuobjdump` that ships in the Triton wheel, so no GPU is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from typing import Any

from gluon_core.backend import Report
from gluon_core.errors import BackendError

__all__ = ["disassemble", "instruction_mix", "report", "resource_usage"]

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")


def _cuobjdump(cubin: bytes, *arguments: str) -> str:
    from gluon_core import _triton

    tool = _triton.tool("cuobjdump")
    if tool is None:
        raise BackendError("the installed Triton ships no cuobjdump")
    handle, path = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(cubin)
        done = subprocess.run([tool, *arguments, path], capture_output=True, text=True, check=False)
    finally:
        os.remove(path)
    if done.returncode:
        raise BackendError("cuobjdump could not read the cubin", got=done.stderr.strip()[:400])
    return done.stdout


def resource_usage(cubin: bytes) -> dict[str, int]:
    """`REG`, `STACK`, `SHARED` and `LOCAL` of the kernel in `cubin`."""
    found: dict[str, int] = {}
    for key, value in _USAGE.findall(_cuobjdump(cubin, "-res-usage")):
        found.setdefault(key, int(value))
    return found


def disassemble(cubin: bytes) -> str:
    """The machine code of `cubin` as text."""
    return _cuobjdump(cubin, "-sass")


def instruction_mix(sass: str) -> dict[str, int]:
    """Mnemonic without modifiers -> how often; padding is left out."""
    counts = Counter(name.split(".")[0] for name in _INSTRUCTION.findall(sass))
    counts.pop("NOP", None)
    return dict(counts.most_common())


def report(compiled: Any) -> Report:
    """The `Report` of a `gluon_core.compiler.CompiledKernel`."""
    usage = resource_usage(compiled.kernel)
    mix = instruction_mix(disassemble(compiled.kernel))
    return Report(
        registers=usage.get("REG"),
        spills=max(usage.get("LOCAL", 0), usage.get("STACK", 0)) // 4,
        shared_memory=compiled.metadata.shared or 0,
        instruction_count=sum(mix.values()),
        instruction_mix=mix,
    )
