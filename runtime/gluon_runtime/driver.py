"""What launching needs of a driver, and which driver this machine has."""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, Optional, Protocol, Sequence

from gluon_runtime.errors import BundleDeviceError
from gluon_runtime.manifest import Launch, TensorMap
from gluon_runtime.pack import Arguments
from gluon_runtime.values import Spread

__all__ = ["Driver", "find", "torch_stream"]


WITH_MAPS = ("cuda",)  # drivers whose kernels take maps of tensors


class Driver(Protocol):
    """A driver, or what stands in for one in a test."""

    name: str  # `cuda` or `hip`: which forms of a bundle it launches
    tensor_device: str  # the device type of tensors that it works on, as torch calls it

    def device_count(self) -> int: ...

    def architecture(self, device: int) -> str:
        """Such as `sm_90` or `gfx942`."""

    def current_device(self) -> int:
        """Where a launch goes whose arguments do not say."""

    def stream(self, device: int) -> int:
        """The current stream of a device."""

    def load(self, device: int, code: bytes, launch: Launch) -> Any:
        """A code object on a device, ready to be launched."""

    def launch(
        self,
        loaded: Any,
        launch: Launch,
        grid: tuple[int, int, int],
        stream: int,
        arguments: Arguments,
    ) -> None: ...

    def tensor_map(self, device: int, kind: TensorMap, value: Spread) -> bytes:
        """The map that a kernel takes for a descriptor, 128 bytes."""

    def allocate(self, device: int, size: int, stream: int) -> int:
        """Memory of the device in the order of `stream`, aligned to 256 bytes."""

    def free(self, device: int, address: int, stream: int) -> None: ...


_found: dict[tuple[str, ...], Driver] = {}
_lock = threading.Lock()


def find(names: Sequence[str]) -> Driver:
    """The first of these drivers (`cuda`, `hip`) that has a device.

    Raises:
        BundleDeviceError: none has; the message says why of each.
    """
    wanted = tuple(names)
    found = _found.get(wanted)
    if found is not None:
        return found
    with _lock:
        problems = []
        for name in wanted:
            made, problem = _open(name)
            if made is not None and made.device_count():
                _found[wanted] = made
                return made
            problems.append(problem or f"{name} sees no device")
    raise BundleDeviceError(
        "nothing on this machine can launch the kernels of the bundle",
        expected=" or ".join(wanted) or "code of a known driver",
        got="; ".join(problems) or "a bundle without code",
    )


def _open(name: str) -> tuple[Optional[Driver], Optional[str]]:
    if name == "cuda":
        from gluon_runtime import cuda

        return cuda.open_driver()
    if name == "hip":
        from gluon_runtime import hip

        return hip.open_driver()
    return None, f"this release has no driver {name!r}"


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


_raw: dict[str, Callable[[int], int]] = {}  # what torch has to tell a stream


def torch_stream(device: int, built_for: str) -> int:
    """The current stream of torch, the default stream without it."""
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
