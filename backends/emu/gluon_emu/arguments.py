"""Arguments of a launch: the values behind a kernel's parameters, as bytes, and the memory that they reach."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.triton_compiler import TritonDevice
from gluon_core.simulation.host_memory import address_of, storage_of
from gluon_core.simulation.stored_addresses import behind_addresses, makes_pointers
from gluon_core.values.descriptors import split_descriptor
from gluon_emu.memory import Allocation

__all__ = ["Arguments", "allocation_of", "arguments_of", "encode"]


_PARTS = ("base", "shape", "strides", "padding")

# The bytes of a kernel's argument for a descriptor, and the compiler's description of its box:
# `f(descriptor, description, base, shape, strides)`.
Box = Callable[[Any, dict[str, Any], int, list[int], list[int]], bytes]


@dataclass(frozen=True)
class Arguments:
    """The arguments of one launch.

    Args:
        grid: blocks along x, y and z, those of a cluster along x.
        cluster: blocks of a cluster.
        leaves: (name, type, value) of everything that is no constant, addresses for pointers.
        scratch: addresses of the buffers that the compiler asked for, behind the arguments.
        allocations: the memory that the addresses point into.
    """

    grid: tuple[int, int, int]
    cluster: int
    leaves: list[tuple[str, Any, Any]]
    scratch: list[int]
    allocations: list[Allocation]


def arguments_of(compiled: Any, grid: Any, stream: Any, values: Any, box: Box) -> Arguments:
    """Return the arguments of a launch of a `CompiledKernel` with these values.

    Raises:
        ArgumentError: a value has the wrong type.
    """
    metadata = compiled.metadata
    x, y, z = [*(int(g) for g in grid), 1, 1][:3]
    cluster = int(metadata.num_ctas or 1)
    size = (x * cluster, y, z)
    allocations: list[Allocation] = []
    roots: list[tuple[str, Any]] = []
    metas = iter(getattr(metadata, "tensordesc_meta", None) or [])

    def address(name: str, value: Any) -> int:
        allocation = allocation_of(name, value)
        if allocation is not None:
            allocations.append(allocation)
        return address_of(name, value)

    def leaves(kinds: Any, names: Any, values: Any) -> Iterator[tuple[str, Any, Any]]:
        for kind, name, value in zip(kinds, names, values):
            if isinstance(kind, (tuple, list)):
                yield from leaves(kind, [f"{name}[{i}]" for i in range(len(kind))], value)
            elif split_descriptor(kind) is not None:
                yield from _descriptor(name, value, next(metas, None), address, box)
            elif kind != "constexpr":
                roots.append((name, value))
                yield name, kind, address(name, value) if str(kind).startswith("*") else value

    opened = list(leaves(compiled.signature_types(), compiled.src.fn.arg_names, values))
    for one in behind_addresses(roots, "emulator") if makes_pointers(compiled.asm) else ():
        apart = all(one.end <= a.start or a.end <= one.start for a in allocations)
        if apart:
            storage = one.storage
            allocations.append(Allocation(one.name, storage.data, storage.writable, storage.owner))
    scratch = _global_scratch(metadata, size, allocations, stream)
    return Arguments(size, cluster, opened, scratch, allocations)


def _descriptor(
    name: str,
    value: Any,
    meta: Optional[dict[str, Any]],
    address: Callable[[str, Any], int],
    box: Box,
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, type, value) of a kernel's arguments for a descriptor: its box, shape and strides.

    Args:
        meta: the compiler's description of the box; None where the kernel takes the pointer itself.
        address: `f(name, base)`, the address of the tensor.

    Raises:
        ArgumentError: not a descriptor.
    """
    if isinstance(value, HostDescriptor):
        value.check_launch()
    elif not all(hasattr(value, part) for part in _PARTS):  # a descriptor of Triton has these
        raise ArgumentError(
            "not a descriptor",
            argument=name,
            expected="a TensorDescriptor",
            got=type(value).__name__,
        )
    base = address(f"{name}.base", value.base)
    shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
    if meta is None:
        yield f"{name}.base", "*i8", base
        for i, n in enumerate(shape):
            yield f"{name}.shape[{i}]", "i64", n
        for i, n in enumerate(strides):
            yield f"{name}.strides[{i}]", "i64", n
        yield f"{name}.padding", "i1", int(value.padding == "nan")
        if hasattr(value, "round_f32_to_tf32"):
            yield f"{name}.round_f32_to_tf32", "i1", int(value.round_f32_to_tf32)
    else:
        yield name, "box", box(value, meta, base, shape, strides)
    for i, n in enumerate(shape):
        yield f"{name}.shape[{i}]", "i32", n
    for i, n in enumerate(strides):
        yield f"{name}.strides[{i}]", "i64", n


def allocation_of(name: str, value: Any) -> Optional[Allocation]:
    storage = storage_of(name, value, "emulator")
    return (
        None if storage is None else Allocation(name, storage.data, storage.writable, storage.owner)
    )


def _global_scratch(
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
