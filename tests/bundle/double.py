"""A driver that loads and launches nothing, and records every call."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field

from gluon_runtime.libcuda import Config


@dataclass
class Launched:
    entry: str
    grid: tuple
    threads: int
    num_ctas: int
    shared: int
    stream: int
    content: bytes
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

    def parts(self, loaded, form):
        def call(config, parameters):
            self.record(loaded[0], form, Config.from_address(config), parameters)
            return 0

        return {"call": call}

    def enter(self, device):
        pass

    def record(self, device, form, config, parameters):
        """Keep a launch, with its arguments at the places that the manifest gives them."""
        launch, packing = form.launch, form.packing
        content = bytearray(packing.size)
        places = [(one, place) for one in packing.fields for place in one.places]
        for number, (one, place) in enumerate(
            [*places, *((None, place) for place in packing.scratch)]
        ):
            address = ctypes.c_uint64.from_address(parameters + 8 * number).value
            code = "Q" if one is None else {"bf16": "H", "map": "128s"}.get(one.code, one.code)
            size = struct.calcsize(f"<{code}")
            if one is not None and one.map is not None and place != one.offset:
                size = 4 if place < one.offset + 128 + 4 * len(one.map.box) else 8
            content[place : place + size] = ctypes.string_at(address, size)
        self.launches.append(
            Launched(
                launch.entry,
                (config.grid[0] // launch.num_ctas, *config.grid[1:]),
                config.block[0],
                launch.num_ctas,
                config.shared,
                config.stream or 0,
                bytes(content),
                device,
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
