"""Requests to a simulator while kernels run, and the counts that it writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

__all__ = ["Executed", "Watch"]


@dataclass(frozen=True)
class Executed:
    """Counts of the work of a kernel's launches, for any number of resident warps.

    Args:
        launches: how many are counted here.
        warps: of all launches.
        instructions: machine instructions, each counted once for each warp that executed it.
        instruction_mix: family of instructions -> how many of them.
        global_bytes: moved from and to global memory.
        bank_cycles: that banks of shared memory took beyond the first of each access.
        idle_waits: waits that never had anything to wait for, of `waits`.
        lines: (file, line, instructions) of the kernel's source, line 0 where it is not known.
        same_code: whether all is of this very code; else of the kernel with other types or constants.
    """

    launches: int
    warps: int
    instructions: int
    instruction_mix: Mapping[str, int]
    global_bytes: int
    bank_cycles: int
    waits: int
    idle_waits: int
    lines: tuple[tuple[str, int, int], ...]
    same_code: bool = True


@dataclass(frozen=True)
class Watch:
    """Requests to a simulator while kernels run; files are written when the run is over.

    Args:
        profile: print the bytes and operations of each line of each kernel.
        profile_json, profile_html: write the same to these files.
        trace: write a timeline to this file, in the JSON format of Chrome and Perfetto.
        debug: open a prompt where a kernel fails or calls `breakpoint()`.
        trace_isa: write the executed machine instructions, counted by source line, to this file.
        asm: "KERNEL=FILE", for each kernel whose launches execute the machine code in a file of
            assembly rather than the compiler's.
        findings: called with the simulator's findings when the run is over.
    """

    profile: bool = False
    profile_json: Optional[str] = None
    profile_html: Optional[str] = None
    trace: Optional[str] = None
    debug: bool = False
    trace_isa: Optional[str] = None
    findings: Optional[Callable[[Any], None]] = field(default=None, metadata={"option": "--html"})
    asm: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Watch()
