"""The launch in Python: packs the arguments and calls `cuLaunchKernelEx`.

Configuration, arguments and the array of pointers to them live in one buffer. The first launch of a form comes here, and
those that the engine in C does not make.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import struct
import threading
from typing import Any, Callable, NoReturn, Optional, Sequence

from gluon_core import errors
from gluon_core.plugin.triton_compiler import TritonDevice
from gluon_core.values import descriptors
from gluon_nvidia import driver as driver_module
from gluon_nvidia import scratch as scratch_module
from gluon_nvidia.descriptor import (
    MAP_ALIGNMENT,
    MAP_BYTES,
    MARKED_UP_TO,
    TensorMaps,
    map_kinds,
)
from gluon_nvidia.driver import ERROR_INVALID_CONTEXT, Driver
from gluon_runtime import native

__all__ = ["Layout", "make_launcher"]

# CUlaunchConfig: grid 0, block 12, shared 24, stream 32, attributes 40, their number 48; 56 bytes,
# and a gap that keeps the rest aligned.
_CONFIG = "<3I3II4xQQI4x8x"
_CONFIG_SIZE = 64
_ATTRIBUTE_SIZE = 72  # CUlaunchAttribute: id 0, value 8
_ATTRIBUTE_COOPERATIVE = 2
_ATTRIBUTE_CLUSTER = 4
_ATTRIBUTE_CLUSTER_POLICY = 5
_ATTRIBUTE_DEPENDENT = 6
_CLUSTER_SPREAD = 1

_FORMATS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp16": "e",
    "bf16": "H",
    "fp32": "f",
    "f32": "f",
    "fp64": "d",
}


def _bfloat16(value: float) -> int:
    """Return the upper half of the float32, as Triton's launcher passes it."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits >> 16


def _native_kind(kind: Any) -> Optional[str]:
    """Return the code of a parameter's type for the launch in C, None for types that it does not take."""
    if isinstance(kind, (tuple, list)):
        items = [_native_kind(item) for item in kind]
        return None if None in items else f"({''.join(items)})"  # type: ignore[arg-type]
    if descriptors.split_descriptor(kind) is not None:
        return "T"
    if kind == "constexpr":
        return "x"
    if kind.startswith("*"):
        return "P"
    code = _FORMATS.get(kind)
    return code if kind not in ("fp16", "bf16") else None


def _address(value: Any) -> int:
    """Return the device address of a pointer argument."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    data_ptr = getattr(value, "data_ptr", None)
    if data_ptr is None:
        raise errors.ArgumentError(
            "not a pointer",
            expected="a tensor, an object with data_ptr(), an int or None",
            got=type(value).__name__,
        )
    address: int = data_ptr()
    return address


class Layout:
    """The places of the arguments: struct format, offsets, and the functions that read the values.

    Args:
        signature: the type of each parameter of the kernel, nested for tuples.

    Attributes:
        described: the paths of descriptors, each the index of a parameter and the indices into tuples.
    """

    def __init__(self, signature: Any):
        self.format = ""
        self.offsets: list[int] = []
        self.size = 0
        self.described: list[tuple[int, ...]] = []
        self._readers: list[tuple[tuple[int, ...], Optional[Callable[[Any], Any]]]] = []
        for index, kind in enumerate(signature):
            self._add(kind, (index,))
        for _ in range(2):  # pointers to global and profile scratch
            self._field("Q")

    def _add(self, kind: Any, path: tuple[int, ...]) -> None:
        if isinstance(kind, (tuple, list)):
            for index, item in enumerate(kind):
                self._add(item, (*path, index))
            return
        if kind == "constexpr":
            return
        descriptor = descriptors.split_descriptor(kind)
        code = "Q" if kind.startswith("*") else _FORMATS.get(kind)
        if descriptor is not None:
            self.described.append(path)
            self._readers.append((path, None))
            self._field(f"{MAP_BYTES}s", align=MAP_ALIGNMENT)
            for index in range(2 * descriptor.rank):
                self._field("i" if index < descriptor.rank else "q")
        elif code is None:
            raise errors.ArgumentError(
                "the launcher cannot pass a value of this type",
                expected=f"a pointer or one of {', '.join(_FORMATS)}",
                got=kind,
            )
        else:
            read = _address if kind.startswith("*") else _bfloat16 if kind == "bf16" else _itself
            self._readers.append((path, read))
            self._field(code)

    def _field(self, code: str, align: Optional[int] = None) -> None:
        size = struct.calcsize("<" + code)
        gap = -self.size % (align or size)
        self.format += f"{gap}x" * bool(gap) + code
        self.offsets.append(self.size + gap)
        self.size += gap + size

    def values(self, arguments: Sequence[Any], expanded: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the values of all fields but scratch.

        Args:
            expanded: the values of each descriptor.
        """
        flat: list[Any] = []
        described = iter(expanded)
        for path, read in self._readers:
            flat.extend(next(described) if read is None else [read(_at(arguments, path))])
        return flat


def _itself(value: Any) -> Any:
    return value


def _at(arguments: Any, path: Sequence[int]) -> Any:
    return functools.reduce(operator.getitem, path, arguments)


class _Slot:
    """One buffer: configuration, then the arguments; and the array of pointers to them."""

    __slots__ = ("buffer", "config", "parameters", "pointers")

    def __init__(self, layout: Layout):
        size = _CONFIG_SIZE + layout.size + 8
        room = (ctypes.c_char * (size + MAP_ALIGNMENT))()
        gap = -ctypes.addressof(room) % MAP_ALIGNMENT
        self.buffer = (ctypes.c_char * size).from_buffer(room, gap)
        start = ctypes.addressof(self.buffer)
        self.config = ctypes.c_void_p(start)
        addresses = [start + _CONFIG_SIZE + offset for offset in layout.offsets]
        self.pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self.parameters = ctypes.c_void_p(ctypes.addressof(self.pointers))


def _attributes(num_ctas: int, cooperative: bool, dependent: bool) -> tuple[Any, int]:
    """Return the launch attributes as a buffer (kept by the caller) and their number."""
    places: list[tuple[int, tuple[int, ...]]] = []
    if dependent:
        places.append((_ATTRIBUTE_DEPENDENT, (1,)))
    if cooperative:
        places.append((_ATTRIBUTE_COOPERATIVE, (1,)))
    if num_ctas != 1:
        places.append((_ATTRIBUTE_CLUSTER, (num_ctas, 1, 1)))
        places.append((_ATTRIBUTE_CLUSTER_POLICY, (_CLUSTER_SPREAD,)))
    buffer = (ctypes.c_char * (_ATTRIBUTE_SIZE * max(1, len(places))))()
    for index, (kind, values) in enumerate(places):
        base = index * _ATTRIBUTE_SIZE
        struct.pack_into("<I", buffer, base, kind)
        struct.pack_into(f"<{len(values)}I", buffer, base + 8, *values)
    return buffer, len(places)


def make_launcher(compiled: Any, cuda: Optional[Driver] = None) -> Callable[..., None]:
    """Load `compiled` on the current device and return its `launch(grid, stream, *arguments)`.

    Args:
        compiled: a `gluon_core.compiler.CompiledKernel` for an NVIDIA target.
        cuda: the driver; None for that of the machine.

    Raises:
        DeviceError: no device.
        LimitError: the kernel needs more than the device has.
        LaunchError: the driver refused to load it.
    """
    cuda = cuda or driver_module.driver()
    metadata = compiled.metadata
    index = cuda.current_device()
    most = cuda.device_attribute(index, driver_module.ATTRIBUTE_SHARED_OPTIN)
    TritonDevice.check_shared(compiled, most)
    function = cuda.load(compiled.kernel, metadata.name, metadata.shared, metadata.num_ctas, index)
    threads = 32 * metadata.num_warps
    if threads > function.max_threads:
        raise errors.LimitError(
            "the kernel needs so many registers that its block does not fit",
            argument=compiled.name,
            expected=f"at most {function.max_threads} threads",
            got=f"{threads} threads",
            remedy="Lower num_warps, or set maxnreg.",
        )
    compiled.function = function.handle
    compiled.module = function.module
    compiled.n_regs = function.registers
    compiled.n_spills = function.spills
    compiled.n_max_threads = function.max_threads
    return generate(compiled.signature_types(), metadata, function.handle, cuda, index)


def generate(
    signature: Any, metadata: Any, handle: int, cuda: Driver, index: int
) -> Callable[..., None]:
    """Return the launch function of one loaded kernel."""
    launcher = _Launcher(signature, metadata, handle, cuda, index)

    def launch(sizes: Any, stream: int, *arguments: Any) -> None:
        launcher.launch(sizes, stream, arguments)

    launch.engine = launcher.engine(handle)  # type: ignore[attr-defined]
    return launch


class _Launcher:
    """Launches one loaded kernel."""

    def __init__(self, signature: Any, metadata: Any, handle: int, cuda: Driver, index: int):
        self.signature = signature
        self.metadata = metadata
        self.cuda = cuda
        self.index = index
        self.attributes, self.number = _attributes(
            metadata.num_ctas,
            bool(getattr(metadata, "launch_cooperative_grid", False)),
            bool(getattr(metadata, "launch_pdl", False)),
        )
        self.maps = map_kinds(metadata.name, signature, metadata)
        encoder = TensorMaps(cuda, index)
        self.expanders = [encoder.expander(kind) for kind in self.maps]
        self.allocate = scratch_module.allocator(metadata, cuda, index)
        self._layout = Layout(signature)
        self._struct = struct.Struct(_CONFIG + self._layout.format)
        self._function = ctypes.c_void_p(handle)
        self._retrying: set[int] = set()

    def launch(self, sizes: Any, stream: int, arguments: Sequence[Any]) -> None:
        (x, y, z), layout, scratch = sizes, self._layout, (0, 0, None)
        paired = zip(self.expanders, layout.described)
        expanded = [expand(_at(arguments, path)) for expand, path in paired]
        if self.allocate is not None:
            scratch = self.allocate(x * y * z, stream)  # the last owns the memory
        grid = (x * self.metadata.num_ctas, y, z)
        block = (32 * self.metadata.num_warps, 1, 1)
        address = ctypes.addressof(self.attributes) if self.number else 0
        config = (*grid, *block, self.metadata.shared, stream, address, self.number)
        slot = _Slot(layout)
        try:
            values = layout.values(arguments, expanded)
            self._struct.pack_into(slot.buffer, 0, *config, *values, *scratch[:2])
        except (struct.error, OverflowError, TypeError) as problem:
            self._refuse(problem, arguments)
        status = self.cuda.launch_ex(slot.config, self._function, slot.parameters, None)
        if status:
            self._again(status, sizes, stream, arguments)

    def engine(self, handle: int) -> Any:
        """Return the same launch in C, see `native.launch`; None where it cannot take these arguments.

        16-bit float scalars are left to the Python form.
        """
        letters = [_native_kind(kind) for kind in self.signature]
        if None in letters:
            return None
        return native.launch(
            "".join(map(str, letters)),
            device=self.index,
            several=self.cuda.device_count > 1,
            current_device=self.cuda.current_device_address,
            call=getattr(self.cuda, "launch_ex_address", None) or 0,
            function=handle,
            threads=32 * self.metadata.num_warps,
            shared=self.metadata.shared,
            attributes=(self.attributes, self.number),
            num_ctas=self.metadata.num_ctas,
            count=len(letters),
            values=len(self._layout.offsets),
            allocate=self.allocate,
            maps=b"".join(kind.packed() for kind in self.maps),
            encode=self._encode if self.maps else None,
            encode_tiled=self.cuda.encode_tiled_address if self.maps else 0,
            unmark=bool(self.maps) and self.cuda.version <= MARKED_UP_TO,
        )

    def _encode(self, number: int, descriptor: Any) -> bytes:
        """Return the map of the kernel's descriptor `number`, for the launch in C."""
        encoded: bytes = self.expanders[number](descriptor)[0]
        return encoded

    def _refuse(self, problem: Exception, values: Sequence[Any]) -> NoReturn:
        raise errors.ArgumentError(
            f"an argument does not fit its parameter: {problem}",
            expected=f"values of types {', '.join(map(str, self.signature))}",
            got=", ".join(f"{type(value).__name__}" for value in values),
        ) from problem

    def _again(self, status: int, grid: Any, stream: int, values: Sequence[Any]) -> None:
        me = threading.get_ident()
        if status == ERROR_INVALID_CONTEXT and me not in self._retrying:
            self._retrying.add(me)  # a thread that has no context yet
            try:
                self.cuda.ensure_context(self.index)
                self.launch(grid, stream, values)
                return
            finally:
                self._retrying.discard(me)
        num_ctas = self.metadata.num_ctas
        clusters = f"clusters of {num_ctas} blocks, each " if num_ctas != 1 else ""
        raise errors.LaunchError(
            "the driver refused the launch",
            got=self.cuda.error_text(status),
            expected=f"grid {tuple(grid)} of {clusters}{32 * self.metadata.num_warps} threads, "
            f"{self.metadata.shared} bytes of shared memory",
        )
