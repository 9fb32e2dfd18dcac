"""Tensors as plain data between processes: dtype, shape, strides, offset, and the bytes of their storage."""

from __future__ import annotations

from ctypes import string_at as _string_at
from typing import Any

import numpy as np
import torch

from gluon_judge.messages import Packed

__all__ = ["fill", "members", "moved", "pack", "pack_values", "storage_bytes", "unpack", "whole"]


def storage_bytes(tensor: Any) -> np.ndarray:
    """Return the bytes of a CPU tensor's storage, as an array that shares its memory."""
    array: np.ndarray = whole(tensor).numpy()
    return array


def whole(tensor: Any) -> Any:
    """Return the bytes of a tensor's storage as a tensor that shares its memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def members(answer: Any) -> list[Any]:
    """Return the values that a call returned, without running code of a class of its own."""
    if isinstance(answer, tuple):
        return list(tuple.__iter__(answer))
    if isinstance(answer, list):
        return list(list.__iter__(answer))
    return [answer]


def fill(tensor: Any, byte: int) -> None:
    """Fill the whole storage of a tensor with a byte, of whatever dtype it is."""
    if tensor.untyped_storage().nbytes():
        whole(tensor).fill_(byte if tensor.dtype is not torch.bool else byte & 1)


def moved(value: Any, device: str) -> Any:
    """Return a tensor on a device, with the same strides in a storage of the same size; anything else as it is."""
    if not isinstance(value, torch.Tensor) or device == "cpu":
        return value
    whole = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).to(device)
    empty = torch.empty(0, dtype=value.dtype, device=device)
    return empty.set_(
        whole.untyped_storage(), value.storage_offset(), tuple(value.shape), tuple(value.stride())
    )


def pack(value: Any) -> Any:
    """Return a tensor with its whole storage as `Packed`; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return Packed(
        str(value.dtype).removeprefix("torch."),
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset(),
        whole(value).cpu().numpy().tobytes(),
    )


def _bytes_of(storage: Any) -> np.ndarray:
    """Return a copy of the memory of a CPU storage; no operation of torch runs, which somebody may have replaced."""
    size = storage.nbytes()
    return np.frombuffer(_string_at(storage.data_ptr(), size) if size else b"", np.uint8)


def pack_values(tensor: Any) -> Packed:
    """Return the elements of a tensor alone, in the order of its shape."""
    if tensor.device.type != "cpu" or tensor.is_neg() or tensor.is_conj():
        own = tensor.detach().cpu().resolve_neg().resolve_conj()
        return pack(own.clone(memory_format=torch.contiguous_format))  # type: ignore[no-any-return]
    size, shape = tensor.element_size(), tuple(tensor.shape)
    steps = tuple(step * size for step in tensor.stride())
    raw = _bytes_of(tensor.untyped_storage())
    values = np.lib.stride_tricks.as_strided(
        raw[tensor.storage_offset() * size :], (*shape, size), (*steps, 1)
    )
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
    return Packed(dtype, shape, strides, 0, values.tobytes() if tensor.numel() else b"")


def unpack(value: Any) -> Any:
    """Return a new CPU tensor for `Packed`; anything else as it is."""
    if not isinstance(value, Packed):
        return value
    dtype = getattr(torch, value.dtype)
    raw = torch.empty(len(value.data), dtype=torch.uint8)
    if value.data:
        raw.numpy()[:] = np.frombuffer(value.data, np.uint8)
    empty = torch.empty(0, dtype=dtype)
    return empty.set_(raw.untyped_storage(), value.offset, value.shape, value.strides)
