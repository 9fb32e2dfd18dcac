"""NVIDIA's driver on a CPU: the calls of `libcuda` that bundles use, with PTX executed by the emulator.

    GLUON_DRIVER=emu:sm_90 python serve.py

runs a program that launches the kernels of a bundle (`gluon_runtime.open_bundle`) without a GPU; the bundle was built for
`emu:sm_90`, so that it has PTX. Programs in C that load `libcuda.so.1` in a process of Python find the emulated driver after `serve`.
"""

from __future__ import annotations

from typing import Any, Optional

from gluon_core.errors import GluonError

__all__ = ["open_driver", "serve"]


def open_driver(target: str = "emu:sm_90") -> tuple[Any, Optional[str]]:
    """Return the driver of bundles for an emulated device, see `gluon_runtime.driver.Driver`, or None and why.

    Args:
        target: such as `emu:sm_90`.
    """
    from gluon_emu.cuda.driver import driver_of

    try:
        return driver_of(target), None
    except GluonError as error:
        return None, str(error)


def serve(target: str = "emu:sm_90") -> str:
    """Let `dlopen("libcuda.so.1")` find the emulated driver in this process; return the library's path.

    Raises:
        DeviceError: `target` is no GPU of NVIDIA's that the emulator executes.
        BackendError: there is no C compiler, or the process has another `libcuda`.
    """
    from gluon_emu.cuda.shim import serve

    return serve(target)
