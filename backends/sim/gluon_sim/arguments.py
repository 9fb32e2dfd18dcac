"""The arguments of a launch as the machine keeps them: addresses, scalars and descriptors."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.reference import Descriptor
from gluon_core.simulation.host_memory import address_of, storage_of
from gluon_core.values.descriptors import is_descriptor_text, split_descriptor
from gluon_sim.memory.global_memory import Allocation, GlobalMemory, Home
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.types import OpaqueType, PointerType, ScalarType, Type

__all__ = ["Signature"]


class Signature:
    """The parameters of a compiled kernel.

    Args:
        kinds: the type of each parameter of the kernel, as text; a tuple for a tuple.
        names: of these parameters.
        inputs: the recorded types of what the machine takes, tuples and descriptors opened.

    Attributes:
        leaves: a name for each of `inputs`.
    """

    def __init__(self, kinds: Sequence[Any], names: Sequence[str], inputs: Sequence[Type]):
        self._kinds = kinds
        self._names = names
        self.inputs = inputs
        self.leaves = [name for name, _ in _leaves(kinds, names, names)]

    def bind(self, memory: GlobalMemory, arguments: Sequence[Any], views: bool) -> list[Any]:
        """Register the storage of the arguments in `memory` and return the values of the inputs.

        Args:
            views: whether a pointer made from a view of an array may reach only that view.

        Raises:
            ArgumentError: an argument that the machine cannot take.
            DeviceError: a tensor that is not in the host's memory.
        """
        values = []
        leaves = zip(self.inputs, _leaves(self._kinds, self._names, arguments))
        with np.errstate(all="ignore"):  # a float32 argument of 1e300 is infinite, as on a GPU
            for type, (name, value) in leaves:
                bound, home = _bound(memory, name, type, value, views)
                values.append(bound)
                memory.homes.append(home)
        if len(values) != len(self.inputs):
            raise ArgumentError(
                "the simulator cannot take an argument of this kind apart",
                expected=f"{len(self.inputs)} values",
                got=len(values),
            )
        return values

    def integers(self, values: Sequence[np.ndarray]) -> dict[int, int]:
        """Return the integer scalars among the values of the inputs, by position."""
        return {
            i: int(value[0])
            for i, (type, value) in enumerate(zip(self.inputs, values))
            if isinstance(type, ScalarType) and not type.is_float
        }


def _leaves(kinds: Any, names: Any, arguments: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of everything that is no constant, tuples opened."""
    for kind, name, value in zip(kinds, names, arguments):
        if isinstance(kind, (tuple, list)):
            fields = getattr(kind, "_fields", None)
            inner = [
                f"{name}[{i}]" if fields is None else f"{name}.{fields[i]}"
                for i in range(len(kind))
            ]
            yield from _leaves(kind, inner, value)
        elif is_descriptor_text(kind):
            yield from _descriptor_leaves(name, value, split_descriptor(kind).rank)
        elif kind != "constexpr":
            yield name, value


def _descriptor_leaves(name: str, value: Any, rank: int) -> Iterator[tuple[str, Any]]:
    """Yield a descriptor, then its shape and its strides, as kernels take them."""
    yield name, value
    for field in ("shape", "strides"):
        own = getattr(value, field, (0,) * rank)  # names alone have no such field
        if len(own) != rank:
            raise ArgumentError(
                "the kernel was compiled for a descriptor of another rank",
                argument=f"{name}.{field}",
                expected=f"{rank} entries",
                got=list(own),
            )
        yield from ((f"{name}.{field}[{i}]", own[i]) for i in range(rank))


def _bound(
    memory: GlobalMemory, name: str, type: Type, value: Any, views: bool
) -> tuple[Any, Optional[Home]]:
    """Return an argument as the machine keeps it, and the bytes that a pointer made from it may reach."""
    if isinstance(value, HostDescriptor):
        return _descriptor(memory, name, type, value, views)
    if isinstance(type, PointerType):
        return _pointer(memory, name, value, views)
    if isinstance(type, OpaqueType) or not isinstance(type, ScalarType):
        raise ArgumentError(
            "the simulator cannot take such an argument yet", argument=name, got=str(type)
        )
    dtype = numpy_dtype(type)
    if dtype.kind == "i":
        bits = dtype.itemsize * 8
        number = int(value) & ((1 << bits) - 1)
        value = number - (1 << bits) if number >> (bits - 1) else number
    return np.array([value]).astype(dtype), None


def _pointer(
    memory: GlobalMemory, name: str, value: Any, views: bool
) -> tuple[np.ndarray, Optional[Home]]:
    """Return the address of a tensor or array, whose storage is registered, and what it may reach."""
    storage = storage_of(name, value, "simulator")
    address = address_of(name, value)
    allocation = None
    if storage is not None:
        allocation = Allocation(name, storage.data, storage.writable)
        memory.add(allocation)
    return np.array([address], np.int64), _home(name, value, allocation, address, views)


def _home(
    name: str, value: Any, allocation: Optional[Allocation], address: int, views: bool
) -> Optional[Home]:
    """Return the bytes that a pointer may reach: its storage, or of a view only that; None of a bare
    address."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "untyped_storage"):
        base = getattr(value, "base", None)
        return None if base is None else _home(name, base, allocation, address, views)
    if allocation is None or not allocation.data.size:
        return Home(name, 0, 0)
    if not views:
        return Home(name, allocation.base, allocation.end)
    if isinstance(value, np.ndarray):
        return Home(name, address, address + value.nbytes)
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride()))
    length = (last + 1) * value.element_size() if value.numel() else 0
    return Home(name, address, address + length)


def _descriptor(
    memory: GlobalMemory, name: str, type: Type, value: HostDescriptor, views: bool
) -> tuple[Descriptor, Optional[Home]]:
    """Return a descriptor for the reference models; the storage of its tensor is registered."""
    if not isinstance(type, OpaqueType) or type.name != "descriptor":
        raise ArgumentError(
            "the kernel takes no descriptor here", argument=name, expected=str(type)
        )
    value.check_launch()
    base, home = _pointer(memory, f"{name}.base", value.base, views)
    descriptor = Descriptor(
        base=base,
        shape=tuple(np.array([int(extent)], np.int64) for extent in value.shape),
        strides=tuple(np.array([int(stride)], np.int64) for stride in value.strides),
        dtype=numpy_dtype(type.fields[0]),
        block_shape=tuple(int(size) for size in value.block_shape),
        layout=value.layout,
        padding=value.padding,
        round_f32_to_tf32=bool(getattr(value, "round_f32_to_tf32", False)),
        extra=dict(value.extra) or None,
    )
    return descriptor, home
