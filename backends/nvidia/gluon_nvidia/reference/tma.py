"""The tensor memory accelerator (sm_90): boxes of a tensor between global and shared memory.

PTX ISA 9.7.9.27 (cp.async.bulk.tensor, cp.reduce.async.bulk.tensor), 5.5 (tensors). Loads complete
bytes of a barrier; stores and reductions make up bulk groups, one each. All go through the
asynchronous proxy.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_core import errors
from gluon_core.layouts.dialect import follows
from gluon_core.plugin.reference import Descriptor, Machine, SharedBuffer
from gluon_nvidia.features import MULTICAST_WAITS
from gluon_nvidia.reference.proxy import ASYNC, before_read, before_write

__all__ = [
    "async_tma_copy_global_to_local",
    "async_tma_copy_local_to_global",
    "async_tma_gather",
    "async_tma_reduce",
    "async_tma_scatter",
    "async_tma_store_wait",
    "make_tensor_descriptor",
]

_LOADS, _STORES = "tma loads", "bulk stores"
_ALIGNMENT = 16
_SHARED_ALIGNMENT = 128
_MOST_STRIDE = 1 << 40
_MOST_EXTENT = (1 << 32) - 1

Place = Callable[[], tuple[np.ndarray, np.ndarray]]  # addresses, and which are inside


# -- descriptors ------------------------------------------------------------------------------------


def make_tensor_descriptor(
    machine: Machine,
    type: Any,
    base: np.ndarray,
    shape: Sequence[np.ndarray],
    strides: Sequence[np.ndarray],
    padding: Any = None,
) -> Descriptor:
    """Write a tensor map to global memory (PTX 9.7.9.28, tensormap.replace), and fence it."""
    block, _, layout = type.fields
    descriptor = Descriptor(
        base=base,
        shape=tuple(shape),
        strides=tuple(strides),
        dtype=machine.result_dtype(),
        block_shape=tuple(block.dims),
        layout=layout,
        padding="nan" if "NAN" in str(getattr(padding, "name", padding)).upper() else "zero",
    )
    _check(machine, descriptor)
    return descriptor


def _check(machine: Machine, descriptor: Descriptor) -> None:
    """Check the hardware's requirements on the tensor (PTX 5.5.8)."""
    size = descriptor.dtype.itemsize

    def refuse(property_: str, bad: np.ndarray, values: np.ndarray, expected: str) -> None:
        if not bad.any():
            return
        position = int(np.argmax(bad))
        got = int(values[position if len(values) > 1 else 0])
        raise errors.ArgumentError(
            f"make_tensor_descriptor got an illegal {property_} in program "
            f"{machine.program_id(position)}",
            argument=property_.split()[0],
            expected=expected,
            got=got,
        )

    refuse("base", descriptor.base % _ALIGNMENT != 0, descriptor.base, "an address divisible by 16")
    for dim, extent in enumerate(descriptor.shape):
        bad = (extent < 1) | (extent > _MOST_EXTENT)
        refuse(f"shape[{dim}]", bad, extent, "at least 1")
    for dim, stride in enumerate(descriptor.strides[:-1]):
        nbytes = stride * size
        bad = (nbytes % _ALIGNMENT != 0) | (nbytes < 0) | (nbytes >= _MOST_STRIDE)
        bad = bad & (
            descriptor.shape[dim] > 1
        )  # the stride of one row is not used, as seen on sm_90
        wanted = (
            f"a multiple of {_ALIGNMENT // np.gcd(_ALIGNMENT, size)} elements, which is 16 bytes"
        )
        refuse(f"strides[{dim}]", bad, stride, wanted)


def _starts(
    machine: Machine, desc: Descriptor, first: Any, pred: Any = None, argument: str = "coord"
) -> None:
    """Boxes start at multiples of 16 bytes of the innermost dimension, inside the tensor or not.

    The PTX ISA does not say so; on sm_90 any other start is an illegal instruction.
    """
    size = desc.dtype.itemsize
    columns = np.asarray(first, np.int64).reshape(-1)
    bad = columns * size % _ALIGNMENT != 0
    if pred is not None:
        bad = bad & np.asarray(pred).reshape(-1)
    if not bad.any():
        return
    position = int(np.argmax(bad))
    raise errors.ArgumentError(
        "the box does not start where TMA can begin (an illegal instruction on sm_90) in program "
        f"{machine.program_id(position)}",
        argument=argument,
        expected=f"the last coordinate a multiple of {_ALIGNMENT // size} elements, which is "
        f"{_ALIGNMENT} bytes",
        got=int(columns[position if len(columns) > 1 else 0]),
        remedy="Start at the multiple below, and ignore the elements before.",
    )


def _begins(machine: Machine, subject: str, coord: Sequence[np.ndarray], argument: str) -> None:
    """Check that stores begin inside the tensor or past it; loads may begin before it, too.

    The PTX ISA does not say so; on sm_90 a store or reduction at a negative coordinate, in any
    dimension and however far, is an illegal instruction. Rows of a scatter (sm_100) were not measured.
    """
    message = f"{subject} before the tensor (an illegal instruction, as seen on sm_90)"
    remedy = _REMEDIES[argument]
    machine.refuse_before(argument, coord, message, remedy)


_REMEDIES = {
    "coord": "Shift the box so that it begins inside, or write this part through pointers with a "
    "mask; a box that is not to be written at all may begin behind the end.",
    "x_offsets": "Name a row past the end to skip the write.",
    "y_offset": "Begin at column 0 or later.",
}


def _shared(desc: Descriptor) -> bool:
    """Return True if several blocks of a cluster have the same box."""
    return not all(any(basis) for basis in getattr(desc.layout, "cga_layout", None) or [])


def _nbytes(desc: Descriptor, elements: int) -> int:
    """Bytes of one block's part of the box."""
    shared = [basis for basis in getattr(desc.layout, "cga_layout", None) or [] if any(basis)]
    return elements * desc.dtype.itemsize >> len(shared)


def _aligned(buffer: SharedBuffer, argument: str) -> None:
    """Check that a box in shared memory starts at a multiple of 128 bytes (PTX 9.7.9.27.1)."""
    bad = buffer.offset % _SHARED_ALIGNMENT
    if bad.any():
        raise errors.ArgumentError(
            "the view does not start where TMA can begin",
            argument=argument,
            expected=f"a multiple of {_SHARED_ALIGNMENT} bytes from the start of its allocation",
            got=f"{int(buffer.offset[np.argmax(bad != 0)])} bytes",
            remedy="Slice at rows whose bytes are a multiple of 128, or allocate a buffer of its own.",
        )


def _sized(desc: Descriptor, buffer: SharedBuffer) -> Descriptor:
    """Return the box of a copy, which is as large as its buffer: Triton 3.6 takes other ones, too."""
    shape = tuple(buffer.shape)
    return replace(desc, block_shape=shape) if len(shape) == len(desc.block_shape) else desc


def _bits(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Copy bits: the elements of descriptor and buffer differ in Triton 3.6."""
    return values if values.dtype == dtype else np.ascontiguousarray(values).view(dtype)


# -- loads ------------------------------------------------------------------------------------------


def async_tma_copy_global_to_local(
    machine: Machine,
    desc: Descriptor,
    coord: Sequence[np.ndarray],
    barrier: SharedBuffer,
    result: SharedBuffer,
    pred: Any = None,
    multicast: bool = False,
    offsets: Optional[Sequence[np.ndarray]] = None,
    *policy: Any,
    **named: Any,
) -> None:
    """Load a box to shared memory; elements outside the tensor are padding, and count as bytes too.

    With multicast the blocks of a cluster still get the same: who fetches it is not seen.
    """
    shared = _shared(desc)
    if multicast and shared and not follows(MULTICAST_WAITS):
        machine.barrier_remote(barrier)  # later compilers let the blocks wait for each other first
    if offsets is None:
        _starts(machine, desc, coord[-1], pred)
    desc, coord, offsets = _pick(machine, pred, desc, coord, offsets)
    if offsets is None:
        boxed = _sized(desc, result)
        place: Place = lambda: boxed.box(coord)  # noqa: E731
    else:
        place = lambda: _im2col(desc, coord, offsets)  # noqa: E731
    _load(machine, desc, place, barrier, result, pred, bool(multicast and shared))


def async_tma_gather(
    machine: Machine,
    desc: Descriptor,
    x_offsets: np.ndarray,
    y_offset: np.ndarray,
    barrier: SharedBuffer,
    result: SharedBuffer,
    pred: Any = None,
    multicast: bool = False,
    *policy: Any,
    **named: Any,
) -> None:
    """Rows to shared memory (sm_100), PTX 9.7.9.27.1, .tile::gather4."""
    _starts(machine, desc, y_offset, pred, "y_offset")
    desc, (rows, column), _ = _pick(machine, pred, desc, (x_offsets, y_offset), None)
    remote = bool(multicast and _shared(desc))
    _load(machine, desc, lambda: _rows(desc, rows, column), barrier, result, pred, remote)


def _load(
    machine: Machine,
    desc: Descriptor,
    place: Place,
    barrier: SharedBuffer,
    result: SharedBuffer,
    pred: Any,
    remote: bool,
) -> None:
    _aligned(result, "result")
    size = _nbytes(desc, prod(result.shape))
    into, barrier_told = machine.select(result, pred), machine.select(barrier, pred)

    def perform() -> None:
        addresses, inside = place()
        values = machine.load_global(addresses, desc.dtype, inside, _outside(desc))
        if desc.round_f32_to_tf32:
            values = _tf32(values)
        values = _bits(values, result.dtype).reshape(len(values), *result.shape)
        machine.store_shared(into, values)

    before_write(machine, result)
    machine.issue(
        _LOADS,
        perform,
        lambda: machine.barrier_complete(barrier_told, size),
        barrier=barrier_told,
        proxy=ASYNC,
        where=pred,
        remote=remote,
    )


def _pick(
    machine: Machine,
    pred: Any,
    desc: Descriptor,
    coord: Sequence[np.ndarray],
    offsets: Optional[Sequence[np.ndarray]],
) -> tuple[Descriptor, list[np.ndarray], Optional[list[np.ndarray]]]:
    """Return the operands of the programs in which the load takes place."""
    return (
        machine.select(desc, pred),
        [machine.select(c, pred) for c in coord],
        None if offsets is None else [machine.select(o, pred) for o in offsets],
    )


def _outside(desc: Descriptor) -> Any:
    """Return the value of elements outside the tensor, zero if None."""
    return np.full((1,), np.nan).astype(desc.dtype) if desc.padding == "nan" else None


def _tf32(values: np.ndarray) -> np.ndarray:
    """To 10 bits of mantissa, ties to even, as an H200 does; infinities and NaN stay."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    rounded = (bits + (0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def _rows(desc: Descriptor, rows: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of chosen rows, and which are inside."""
    columns = np.asarray(column, np.int64).reshape(-1, 1, 1) + np.arange(desc.block_shape[-1])
    return desc.at([rows.reshape(len(rows), -1, 1), columns])


def _im2col(
    desc: Descriptor, coord: Sequence[np.ndarray], offsets: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of [pixels, channels], and which are inside (PTX 5.5.4).

    The bounding box goes from the lower corner to the tensor's extent plus the upper corner, and
    `coord` is a place in it. Pixels follow each other in the box with the last spatial dimension
    first, then come those of the next image; where they are read is `offsets` further. A walk begins at the
    coordinate, and again at the lower corner, so that steps may meet other pixels then, as on an H200.
    """
    extra = desc.extra or {}
    spatial = desc.rank - 2
    zeros = (0,) * spatial
    lower = tuple(extra.get("pixel_box_lower_corner") or zeros)
    upper = tuple(extra.get("pixel_box_upper_corner") or zeros)
    steps = tuple(extra.get("element_strides") or (1,) * desc.rank)
    pixels, channels = desc.block_shape

    def column(value: np.ndarray) -> np.ndarray:
        return np.asarray(value, np.int64).reshape(-1, 1, 1)

    carry: Any = np.arange(pixels, dtype=np.int64).reshape(1, -1, 1)
    index: list[Any] = [None] * desc.rank
    for dim in range(spatial, 0, -1):
        low, step, start = lower[dim - 1], steps[dim], column(coord[dim])
        last = column(desc.shape[dim]) - 1 + upper[dim - 1]
        count = np.maximum(1, (last - low) // step + 1)
        later = carry - ((last - start) // step + 1)  # steps behind the first walk
        place = np.where(later < 0, start + carry * step, low + later % count * step)
        index[dim] = place + column(offsets[dim - 1])
        carry = np.where(later < 0, 0, 1 + later // count)
    index[0] = column(coord[0]) + carry
    index[-1] = column(coord[-1]) + np.arange(channels, dtype=np.int64) * steps[-1]
    return desc.at(index)


# -- stores -----------------------------------------------------------------------------------------


def async_tma_copy_local_to_global(
    machine: Machine, desc: Descriptor, coord: Sequence[np.ndarray], src: SharedBuffer, *policy: Any
) -> None:
    """Store a box to global memory; elements past the end of the tensor are dropped."""
    _begins(machine, "the box that is stored begins", coord, "coord")
    _starts(machine, desc, coord[-1])
    boxed = _sized(desc, src)
    _store(machine, desc, lambda: boxed.box(coord), src, machine.store_global)


def async_tma_reduce(
    machine: Machine, kind: Any, desc: Descriptor, coord: Sequence[np.ndarray], src: SharedBuffer
) -> None:
    """Reduce a box into global memory, each element atomically (PTX 9.7.9.27.2)."""
    _begins(machine, "the box that is reduced begins", coord, "coord")
    _starts(machine, desc, coord[-1])
    name = str(getattr(kind, "name", kind)).lower()
    if name == "add" and desc.dtype.kind != "i":
        name = "fadd"
    elif name in ("min", "max") and desc.dtype.kind == "i" and not _signed(machine):
        name = f"u{name}"

    def update(addresses: np.ndarray, values: np.ndarray, mask: Any) -> None:
        machine.atomic_global(name, addresses, values, mask)

    boxed = _sized(desc, src)
    _store(machine, desc, lambda: boxed.box(coord), src, update)


def _signed(machine: Machine) -> bool:
    """Return True if the elements of the op's descriptor are signed."""
    return bool(machine.operand_types()[0].fields[1])


def async_tma_scatter(
    machine: Machine,
    desc: Descriptor,
    x_offsets: np.ndarray,
    y_offset: np.ndarray,
    src: SharedBuffer,
    *policy: Any,
) -> None:
    """Rows to global memory (sm_100), PTX 9.7.9.27.1, .tile::scatter4."""
    _begins(machine, "a stored row begins", [x_offsets], "x_offsets")
    _begins(machine, "the rows that are stored begin", [y_offset], "y_offset")
    _starts(machine, desc, y_offset, argument="y_offset")
    place = lambda: _rows(desc, x_offsets, y_offset)  # noqa: E731
    _store(machine, desc, place, src, machine.store_global)


def _store(
    machine: Machine, desc: Descriptor, place: Place, src: SharedBuffer, write: Callable[..., None]
) -> None:
    _aligned(src, "src")
    taken: list[np.ndarray] = []
    copies = write == machine.store_global

    def read() -> None:
        taken.append(machine.load_shared(src, copied=copies))

    def perform() -> None:
        addresses, inside = place()
        values = taken.pop()
        shape = (len(values), *addresses.shape[1:])
        write(addresses, _bits(values, desc.dtype).reshape(shape), inside)

    before_read(machine, src)
    machine.issue(_STORES, perform, proxy=ASYNC, read=read)
    machine.commit(_STORES)


def async_tma_store_wait(machine: Machine, pendings: int, read_only: bool = True) -> None:
    """cp.async.bulk.wait_group; before Triton 3.8 always its .read form."""
    machine.wait_groups(_STORES, pendings, reads=bool(read_only))


def _wait_written(pendings: int) -> Callable[..., np.ndarray]:
    def model(machine: Machine, threads: np.ndarray) -> np.ndarray:
        machine.wait_groups(_STORES, pendings)
        return threads

    return model


# The same as assembly, keyed by its text.
WAITS_ASM = {f"cp.async.bulk.wait_group {n}; mov.b32 $0, $1;": _wait_written(n) for n in range(16)}
