"""Buffer operations: a scalar base and 32-bit element offsets (CDNA3 ISA 9.1).

The hardware compares each offset in bytes, modulo 2**32, with the descriptor's num_records, which
Triton sets to 2**31 - 2: a negative offset reads 0 or writes nothing. An offset within that, but
outside of the tensor, is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer, returns

__all__ = [
    "async_commit_group",
    "async_copy_global_to_local",
    "async_wait_group",
    "buffer_atomic_rmw",
    "buffer_load",
    "buffer_load_to_local",
    "buffer_store",
]

_COPIES = "buffer_load_lds"


_NUM_RECORDS = 2**31 - 2


def _addresses(
    pointer: np.ndarray, offsets: np.ndarray, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Return (byte addresses, mask of those that the hardware accesses)."""
    base = pointer.reshape(-1, *([1] * (offsets.ndim - 1)))
    steps = offsets.view(np.uint32).astype(np.int64) * dtype.itemsize % 2**32
    return base + steps, steps + dtype.itemsize <= _NUM_RECORDS


def _both(mask: Any, inside: np.ndarray) -> Any:
    return mask if inside.all() else inside if mask is None else mask & inside


def _load(
    machine: Machine,
    pointer: np.ndarray,
    offsets: np.ndarray,
    dtype: np.dtype,
    mask: Any,
    other: Any,
) -> np.ndarray:
    addresses, inside = _addresses(pointer, offsets, dtype)
    values = machine.load_global(addresses, dtype, _both(mask, inside), other)
    if inside.all() or other is None:
        return values
    beyond = ~inside if mask is None else mask & ~inside
    return np.where(beyond, np.zeros((), dtype), values)


def buffer_load(
    machine: Machine,
    type: Any,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    other: Any = None,
    *cache: Any,
) -> np.ndarray:
    """Elements at `pointer + offsets`; `other` (or zero) where masked off."""
    return _load(machine, pointer, offsets, machine.result_dtype(), mask, other)


def buffer_store(
    machine: Machine,
    value: np.ndarray,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    *cache: Any,
) -> None:
    addresses, inside = _addresses(pointer, offsets, value.dtype)
    machine.store_global(addresses, value, _both(mask, inside))


@returns(lambda kind, pointer, offsets, value, *rest: value.type)
def buffer_atomic_rmw(
    machine: Machine,
    kind: Any,
    pointer: np.ndarray,
    offsets: np.ndarray,
    value: np.ndarray,
    order: Any = None,
    scope: Any = None,
    mask: Any = None,
) -> np.ndarray:
    """Read-modify-write of each element; gives the old values."""
    name = str(getattr(kind, "name", kind)).lower()
    shape = next(t.shape for t in machine.operand_types() if len(getattr(t, "shape", ())))
    addresses, inside = _addresses(pointer, offsets, value.dtype)
    mask = _both(mask, inside)
    return machine.atomic_global(name, machine.full(addresses, shape), value, mask)


def buffer_load_to_local(
    machine: Machine,
    dest: SharedBuffer,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    other: Any = None,
    stride: Any = None,
    *cache: Any,
) -> None:
    """Global memory to LDS past the registers; `other` (or zero) where masked off."""

    def perform() -> None:
        values = _load(machine, pointer, offsets, dest.dtype, mask, other)
        machine.store_shared(dest, values)

    machine.issue(_COPIES, perform)


def async_copy_global_to_local(
    machine: Machine,
    smem: SharedBuffer,
    pointer: np.ndarray,
    mask: Any = None,
    other: Any = None,
    *policy: Any,
    **named: Any,
) -> None:
    """`global_load_lds`: the same from a tensor of pointers, by lanes that are switched off where
    masked, so that LDS gets `other`, or keeps its bytes."""

    def perform() -> None:
        values = machine.load_global(pointer, smem.dtype, mask, other)
        machine.store_shared(smem, values, mask if other is None else None)

    machine.issue(_COPIES, perform)


def async_commit_group(machine: Machine) -> None:
    machine.commit(_COPIES)


def async_wait_group(machine: Machine, pending: int) -> None:
    machine.wait_groups(_COPIES, pending)
