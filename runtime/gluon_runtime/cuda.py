"""The driver of NVIDIA GPUs, `libcuda` through ctypes.

Sources: CUDA Driver API reference, sections Module Management and Execution Control.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from gluon_runtime import libcuda
from gluon_runtime.driver import Loaded, torch_cuda, torch_stream
from gluon_runtime.errors import BundleDeviceError, BundleDriverError
from gluon_runtime.libcuda import CudaCalls
from gluon_runtime.manifest import Form, Launch, TensorMap
from gluon_runtime.values import Pointer, TensorDescriptor

__all__ = ["CudaDriver", "open_driver"]


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

    def reaches(self, seen: Pointer) -> bool:
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
        function = self.load_function(device, code, *facts)[1]
        threads = self.function_attribute(ctypes.c_void_p(function), libcuda.MAX_THREADS)
        if launch.threads > threads:
            raise BundleDeviceError(
                "the kernel needs so many registers that its block does not fit",
                argument=launch.entry,
                expected=f"at most {threads} threads",
                got=f"{launch.threads} threads",
            )
        return Loaded(device, function)

    def parts(self, loaded: Loaded, form: Form) -> dict[str, Any]:
        maps = any(field.map for field in form.packing.fields)
        return self.launch_parts(loaded.function, maps)

    def refuse(
        self, status: int, launch: Launch, device: int, grid: tuple[int, int, int], last: bool
    ) -> None:
        facts = grid, launch.num_ctas, launch.threads, launch.shared
        self.refuse_launch(status, device, last, facts, argument=launch.entry)

    def tensor_map(self, device: int, kind: TensorMap, value: TensorDescriptor) -> bytes:
        self.ensure_context(device)
        shape, strides = value.shape or (), value.strides or ()
        tensor = (value.base.address, shape, strides)
        modes = (value.round_f32_to_tf32, value.padding == "nan")
        status, encoded = self.encode_tiled(kind, *tensor, *modes)
        if status:
            raise BundleDriverError(
                "the driver cannot encode the descriptor",
                argument=f"{list(shape)} elements with strides {list(strides)}",
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
