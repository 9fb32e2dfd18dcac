"""Sub-dword addressing: parts of registers as operands and as destinations.

ISA: CDNA3 12.15, VOP_SDWA.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.amdgcn.decode.program import Instruction

__all__ = ["merger", "selector"]

_PARTS = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
}


def selector(name: str, signed: bool) -> Optional[Callable[[Any], Any]]:
    """Return a function that picks a part of a register and extends it; None for a whole one."""
    if name == "DWORD":
        return None
    shift, width = _PARTS[name]
    up, down = np.uint32(32 - width - shift), np.uint32(32 - width)
    if signed:
        return lambda value: ((value << up).view(np.int32) >> np.int32(down)).view(np.uint32)
    return lambda value: (value << up) >> down


def merger(ins: Instruction) -> Callable[[Any, Any], Any]:
    """`merge(result, old)`: the register that SDWA leaves."""
    name = ins.modifiers.get("dst_sel", "DWORD")
    unused = ins.modifiers.get("dst_unused", "UNUSED_PAD")
    if name == "DWORD":
        return lambda bits, old: bits
    shift, width = _PARTS[name]
    field = np.uint32(((1 << width) - 1) << shift)
    amount = np.uint32(shift)
    if unused == "UNUSED_PRESERVE":
        return lambda bits, old: ((bits << amount) & field) | (old & ~field)
    if unused == "UNUSED_SEXT":
        up, down = np.uint32(32 - width), np.int32(32 - width - shift)

        def extend(bits: Any, old: Any) -> Any:
            signed = (bits << up).view(np.int32) >> down
            below = np.uint32((1 << shift) - 1)
            return signed.view(np.uint32) & ~below

        return extend
    return lambda bits, old: (bits << amount) & field
