"""The arguments of a launch as the machine keeps them: addresses, scalars and descriptors."""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.reference import Descriptor
from gluon_core.simulation.host_memory import Storage, address_of, storage_of
from gluon_core.simulation.stored_addresses import behind_addresses
from gluon_core.values.descriptors import split_descriptor
from gluon_sim.memory.global_memory import Home
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.types import OpaqueType, PointerType, ScalarType, Type

__all__ = ["Bound", "Signature"]


class Bound(NamedTuple):
    """The arguments of one launch.

    Attributes:
        values: of the inputs, as the machine keeps them.
        storages: the memory behind pointers, each with the name of its argument; then that behind stored addresses.
        homes: for each input, the bytes that a pointer made from it may reach.
    """

    values: list[Any]
    storages: list[tuple[str, Storage]]
    homes: list[Optional[Home]]


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
        self._dtypes = [_dtype(type) for type in inputs]
        self._wide = any(map(_may_hold_addresses, inputs))
        self.leaves = [name for name, _ in _leaves(kinds, names, names)]

    def bind(self, arguments: Sequence[Any], views: bool, stored: bool = True) -> Bound:
        """Return the arguments of a launch as the machine takes them.

        Args:
            views: whether a pointer made from a view of an array may reach only that view.
            stored: whether addresses in integers reach the memory behind them.

        Raises:
            ArgumentError: an argument that the machine cannot take.
            DeviceError: a tensor that is not in the host's memory.
        """
        bound = Bound([], [], [])
        leaves = list(_leaves(self._kinds, self._names, arguments))
        with np.errstate(all="ignore"):  # a float32 argument of 1e300 is infinite, as on a GPU
            for type, dtype, (name, value) in zip(self.inputs, self._dtypes, leaves):
                _bind(bound, name, type, dtype, value, views)
        if len(bound.values) != len(self.inputs):
            raise ArgumentError(
                "the simulator cannot unpack an argument of this kind",
                expected=f"{len(self.inputs)} values",
                got=len(bound.values),
            )
        behind = behind_addresses(leaves, "simulator") if stored and self._wide else []
        bound.storages.extend((one.name, one.storage) for one in behind)
        return bound

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
        elif (descriptor := split_descriptor(kind)) is not None:
            yield from _descriptor_leaves(name, value, descriptor.rank)
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


def _may_hold_addresses(type: Type) -> bool:
    """Return True for integers of 64 bits, pointers to them, and scalars of 32: some addresses fit in these."""
    element = type.pointee if isinstance(type, PointerType) else type
    if not isinstance(element, ScalarType) or element.is_float:
        return False
    return element.bits == 64 or (element.bits == 32 and element is type)


def _dtype(type: Type) -> Optional[np.dtype]:
    """Return the NumPy type of a scalar, or of the elements of a descriptor; None of a pointer."""
    if isinstance(type, OpaqueType):
        return numpy_dtype(type.fields[0]) if type.name == "descriptor" else None
    return numpy_dtype(type) if isinstance(type, ScalarType) else None


def _bind(
    bound: Bound, name: str, type: Type, dtype: Optional[np.dtype], value: Any, views: bool
) -> None:
    """Add an argument to those of a launch."""
    if isinstance(value, HostDescriptor):
        _bind_descriptor(bound, name, type, dtype, value, views)
    elif isinstance(type, PointerType):
        bound.values.append(_pointer(bound, name, value, views))
    elif dtype is None or isinstance(type, OpaqueType):
        raise ArgumentError(
            "the simulator cannot take such an argument yet", argument=name, got=str(type)
        )
    else:
        if dtype.kind == "i":
            bits = dtype.itemsize * 8
            number = int(value) & ((1 << bits) - 1)
            value = number - (1 << bits) if number >> (bits - 1) else number
        bound.values.append(np.array([value]).astype(dtype))
        bound.homes.append(None)


def _pointer(bound: Bound, name: str, value: Any, views: bool) -> np.ndarray:
    """Return the address of a tensor or array, and add its storage."""
    storage = storage_of(name, value, "simulator")
    address = address_of(name, value)
    if storage is not None:
        bound.storages.append((name, storage))
    bound.homes.append(_home(name, value, storage, address, views))
    return np.array([address], np.int64)


def _home(
    name: str, value: Any, storage: Optional[Storage], address: int, views: bool
) -> Optional[Home]:
    """Return the bytes that a pointer may reach: its storage, or of a view only that; None of a bare
    address."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "untyped_storage"):
        base = getattr(value, "base", None)
        return None if base is None else _home(name, base, storage, address, views)
    if storage is None or not storage.data.size:
        return Home(name, 0, 0)
    if not views:
        start = storage.data.ctypes.data
        return Home(name, start, start + storage.data.nbytes)
    if isinstance(value, np.ndarray):
        return Home(name, address, address + value.nbytes)
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride()))
    length = (last + 1) * value.element_size() if value.numel() else 0
    return Home(name, address, address + length)


def _bind_descriptor(
    bound: Bound, name: str, type: Type, dtype: Optional[np.dtype], value: HostDescriptor,
    views: bool,
) -> None:  # fmt: skip
    """Add a descriptor for the reference models, and the storage of its tensor."""
    if dtype is None or not isinstance(type, OpaqueType):
        raise ArgumentError(
            "the kernel takes no descriptor here", argument=name, expected=str(type)
        )
    value.check_launch()
    descriptor = Descriptor(
        base=_pointer(bound, f"{name}.base", value.base, views),
        shape=tuple(np.array([int(extent)], np.int64) for extent in value.shape),
        strides=tuple(np.array([int(stride)], np.int64) for stride in value.strides),
        dtype=dtype,
        block_shape=tuple(int(size) for size in value.block_shape),
        layout=value.layout,
        padding=value.padding,
        round_f32_to_tf32=bool(getattr(value, "round_f32_to_tf32", False)),
        extra=dict(value.extra) or None,
    )
    bound.values.append(descriptor)
