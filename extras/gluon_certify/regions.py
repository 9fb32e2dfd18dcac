"""The memory that a launch can reach through its arguments, kept and put back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence

import ml_dtypes
import numpy as np

from gluon_core.plugin.launcher import Compiled
from gluon_core.simulation.host_memory import storage_of
from gluon_core.simulation.stored_addresses import behind_addresses, makes_pointers
from gluon_core.values.descriptors import split_descriptor
from gluon_runtime.values import dtype_name

__all__ = ["Memory", "Region", "memory_of", "typed"]

_DTYPES: dict[str, Any] = {
    "i1": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u1": np.uint8, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "fp16": np.float16, "fp32": np.float32, "f32": np.float32, "fp64": np.float64, "bf16": ml_dtypes.bfloat16,
    "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5": ml_dtypes.float8_e5m2, "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


@dataclass(frozen=True)
class Region:
    """The memory behind an argument, or behind an address stored in one.

    Args:
        name: of the argument, or the place of the address.
        element: the type of its elements, as in a signature.
        data: all bytes that can be reached, uint8.
    """

    name: str
    element: str
    data: np.ndarray


@dataclass(frozen=True)
class Memory:
    """The memory of a launch.

    Args:
        regions: each once.
        bare: pointer arguments whose memory is not known: addresses as numbers.
        scalars: the other arguments, as text.
    """

    regions: tuple[Region, ...]
    bare: tuple[str, ...]
    scalars: tuple[str, ...]

    def kept(self) -> list[np.ndarray]:
        """Return a copy of all bytes."""
        return [region.data.copy() for region in self.regions]

    def restore(self, kept: Sequence[np.ndarray]) -> None:
        """Put copied bytes back."""
        for region, data in zip(self.regions, kept):
            if region.data.flags.writeable:
                region.data[...] = data

    def digest(self) -> str:
        """Return the sha256 of scalars and memory."""
        digest = hashlib.sha256(repr(self.scalars).encode())
        for region in self.regions:
            digest.update(f"{region.name} {region.element} {region.data.size}".encode())
            digest.update(self._placeless(region).tobytes())
        return digest.hexdigest()

    def _placeless(self, region: Region) -> np.ndarray:
        """Return the bytes of a region, with the numbers of regions and offsets where it holds addresses into them."""
        data = np.ascontiguousarray(region.data)
        if region.element not in ("i64", "u64"):
            return data
        words: np.ndarray = typed(data, "i64").copy()
        for number, other in enumerate(self.regions):
            start = other.data.ctypes.data
            inside = (words >= start) & (words < start + other.data.size)
            words[inside] += (number << 48) - start
        return words


def memory_of(compiled: Compiled, arguments: Sequence[Any]) -> Memory:
    """Return the memory that the arguments of a launch reach.

    Raises:
        ArgumentError, DeviceError: an array that kernels cannot take, as its launch says.
    """
    regions: dict[tuple[int, int], Region] = {}
    bare: list[str] = []
    scalars: list[str] = []
    roots: list[tuple[str, Any]] = []
    names = compiled.src.fn.arg_names
    for name, element, value in _leaves(compiled.signature_types(), names, arguments):
        roots.append((name, value))
        if element is None:
            scalars.append(f"{name}={value!r}")
            continue
        storage = storage_of(name, value, "certifier")
        if storage is None:
            if value is not None:
                bare.append(name)
            continue
        place = storage.data.ctypes.data, storage.data.size
        if storage.data.size:
            regions.setdefault(place, Region(name, element, storage.data))
    for one in behind_addresses(roots, "certifier") if makes_pointers(compiled.asm) else ():
        place = one.start, one.storage.data.size
        regions.setdefault(place, Region(one.name, dtype_name(one.dtype), one.storage.data))
        scalars = [
            f"{one.name[1:]}={one.name}" if t.startswith(f"{one.name[1:]}=") else t for t in scalars
        ]
    return Memory(tuple(regions.values()), tuple(bare), tuple(scalars))


def _leaves(
    kinds: Sequence[Any], names: Sequence[str], values: Sequence[Any]
) -> Iterator[tuple[str, Optional[str], Any]]:
    """Yield (name, element type or None of a scalar, value) of everything that is no constant."""
    for kind, name, value in zip(kinds, names, values):
        if isinstance(kind, (tuple, list)):
            inner = [f"{name}[{i}]" for i in range(len(kind))]
            yield from _leaves(kind, inner, tuple(value))
            continue
        described = split_descriptor(kind)
        text = str(kind)
        if described is not None:
            element = text.partition("<")[2].partition("[")[0]
            yield name, element, getattr(value, "base", value)
        elif text.startswith("*"):
            yield name, text.lstrip("*").removeprefix("k"), value
        elif kind != "constexpr":
            yield name, None, value


def typed(data: np.ndarray, element: str) -> np.ndarray:
    """Return bytes as elements of a type of signatures; as bytes where that does not fit."""
    dtype = np.dtype(_DTYPES.get(element, np.uint8))
    if data.size % dtype.itemsize:
        return data
    return np.ascontiguousarray(data).view(dtype)
