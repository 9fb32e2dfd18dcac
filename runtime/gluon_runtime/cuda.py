"""The driver of NVIDIA GPUs, `libcuda` through ctypes.

Sources: CUDA Driver API reference, sections Module Management and Execution Control.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, Optional

from gluon_runtime import libcuda
from gluon_runtime.arrays import Seen
from gluon_runtime.driver import torch_cuda, torch_stream
from gluon_runtime.errors import BundleDeviceError, BundleDriverError
from gluon_runtime.libcuda import MARKED_UP_TO, CudaCalls
from gluon_runtime.manifest import Form, Launch, TensorMap
from gluon_runtime.values import Spread

__all__ = ["CudaDriver", "open_driver"]


class Config(ctypes.Structure):
    """CUlaunchConfig; HIP_LAUNCH_CONFIG has the same fields."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


@dataclass
class Loaded:
    """A kernel on a device."""

    device: int
    function: ctypes.c_void_p


class CudaDriver(CudaCalls):
    """See `gluon_runtime.driver.Driver`.

    Args:
        library: `libcuda`, initialised.
    """

    name = "cuda"
    tensor_device = "cuda"
    failure, lacking = BundleDriverError, BundleDeviceError

    def device_count(self) -> int:
        return self.count

    def architecture(self, device: int) -> str:
        major = self.device_attribute(device, libcuda.CAPABILITY_MAJOR)
        return f"sm_{major}{self.device_attribute(device, libcuda.CAPABILITY_MINOR)}"

    def current_device(self) -> int:
        cuda = torch_cuda("cuda")
        return self.device_of_context() if cuda is None else int(cuda.current_device())

    def reaches(self, seen: Seen) -> bool:
        return seen.device is not None and seen.device[0] == self.tensor_device

    def stream(self, device: int) -> int:
        return torch_stream(device, "cuda")

    def enter(self, device: int) -> None:
        if self.count > 1:
            self.ensure_context(device)

    def load(self, device: int, code: bytes, launch: Launch) -> Loaded:
        most = self.device_attribute(device, libcuda.SHARED_OPTIN)
        if launch.shared > most:
            raise BundleDeviceError(
                "the kernel needs more shared memory than the device has",
                argument=launch.entry,
                expected=f"at most {most} bytes",
                got=f"{launch.shared} bytes",
            )
        facts = launch.entry, launch.shared, launch.num_ctas
        function = ctypes.c_void_p(self.load_function(device, code, *facts)[1])
        threads = self.function_attribute(function, libcuda.MAX_THREADS)
        if launch.threads > threads:
            raise BundleDeviceError(
                "the kernel needs so many registers that its block does not fit",
                argument=launch.entry,
                expected=f"at most {threads} threads",
                got=f"{launch.threads} threads",
            )
        return Loaded(device, function)

    def parts(self, loaded: Loaded, form: Form) -> dict[str, Any]:
        address, current = map(self._address_of, ("cuLaunchKernelEx", "cuCtxGetDevice"))
        alone = address and (current or self.count == 1)
        maps = any(field.map for field in form.packing.fields)
        return {
            "call": address if alone else functools.partial(self._launch_in_python, loaded),
            "function": loaded.function.value or 0,
            "current_device": current if self.count > 1 else 0,
            "encode_tiled": self._address_of("cuTensorMapEncodeTiled") if maps else 0,
            "unmark": maps and self.version <= MARKED_UP_TO,
        }

    def _launch_in_python(self, loaded: Loaded, config: int, parameters: int) -> int:
        operands = (ctypes.byref(Config.from_address(config)), loaded.function)
        status: int = self._launch(*operands, ctypes.c_void_p(parameters), None)
        return status

    def refuse(
        self, status: int, launch: Launch, device: int, grid: tuple[int, int, int], last: bool
    ) -> None:
        facts = grid, launch.num_ctas, launch.threads, launch.shared
        self.refuse_launch(status, device, last, facts, argument=launch.entry)

    def tensor_map(self, device: int, kind: TensorMap, value: Spread) -> bytes:
        self.ensure_context(device)
        tensor = (value.base, value.shape, value.strides)
        modes = (value.round_f32_to_tf32, value.padding == "nan")
        status, encoded = self.encode_tiled(kind, *tensor, *modes)
        if status:
            raise BundleDriverError(
                "the driver cannot encode the descriptor",
                argument=f"{list(value.shape)} elements with strides {list(value.strides)}",
                expected=f"a tensor for copies of {list(kind.box)} elements of {kind.element_bytes} bytes",
                got=self.error_text(status),
            )
        return encoded


def open_driver() -> tuple[Optional[CudaDriver], Optional[str]]:
    """Return the driver, or None and why."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "libcuda.so.1 is not installed"
    try:
        status = library.cuInit(0)
        if status:
            return None, f"cuInit failed with error {status}"
        return CudaDriver(library), None
    except (AttributeError, BundleDriverError) as error:
        return None, f"libcuda.so.1 is too old or broken: {error}"
