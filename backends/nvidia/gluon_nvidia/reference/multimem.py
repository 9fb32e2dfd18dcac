"""Accesses to the copies of all ranks at once, PTX ISA 9.7.9.14."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluon_core import errors
from gluon_core.plugin.reference import Machine

__all__ = ["multimem_load_reduce", "multimem_reduce", "multimem_store"]

_COMBINE = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def multimem_load_reduce(
    machine: Machine,
    type: Any,
    copies: Sequence[np.ndarray],
    mask: Optional[np.ndarray],
    kind: str,
    width: int,
    axis: int,
    operands: Any = None,
) -> np.ndarray:
    dtype = machine.result_dtype()
    total: Any = None
    for addresses in copies:
        _check(addresses, mask, dtype.itemsize, width, axis)
        values = machine.load_global(addresses, dtype, mask)
        values = values.astype(np.float32) if dtype.itemsize == 2 else values
        total = values if total is None else _COMBINE[kind](total, values)
    return np.asarray(total.astype(dtype))


def multimem_store(
    machine: Machine,
    copies: Sequence[np.ndarray],
    value: np.ndarray,
    mask: Optional[np.ndarray],
    width: int,
    axis: int,
    operands: Any = None,
) -> None:
    for addresses in copies:
        _check(addresses, mask, value.dtype.itemsize, width, axis)
        machine.store_global(addresses, value, mask)


def multimem_reduce(
    machine: Machine,
    copies: Sequence[np.ndarray],
    value: np.ndarray,
    mask: Optional[np.ndarray],
    kind: str,
    sem: str,
    scope: str,
    width: int,
    axis: int,
    operands: Any = None,
) -> None:
    name = f"f{kind}" if value.dtype.kind not in "iu" and kind == "add" else kind
    for addresses in copies:
        _check(addresses, mask, value.dtype.itemsize, width, axis)
        machine.atomic_global(name, addresses, value, mask)


def _check(
    addresses: np.ndarray, mask: Optional[np.ndarray], size: int, width: int, axis: int
) -> None:
    """Check that the elements of one instruction are neighbours in memory, with one mask."""
    if width == 1:
        return
    groups = _groups(addresses, width, axis)
    live = np.ones(groups.shape, bool)
    if mask is not None:
        live = _groups(np.broadcast_to(mask, addresses.shape), width, axis)
    some = live.any(axis=-1)
    good = live.all(axis=-1) & (groups[..., 0] % (size * width) == 0)
    good &= (np.diff(groups, axis=-1) == size).all(axis=-1)
    if (some & ~good).any():
        raise errors.ArgumentError(
            f"{width} neighbours of a thread are no {width} neighbours in memory with one mask",
            argument="width",
            expected=f"offsets in runs of {width} that begin at a multiple of {width}",
            remedy="Let the offsets begin and end at such multiples, or give a smaller width.",
        )


def _groups(x: np.ndarray, width: int, axis: int) -> np.ndarray:
    """Return the elements of each instruction side by side in a last dimension."""
    moved = np.moveaxis(x, axis + 1, -1)
    return moved.reshape(*moved.shape[:-1], -1, width)
