"""Data-parallel primitives: source 0 of a vector instruction from other lanes.

ISA: CDNA3 4.7 and 12.16 (DPP controls); RDNA3 7.7, RDNA4 7.7 (DPP8, DPP16).
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.program import Instruction

__all__ = ["allowed", "mover", "source_lanes"]

_DPP = ("dpp", "dpp8", "e64_dpp", "e64_dpp8")


def _list(text: str) -> list[int]:
    return [int(piece, 0) for piece in text.strip("[]").split(",")]


def source_lanes(modifiers: Any, lanes: int) -> np.ndarray:
    """For each lane the lane it reads, -1 where there is none.

    Raises:
        BackendError: no known control.
    """
    lane = np.arange(lanes)
    row, inside = lane // 16 * 16, lane % 16
    for name, text in modifiers.items():
        if name == "quad_perm":
            return np.asarray(lane // 4 * 4 + np.array(_list(text))[lane % 4])
        if name == "dpp8":
            return np.asarray(lane // 8 * 8 + np.array(_list(text))[lane % 8])
        if name in ("row_newbcast", "row_share"):
            return row + int(text, 0)
        if name == "row_shl":
            shifted = inside + int(text, 0)
            return np.where(shifted < 16, row + shifted, -1)
        if name == "row_shr":
            shifted = inside - int(text, 0)
            return np.where(shifted >= 0, row + shifted, -1)
        if name == "row_ror":
            return row + (inside - int(text, 0)) % 16
        if name == "row_xmask":
            return row + (inside ^ int(text, 0))
        if name == "row_mirror":
            return row + 15 - inside
        if name == "row_half_mirror":
            return lane // 8 * 8 + 7 - lane % 8
        if name == "row_bcast":
            if int(text, 0) == 15:
                return np.where(row > 0, row - 1, -1)
            return np.where(lane >= 32, 31, -1)
        if name == "wave_shl":
            return np.where(lane + 1 < lanes, lane + 1, -1)
        if name == "wave_shr":
            return lane - 1
        if name == "wave_rol":
            return (lane + 1) % lanes
        if name == "wave_ror":
            return (lane - 1) % lanes
    raise BackendError(f"no known DPP control among {', '.join(modifiers)}")


def mover(ins: Instruction, lanes: int) -> Callable[[Any, Any], Any]:
    """Return `move(batch, value)`: the value that each lane reads, 0 from lanes that cannot be read."""
    source = source_lanes(ins.modifiers, lanes)
    index = np.maximum(source, 0)
    inside = (source >= 0)[None, :]
    everywhere = bool(inside.all())
    fetch_inactive = _switch(ins, "fi")

    def move(b: Any, value: Any) -> Any:
        if value.shape[-1] == 1:  # a scalar operand is the same in all lanes
            return value
        moved = value[:, index]
        if b.full or fetch_inactive:
            return moved if everywhere else np.where(inside, moved, np.uint32(0))
        return np.where(inside & b.exec[:, index], moved, np.uint32(0))

    return move


def _switch(ins: Instruction, name: str) -> bool:
    return name in ins.modifiers and ins.modifiers[name] not in ("0",)


def allowed(ins: Instruction, lanes: int) -> Optional[Callable[[Any], Any]]:
    """`f(batch)`: the lanes that a DPP instruction may write, None where that is all.

    Row and bank masks switch lanes off, and so does a source that cannot be read unless
    `bound_ctrl` asks for 0 in its place.
    """
    if ins.suffix not in _DPP:
        return None
    source = source_lanes(ins.modifiers, lanes)
    lane = np.arange(lanes)
    rows = int(ins.modifiers.get("row_mask", "0xf"), 0)
    banks = int(ins.modifiers.get("bank_mask", "0xf"), 0)
    fixed = ((rows >> (lane // 16)) & 1 & (banks >> (lane % 16 // 4))) == 1
    fixed = fixed[None, :]
    if _switch(ins, "bound_ctrl") or "dpp8" in ins.modifiers:
        return None if fixed.all() else lambda b: fixed
    fixed = fixed & (source >= 0)[None, :]
    index = np.maximum(source, 0)
    if _switch(ins, "fi"):
        return lambda b: fixed
    return lambda b: fixed if b.full else fixed & b.exec[:, index]
