"""Arguments of a launch: the values behind a kernel's parameters, as bytes, and the memory that they reach."""

from __future__ import annotations

import struct
from typing import Any, Iterator, Optional

import numpy as np

from gluon_core.plugin.triton_compiler import TritonDevice
from gluon_core.simulation.host_memory import address_of, storage_of
from gluon_core.values.descriptors import split_descriptor
from gluon_emu.memory import Allocation

__all__ = ["allocation_of", "encode", "global_scratch", "leaves_of"]


def leaves_of(
    kinds: Any, names: Any, arguments: Any, allocations: list[Allocation], descriptors: Any
) -> Iterator[tuple[str, Any, Any]]:
    """(name, type, value) of everything that is no constant, tuples and descriptors opened."""
    for kind, name, value in zip(kinds, names, arguments):
        if isinstance(kind, (tuple, list)):
            inner = [f"{name}[{i}]" for i in range(len(kind))]
            yield from leaves_of(kind, inner, value, allocations, descriptors)
        elif split_descriptor(kind) is not None:
            yield from descriptors(name, value)
        elif kind != "constexpr":
            if str(kind).startswith("*"):
                allocation = allocation_of(name, value)
                if allocation is not None:
                    allocations.append(allocation)
                value = address_of(name, value)
            yield name, kind, value


def allocation_of(name: str, value: Any) -> Optional[Allocation]:
    storage = storage_of(name, value, "emulator")
    return (
        None if storage is None else Allocation(name, storage.data, storage.writable, storage.owner)
    )


def global_scratch(
    metadata: Any, grid: tuple[int, int, int], allocations: list[Allocation], stream: Any
) -> list[int]:
    """Return the addresses of the buffers that the compiler asked for, behind all other arguments.

    They come from the program's allocator (`triton.set_allocator`), if it has one.
    """
    places = []
    for name in ("global_scratch", "profile_scratch"):
        size = int(getattr(metadata, f"{name}_size", 0) or 0)
        align = int(getattr(metadata, f"{name}_align", 1) or 1)
        if not size:
            places.append(0)
            continue
        total = size * grid[0] * grid[1] * grid[2]
        allocate = TritonDevice.user_allocator(name.partition("_")[0])
        buffer = None if allocate is None else allocate(total, align, int(stream or 0))
        device = getattr(getattr(buffer, "device", None), "type", "")
        # None, or one for a GPU of this machine. NumPy's arrays of the recorder of timelines are on the host.
        if not isinstance(buffer, np.ndarray) and device != "cpu":
            raw = np.zeros(total + align, np.uint8)
            start = -raw.ctypes.data % align
            buffer = raw[start : start + total]
        allocation = allocation_of(name, buffer)
        if allocation is not None:
            allocations.append(allocation)
        places.append(address_of(name, buffer))
    return places


_FORMATS = {"fp32": "<f", "f32": "<f", "fp64": "<d", "f64": "<d", "fp16": "<e", "f16": "<e"}


def encode(kind: Any, value: Any, size: int) -> bytes:
    """Return a scalar argument as `size` bytes."""
    text = str(kind)
    if isinstance(value, bytes):  # a descriptor: boxes of two dimensions need its first words only
        return value[:size]
    if text in _FORMATS:
        with np.errstate(all="ignore"):
            dtype = {"<f": np.float32, "<d": np.float64, "<e": np.float16}[_FORMATS[text]]
            packed = np.array([value]).astype(dtype).tobytes()
    elif text == "bf16":
        packed = struct.pack("<f", float(value))[2:]
    else:
        packed = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
    return packed.ljust(size, b"\0")[:size]
