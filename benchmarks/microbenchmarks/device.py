"""Run timed loops on the GPU, through `libcuda` and torch."""

from __future__ import annotations

import ctypes
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import numpy as np
from ptx import Loop, assemble, text

__all__ = ["Device", "Dry", "Times", "tensor_map"]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]  # fmt: skip


@dataclass(frozen=True)
class Times:
    """Clocks of one launch: cycles of its slowest block, nanoseconds from the first begin to the last end."""

    cycles: float
    nanoseconds: float


class Dry:
    """Assemble loops and run none: every time is 1."""

    multiprocessors = 132
    capability = 90

    def __init__(self) -> None:
        self.assembled: dict[Loop, bytes] = {}

    def prepare(self, loops: Sequence[Loop]) -> None:
        """Assemble loops, several at a time."""
        new = [loop for loop in dict.fromkeys(loops) if loop not in self.assembled]
        with ThreadPoolExecutor(16) as pool:
            codes = pool.map(
                lambda loop: assemble(text(loop, self.capability), self.capability, loop.wide), new
            )
            self.assembled.update(zip(new, codes))

    def times(self, loop: Loop, rounds: int, blocks: int = 1, pointers: Sequence[Any] = (),
              map: Optional[bytes] = None, repeats: int = 3, flush: bool = False) -> Times:  # fmt: skip
        if loop not in self.assembled:
            self.prepare([loop])
        return Times(float(rounds), float(rounds))

    def zeros(self, size: int) -> Any:
        return np.zeros(min(size, 1 << 20), np.uint8)

    def array(self, values: np.ndarray) -> Any:
        return values

    def map(self, *_: Any, **__: Any) -> bytes:
        return bytes(128)

    def graph_node(self, loop: Loop, blocks: int, cooperative: bool = False) -> float:
        self.prepare([loop])
        return 1.0

    def bandwidth(self, loop: Loop, rounds: int, blocks: int, pointers: Sequence[Any],
                  map: Optional[bytes] = None) -> float:  # fmt: skip
        self.prepare([loop])
        return 1.0

    def sustained(self, loop: Loop, rounds: int, blocks: int, seconds: float,
                  pointers: Sequence[Any] = ()) -> tuple[float, float]:  # fmt: skip
        self.prepare([loop])
        return 1.0, 1.0


class Device(Dry):
    """The current CUDA device."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self.torch = torch
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # the primary context becomes current
        self.calls = ctypes.CDLL("libcuda.so.1")
        properties = torch.cuda.get_device_properties(0)
        self.name = properties.name
        self.multiprocessors = properties.multi_processor_count
        self.capability = 10 * properties.major + properties.minor
        self._functions: dict[Loop, ctypes.c_void_p] = {}
        self._out = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
        self._evict = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
        self._empty_map = bytes(128)

    def _check(self, status: int, call: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self.calls.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"{call}: {(text.value or b'?').decode()} ({status})")

    def _function(self, loop: Loop) -> ctypes.c_void_p:
        if loop in self._functions:
            return self._functions[loop]
        self.prepare([loop])
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        status = self.calls.cuModuleLoadData(ctypes.byref(module), self.assembled[loop])
        self._check(status, "cuModuleLoadData")
        status = self.calls.cuModuleGetFunction(ctypes.byref(function), module, b"timed")
        self._check(status, "cuModuleGetFunction")
        if loop.shared > 48 << 10:
            self._check(
                self.calls.cuFuncSetAttribute(function, 8, loop.shared), "cuFuncSetAttribute"
            )
        if loop.cluster > 8:
            self._check(self.calls.cuFuncSetAttribute(function, 14, 1), "cuFuncSetAttribute")
        self._functions[loop] = function
        return function

    def _launcher(self, loop: Loop, rounds: int, blocks: int, pointers: Sequence[Any],
                  map: Optional[bytes]) -> Callable[[], None]:  # fmt: skip
        function = self._function(loop)
        values: list[Any] = [ctypes.c_uint64(self._out.data_ptr()), ctypes.c_uint32(rounds)]
        addresses = [p if isinstance(p, int) else p.data_ptr() for p in pointers]
        values += [ctypes.c_uint64(a) for a in [*addresses, 0, 0, 0][:3]]
        values.append((ctypes.c_uint8 * 128).from_buffer_copy(map or self._empty_map))
        packed = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])

        def launch() -> None:
            config = _Config()
            config.grid[:] = (blocks, 1, 1)
            config.block[:] = (32 * loop.warps, 1, 1)
            config.shared = loop.shared
            config.stream = self.torch.cuda.current_stream().cuda_stream
            _ = values  # stay alive
            self._check(
                self.calls.cuLaunchKernelEx(ctypes.byref(config), function, packed, None),
                "cuLaunchKernelEx",
            )

        return launch

    def times(self, loop: Loop, rounds: int, blocks: int = 1, pointers: Sequence[Any] = (),
              map: Optional[bytes] = None, repeats: int = 3, flush: bool = False) -> Times:  # fmt: skip
        """Return the median of several launches, the first left out; `flush` empties L2 before each."""
        launch = self._launcher(loop, rounds, blocks, pointers, map)
        measured = []
        for _ in range(repeats + 1):
            if flush:
                self._evict.zero_()
            launch()
            self.torch.cuda.synchronize()
            rows = self._out[: 4 * blocks * loop.warps].cpu().numpy().reshape(blocks, loop.warps, 4)
            cycles = (rows[:, :, 1].max(1) - rows[:, :, 0].min(1)).max()
            measured.append((float(cycles), float(rows[:, :, 3].max() - rows[:, :, 2].min())))
        cycles, nanoseconds = zip(*measured[1:])
        return Times(statistics.median(cycles), statistics.median(nanoseconds))

    def zeros(self, size: int) -> Any:
        return self.torch.zeros(size, dtype=self.torch.uint8, device="cuda")

    def array(self, values: np.ndarray) -> Any:
        return self.torch.from_numpy(values).cuda()

    def _graph(self, launch: Callable[[], None], nodes: int) -> Any:
        torch = self.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(nodes):
                launch()
        return graph

    def _replayed(self, graph: Any, repeats: int = 7) -> float:
        """Return seconds of a replay, the median."""
        torch = self.torch
        samples = []
        graph.replay()
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(samples)

    def graph_node(self, loop: Loop, blocks: int, cooperative: bool = False) -> float:
        """Return nanoseconds that one more launch adds to a graph of launches."""
        launch = self._launcher(loop, 0, blocks, (), None)
        few, many = (self._replayed(self._graph(launch, nodes)) for nodes in (40, 200))
        return (many - few) / 160 * 1e9

    def bandwidth(self, loop: Loop, rounds: int, blocks: int, pointers: Sequence[Any],
                  map: Optional[bytes] = None) -> float:  # fmt: skip
        """Return nanoseconds of a launch, from the difference of graphs of 2 and 6 launches."""
        launch = self._launcher(loop, rounds, blocks, pointers, map)
        few, many = (self._replayed(self._graph(launch, nodes), 5) for nodes in (2, 6))
        return (many - few) / 4 * 1e9

    def sustained(self, loop: Loop, rounds: int, blocks: int, seconds: float,
                  pointers: Sequence[Any] = ()) -> tuple[float, float]:  # fmt: skip
        """Return cycles and nanoseconds of a launch after the device has run it for `seconds`."""
        torch = self.torch
        launch = self._launcher(loop, rounds, blocks, pointers, None)
        one = max(self.times(loop, rounds, blocks, pointers, repeats=1).nanoseconds, 1e3)
        for _ in range(max(3, int(seconds * 1e9 / one))):
            launch()
        torch.cuda.synchronize()
        rows = self._out[: 4 * blocks * loop.warps].cpu().numpy().reshape(blocks, loop.warps, 4)
        cycles = float((rows[:, :, 1].max(1) - rows[:, :, 0].min(1)).max())
        return cycles, float(rows[:, :, 3].max() - rows[:, :, 2].min())

    def map(self, tensor: Any, rows: int, columns: int, box_rows: int, box_columns: int) -> bytes:
        """Return the tensor map of bf16 [rows, columns] with boxes in the 128-byte swizzle."""
        return tensor_map(self.calls, tensor.data_ptr(), rows, columns, box_rows, box_columns)


def tensor_map(calls: Any, address: int, rows: int, columns: int, box_rows: int,
               box_columns: int) -> bytes:  # fmt: skip
    """Return 128 bytes for `cp.async.bulk.tensor` (CUDA Driver API, cuTensorMapEncodeTiled)."""
    room = (ctypes.c_uint8 * 256)()
    start = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    status = calls.cuTensorMapEncodeTiled(
        ctypes.c_void_p(start), ctypes.c_int(9), ctypes.c_uint32(2), ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(2 * columns),
        (ctypes.c_uint32 * 2)(box_columns, box_rows), (ctypes.c_uint32 * 2)(1, 1),
        ctypes.c_int(0), ctypes.c_int(3), ctypes.c_int(2), ctypes.c_int(0),
    )  # fmt: skip
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled: error {status}")
    return ctypes.string_at(start, 128)
