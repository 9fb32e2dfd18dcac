"""The storages of the simulated device, and the bytes that they take.

All tensors of a stand-in are in the memory of the host. A storage is marked when a call that asks for
the accelerator creates it, or one whose arguments are there, so that `.cpu()` and `.cuda()` copy as
they do on a machine with such a device.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Iterator, Optional

import torch

from gluon_core.simulation import host_memory

__all__ = ["Memory"]

_GRANULE = 512  # sizes of a caching allocator are a multiple of this many bytes


@dataclass
class _Counter:
    """One of the counters of `torch.cuda.memory_stats`."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def remove(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount


class Memory:
    """The storages of this process, by where they would be.

    Args:
        total: bytes of memory that the simulated device has.
    """

    def __init__(self, total: int):
        self.total = total
        self.bytes = _Counter()
        self.blocks = _Counter()
        self._places: dict[int, bool] = {}  # a storage -> whether it is on the device
        self._living: dict[int, Any] = {}  # a storage of the device -> a weak reference
        self._buffers: dict[int, Any] = {}

    def on_device(self, tensor: torch.Tensor) -> Optional[bool]:
        """Return whether `tensor` is on the device; None if that is unknown."""
        storage = _storage(tensor)
        return None if storage is None else self._places.get(storage._cdata)

    @staticmethod
    def share(one: torch.Tensor, other: torch.Tensor) -> bool:
        """Return whether two tensors have the same storage."""
        first, second = _storage(one), _storage(other)
        return first is not None and second is not None and first._cdata == second._cdata

    def mark(self, tensor: torch.Tensor, on_device: bool) -> None:
        """Note where a tensor is, unless its storage is known already."""
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in self._places:
            self._note(storage, on_device)

    def _note(self, storage: Any, on_device: bool) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // _GRANULE) * _GRANULE if on_device else 0
        self._places[key] = on_device
        weakref.finalize(storage, self._free, key, size).atexit = False
        if on_device:
            self._living[key] = weakref.ref(storage)
            self.bytes.add(size)
            self.blocks.add(1)

    def _free(self, key: int, size: int) -> None:
        if self._places.pop(key, False):
            del self._living[key]
            self.bytes.remove(size)
            self.blocks.remove(1)

    def living(self) -> Iterator[tuple[Any, Any]]:
        """Yield the bytes of each storage of the device, as an array that shares them, and their owner."""
        for reference in list(self._living.values()):
            storage = reference()
            if storage is not None and storage.nbytes():
                flat = host_memory.bytes_of(storage)
                yield flat.numpy(), flat

    def allocate(self, size: int) -> int:
        """Return the address of `size` new bytes that live until `release`."""
        buffer = torch.UntypedStorage(max(size, 1))
        self._note(buffer, True)
        address = int(buffer.data_ptr())
        self._buffers[address] = buffer
        return address

    def release(self, address: int) -> None:
        """Free the bytes at an address of `allocate`."""
        del self._buffers[address]

    def reset_peak(self) -> None:
        for counter in (self.bytes, self.blocks):
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        for counter in (self.bytes, self.blocks):
            counter.allocated = counter.freed = 0

    def stats(self) -> dict[str, Any]:
        """Return the nested form of `torch.cuda.memory_stats`."""

        def pools(counter: _Counter) -> dict[str, dict[str, int]]:
            none = dict.fromkeys(vars(counter), 0)
            return {
                "all": dict(vars(counter)),
                "small_pool": none,
                "large_pool": dict(vars(counter)),
            }

        none = pools(_Counter())
        of_bytes = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        of_blocks = ("allocation", "segment", "active")
        return {
            **{name: pools(self.bytes) for name in of_bytes},
            **{name: pools(self.blocks) for name in of_blocks},
            "inactive_split": none,
            "inactive_split_bytes": none,
            "oversize_allocations": dict.fromkeys(vars(self.bytes), 0),
            "oversize_segments": dict.fromkeys(vars(self.bytes), 0),
            **dict.fromkeys(
                ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "max_split_size"), 0
            ),
            "num_device_alloc": self.blocks.allocated,
            "num_device_free": self.blocks.freed,
        }


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or a tensor that represents others
        return None
