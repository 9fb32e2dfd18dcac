"""The calls of a driver that launching needs, and the current stream of torch."""

from __future__ import annotations

import sys
from typing import Any, Callable, NamedTuple, Optional, Protocol

from gluon_runtime.manifest import Form, Launch, TensorMap
from gluon_runtime.values import Pointer, TensorDescriptor

__all__ = ["Block", "Driver", "Loaded", "torch_stream"]


WITH_MAPS = ("cuda",)  # drivers whose kernels take maps of tensors


class Loaded(NamedTuple):
    """A kernel on a device; its module stays loaded for the life of the process."""

    device: int
    function: int


class Driver(Protocol):
    """A driver, or its stand-in in a test."""

    name: str  # `cuda` or `hip`: which forms of a bundle it launches
    tensor_device: str  # the device type of tensors that it works on, as torch calls it
    # A driver with `looks_at_each = True` is asked of the tensors of every call, also of those that look alike.

    def device_count(self) -> int: ...

    def architecture(self, device: int) -> str:
        """Such as `sm_90` or `gfx942`."""

    def current_device(self) -> int:
        """Return the device of a launch whose arguments name none."""

    def stream(self, device: int) -> int:
        """Return the current stream of a device."""

    def reaches(self, seen: Pointer) -> bool:
        """Return whether kernels can work on the memory of an argument."""

    def load(self, device: int, code: bytes, launch: Launch) -> Any:
        """Return a code object on a device, ready to be launched."""

    def parts(self, loaded: Any, form: Form) -> dict[str, Any]:
        """Return the arguments of `gluon_runtime.native.launch` that depend on the driver, `call` among them."""

    def enter(self, device: int) -> None:
        """Make a device current in this thread."""

    def refuse(
        self, status: int, launch: Launch, device: int, grid: tuple[int, int, int], last: bool
    ) -> None:
        """Raise the error for a launch that was refused with `status`.

        Args:
            last: return instead where another try may help; then it is made, the last one.
        """

    def tensor_map(self, device: int, kind: TensorMap, value: TensorDescriptor) -> bytes:
        """Return the map that a kernel takes for a descriptor, 128 bytes."""

    def allocate(self, device: int, size: int, stream: int) -> int:
        """Memory of the device in the order of `stream`, aligned to 256 bytes."""

    def free(self, device: int, address: int, stream: int) -> None: ...


class Block:
    """Memory of one launch, given back when this object goes: the stream keeps later users of it behind the kernel.

    Args:
        driver: a `Driver`, or another object that allocates and frees as it does.
        size: bytes; 0 for no memory, at the address 0.
    """

    def __init__(self, driver: Any, device: int, size: int, alignment: int, stream: int):
        self._alignment, self._start = alignment, 0
        self._driver, self._device, self._stream = driver, device, stream
        if size:
            size += alignment if alignment > 256 else 0
            self._start = driver.allocate(device, size, stream)

    def data_ptr(self) -> int:
        """Return the first aligned address."""
        return self._start + -self._start % self._alignment

    def __del__(self) -> None:
        if self._start:
            self._driver.free(self._device, self._start, self._stream)


def torch_cuda(built_for: str) -> Optional[Any]:
    """`torch.cuda` where somebody uses a build of torch for this driver; torch is not imported for it.

    Args:
        built_for: `cuda` or `hip`; torch calls the devices of both `cuda`.
    """
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "version", None), built_for, None) is None:
        return None
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


_raw: dict[str, Callable[[int], int]] = {}  # torch's function for the current stream


def torch_stream(device: int, built_for: str) -> int:
    """Return the current stream of torch, the default stream without it."""
    known = _raw.get(built_for)
    if known is not None:
        return known(device)
    cuda = torch_cuda(built_for)
    if cuda is None:
        return 0
    raw = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        _raw[built_for] = raw  # torch stays initialised
        stream: int = raw(device)
        return stream
    current: int = cuda.current_stream(device).cuda_stream
    return current
