"""Buffer operations: a scalar base and 32-bit element offsets (CDNA3 ISA 9.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.reference import Machine, SharedBuffer, returns

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


def _addresses(pointer: np.ndarray, offsets: np.ndarray, dtype: np.dtype) -> np.ndarray:
    base = pointer.reshape(-1, *([1] * (offsets.ndim - 1)))
    return base + offsets.view(np.uint32).astype(np.int64) * dtype.itemsize


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
    dtype = machine.result_dtype()
    return machine.load_global(_addresses(pointer, offsets, dtype), dtype, mask, other)


def buffer_store(
    machine: Machine,
    value: np.ndarray,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    *cache: Any,
) -> None:
    machine.store_global(_addresses(pointer, offsets, value.dtype), value, mask)


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
    shape = np.broadcast_shapes(offsets.shape[1:], value.shape[1:])
    addresses = machine.full(_addresses(pointer, offsets, value.dtype), shape)
    return machine.atomic_global(name, addresses, value, mask)


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
        addresses = _addresses(pointer, offsets, dest.dtype)
        machine.store_shared(dest, machine.load_global(addresses, dest.dtype, mask, other))

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
    """`global_load_lds`: the same from a tensor of pointers."""

    def perform() -> None:
        machine.store_shared(smem, machine.load_global(pointer, smem.dtype, mask, other))

    machine.issue(_COPIES, perform)


def async_commit_group(machine: Machine) -> None:
    machine.commit(_COPIES)


def async_wait_group(machine: Machine, pending: int) -> None:
    machine.wait_groups(_COPIES, pending)
