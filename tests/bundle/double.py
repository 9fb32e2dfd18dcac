"""A driver that loads and launches nothing, and records every call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field


@dataclass
class Launched:
    entry: str
    grid: tuple
    threads: int
    num_ctas: int
    shared: int
    stream: int
    content: bytes
    pointed: list  # offsets in the buffer that the array of pointers leads to
    device: int
    cooperative: bool


@dataclass
class Double:
    name: str = "cuda"
    architecture_: str = "sm_90"
    tensor_device: str = "cuda"
    count: int = 1
    loads: list = field(default_factory=list)
    launches: list = field(default_factory=list)
    memory: list = field(default_factory=list)

    def reaches(self, seen):
        return seen.device[0] == self.tensor_device

    def device_count(self):
        return self.count

    def architecture(self, device):
        return self.architecture_

    def current_device(self):
        return 0

    def stream(self, device):
        return 7

    def load(self, device, code, launch):
        self.loads.append((device, code, launch.entry))
        return device, len(self.loads)

    def launch(self, loaded, launch, grid, stream, arguments):
        content = arguments.content()
        start = ctypes.addressof(arguments.buffer)
        pointers, address = [], arguments.pointers
        while True:  # the array ends where its last pointer, to profile scratch, is
            pointers.append(ctypes.c_uint64.from_address(address).value - start)
            address += 8
            if pointers[-1] == arguments.size - 8:
                break
        self.launches.append(
            Launched(
                launch.entry,
                grid,
                launch.threads,
                launch.num_ctas,
                launch.shared,
                stream,
                content,
                pointers,
                loaded[0],
                launch.cooperative,
            )
        )

    def allocate(self, device, size, stream):
        self.memory.append(("allocate", size, stream))
        return 0x7F0000000100

    def free(self, device, address, stream):
        self.memory.append(("free", address, stream))


class Device:
    def __init__(self, kind, index):
        self.type, self.index = kind, index

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))


class Tensor:
    """The attributes of a tensor of torch, for memory that does not exist."""

    def __init__(self, address, dtype="float32", size=4096, device="cuda", index=0):
        self.address, self.dtype, self.size = address, f"torch.{dtype}", size
        self.device = Device(device, index)

    def data_ptr(self):
        return self.address

    def untyped_storage(self):
        return _Storage(self.size)


class _Storage:
    def __init__(self, size):
        self._size = size

    def size(self):
        return self._size
