"""The scope of an access to global memory or of an operation on caches.

LLVM, "User Guide for AMDGPU Backend", Memory Model of gfx90a, gfx942, gfx10-gfx11, gfx12 and gfx125x.
"""

from __future__ import annotations

import re
from typing import Optional

from gluon_emu.amdgcn.decode.program import Instruction, Program
from gluon_emu.amdgcn.isa.bind import Context

__all__ = [
    "INVALIDATE",
    "WRITE_BACK",
    "exchanges",
    "load_key",
    "reaches_device",
    "store_keys",
    "written_back",
]

_LOAD = re.compile(r"(?:global|flat|buffer|cluster)_load_|tensor_load_to_lds")
_STORE = re.compile(r"(?:global|flat|buffer)_store_|tensor_store_from_lds")
_ATOMIC = re.compile(r"(?:global|flat|buffer)_atomic_")
# Operations that make loads see stores of other workgroups, and others see stores of this one.
INVALIDATE = {
    "gfx90a": "buffer_wbinvl1_vol", "gfx942": "buffer_inv sc1", "gfx950": "buffer_inv sc1",
    "gfx1100": "buffer_gl1_inv and buffer_gl0_inv", "gfx1200": "global_inv scope:SCOPE_DEV",
    "gfx1201": "global_inv scope:SCOPE_DEV",
    "gfx1250": "global_inv scope:SCOPE_DEV and a wait for it",
}  # fmt: skip
WRITE_BACK = {
    "gfx942": "buffer_wbl2 sc1", "gfx950": "buffer_wbl2 sc1", "gfx1250": "global_wb scope:SCOPE_DEV",
}  # fmt: skip
_WIDE = ("SCOPE_DEV", "SCOPE_SYS")
_INVALIDATES = (
    "buffer_inv",
    "buffer_wbinvl1",
    "buffer_wbinvl1_vol",
    "buffer_gl1_inv",
    "global_inv",
)


def reaches_device(ins: Instruction, ctx: Context, store: bool = False) -> bool:
    """Return whether an access bypasses all caches that workgroups of a device do not share, or an operation
    on caches is about all of them."""
    if ctx.architecture in ("gfx942", "gfx950"):
        return "sc1" in ins.modifiers
    if ctx.architecture == "gfx1250" or (ctx.generation >= 12 and not store):
        return ins.modifiers.get("scope") in _WIDE
    return store or "glc" in ins.modifiers or ins.name in _INVALIDATES


def written_back(ctx: Context) -> bool:
    """Return whether stores stay in caches that not all workgroups share until these are written back."""
    return ctx.architecture in ("gfx942", "gfx950", "gfx1250")


def load_key(ctx: Context) -> tuple[str, str]:
    """(counter, kind) of loads, and of atomics that return something."""
    return ("load", "mem") if ctx.generation >= 12 else ("vm", "mem")


def store_keys(ctx: Context) -> list[tuple[str, str]]:
    """Return (counter, kind) of operations that write to memory."""
    if ctx.architecture == "gfx1250":
        return [("store", "store"), ("async", "async"), ("tensor", "tensor")]
    if ctx.generation >= 12:
        return [("store", "store")]
    return [("vs", "store")] if ctx.generation >= 10 else [("vm", "mem")]


def exchanges(program: Program, ctx: Context) -> bool:
    """Return whether workgroups may observe each other's stores: there are stores, and loads
    that come behind an atomic or one that goes past the caches."""
    instructions = program.instructions
    if not any(_STORE.match(i.name) for i in instructions):
        return False
    queue = [i.index + 1 for i in instructions if _looks(i, ctx)]
    seen: set[int] = set()
    while queue:
        current = queue.pop()
        while current < len(instructions) and current not in seen:
            seen.add(current)
            ins = instructions[current]
            if _LOAD.match(ins.name) and not reaches_device(ins, ctx):
                return True
            target = _target(ins, program)
            if target is not None:
                queue.append(target)
            if ins.name.startswith(("s_setpc", "s_set_pc", "s_swappc", "s_swap_pc")):
                return any(_LOAD.match(i.name) for i in instructions)
            if ins.name in ("s_branch", "s_endpgm"):
                break
            current += 1
    return False


def _looks(ins: Instruction, ctx: Context) -> bool:
    if _ATOMIC.match(ins.name):
        return True
    return bool(_LOAD.match(ins.name)) and reaches_device(ins, ctx)


def _target(ins: Instruction, program: Program) -> Optional[int]:
    if ins.name == "s_branch" or ins.name.startswith("s_cbranch"):
        return program.labels.get(str(ins.operands[0]))
    return None
