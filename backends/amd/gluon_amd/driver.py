"""Which AMD GPUs are there, through `libamdhip64` without importing torch."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, Optional

from gluon_core.plugin.triton_compiler import TritonDevice

__all__ = ["architecture", "device_count", "problem"]

_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")


@functools.lru_cache(maxsize=None)
def _library() -> Optional[Any]:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@functools.lru_cache(maxsize=None)
def device_count() -> int:
    """Return the number of AMD GPUs that the HIP runtime sees; 0 without one."""
    library = _library()
    count = ctypes.c_int()
    try:
        if library is None or library.hipGetDeviceCount(ctypes.byref(count)) != 0:
            return 0
    except AttributeError:
        return 0
    return count.value


@functools.lru_cache(maxsize=None)
def architecture(index: int) -> Optional[str]:
    """`gfx942` and the like, None where the device cannot say."""
    if index >= device_count():
        return None
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch.version, "hip", None):
        return str(torch.cuda.get_device_properties(index).gcnArchName).split(":")[0]
    try:
        properties = TritonDevice.driver().utils.get_device_properties(index)
        return str(properties["arch"]).split(":")[0]
    except Exception:  # Triton has no active HIP driver
        return None


def problem() -> Optional[str]:
    """Return the reason why there is no device although the HIP runtime is installed."""
    if _library() is None or device_count():
        return None
    return "the HIP runtime is installed, but it sees no device"
