"""Resolve the arguments of a launch for a backend that runs kernels on the host: the addresses that
pointers hold, and all bytes that can be reached from there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import numpy as np

from gluon_core.errors import ArgumentError, DeviceError

__all__ = [
    "Storage",
    "address_of",
    "bytes_of",
    "device_memory",
    "refusal",
    "refuse_where",
    "storage_of",
    "take_memory_from",
]

_refusals: list[Callable[[Any], Optional[str]]] = []
_memories: list[Callable[[], Iterator[tuple[np.ndarray, Any]]]] = []


def refuse_where(refusal: Callable[[Any], Optional[str]]) -> None:
    """Let a simulated device refuse tensors that a kernel on a real one could not reach, to the end of the process.

    Args:
        refusal: `f(tensor)` returns the remedy, None for a tensor of the device.
    """
    _refusals.append(refusal)


def refusal(value: Any) -> Optional[str]:
    """Return the remedy for a tensor that the simulated device cannot reach; None for one of the device."""
    if not hasattr(value, "untyped_storage"):
        return None
    return next((text for one in _refusals if (text := one(value)) is not None), None)


def take_memory_from(memory: Callable[[], Iterator[tuple[np.ndarray, Any]]]) -> None:
    """Let launches by addresses reach the memory of a simulated device, to the end of the process.

    Args:
        memory: yields the bytes of each allocation, flat uint8 arrays that share them, and its owner.
    """
    _memories.append(memory)


def device_memory() -> Optional[list[tuple[np.ndarray, Any]]]:
    """Return the allocations of the simulated device; None if no device registered its memory."""
    return [one for memory in _memories for one in memory()] if _memories else None


@dataclass(frozen=True)
class Storage:
    """The memory behind an argument.

    Args:
        data: its bytes, a flat uint8 array that shares them.
        writable: whether a kernel may store to it.
        owner: keeps the memory alive.
    """

    data: np.ndarray
    writable: bool
    owner: Any


def address_of(name: str, value: Any) -> int:
    """Return the address that the pointer argument `name` holds: 0 of None, a number as it is.

    Raises:
        ArgumentError: `value` is no tensor, array or number.
    """
    if value is None:
        return 0
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    if isinstance(value, int):
        return value
    pointer = getattr(value, "data_ptr", None)
    if pointer is None:
        raise ArgumentError(
            "not a pointer",
            argument=name,
            expected="a torch CPU tensor or a NumPy array",
            got=value.__class__.__name__,
        )
    return int(pointer())


def storage_of(name: str, value: Any, runner: str) -> Optional[Storage]:
    """Return all bytes that a pointer into an argument may reach, or None for a bare address.

    Args:
        name: of the argument.
        value: a NumPy array, a torch tensor, or an object that wraps one as `base`.
        runner: who asks, for errors, such as "simulator".

    Raises:
        ArgumentError: an array that is not C-contiguous.
        DeviceError: a tensor that is not in the host's memory.
    """
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ArgumentError(
                "the array is not C-contiguous",
                argument=name,
                got=f"strides {value.strides} for shape {value.shape}",
                remedy="Pass numpy.ascontiguousarray(x), or a torch tensor with its strides.",
            )
        owner = value
        while isinstance(owner.base, np.ndarray) and owner.base.flags.c_contiguous:
            owner = owner.base
        flat = owner.reshape(-1)
        data = flat.view(np.uint8) if flat.size else np.zeros(0, np.uint8)
        return Storage(data, value.flags.writeable, owner)
    base = getattr(value, "base", None)
    if base is not None and hasattr(base, "untyped_storage"):
        value = base  # a tensor that only pretends to have another element type
    if not hasattr(value, "untyped_storage"):
        return None
    if value.device.type != "cpu":
        raise DeviceError(
            f"the {runner} works on CPU tensors",
            argument=name,
            got=str(value.device),
            remedy="Pass x.cpu(), or launch on that device.",
        )
    if runner == "emulator":
        remedy = refusal(value)
        if remedy is not None:
            raise DeviceError(
                "the tensor is in host memory",
                argument=name,
                expected="a tensor of the device",
                remedy=remedy,
            )
    storage = value.untyped_storage()
    if not storage.size():
        return None
    flat = bytes_of(storage)
    return Storage(flat.numpy(), True, flat)


def bytes_of(storage: Any) -> Any:
    """Return a storage of torch as a flat uint8 tensor that shares it."""
    torch = sys.modules["torch"]
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.size(),), (1,))
