"""Launching through Triton's own HIP driver."""

from __future__ import annotations

from typing import Any, Callable

from gluon_core.errors import DeviceError, LaunchError, LimitError

__all__ = ["make_launcher"]


def make_launcher(compiled: Any) -> Callable[..., None]:
    """Load `compiled` on the current device; answers `launch(grid, stream, *arguments)`.

    Raises:
        DeviceError: Triton has no active HIP driver.
        LimitError: the kernel needs more than the device has.
    """
    from triton.runtime import driver

    try:
        active = driver.active
        target = active.get_current_target()
    except Exception as error:
        raise DeviceError(
            "there is no AMD device on this machine",
            remedy="Run on the simulator with GLUON_TARGET=sim, or gluon.compile without running.",
        ) from error
    if target.backend != "hip":
        raise DeviceError("the active driver is not HIP", got=target)
    metadata = compiled.metadata
    device = active.get_current_device()
    most = active.utils.get_device_properties(device)["max_shared_mem"]
    if metadata.shared > most:
        raise LimitError(
            "the kernel needs more shared memory than the device has",
            argument=compiled.name,
            expected=f"at most {most} bytes",
            got=f"{metadata.shared} bytes",
        )
    run = active.launcher_cls(compiled.src, metadata)
    loaded = active.utils.load_binary(compiled.name, compiled.kernel, metadata.shared, device)
    compiled.module, compiled.function, compiled.n_regs, compiled.n_spills = loaded[:4]
    compiled.n_max_threads = loaded[4]
    function, packed = compiled.function, compiled.packed_metadata

    def launch(grid: Any, stream: int, *arguments: Any) -> None:
        try:
            run(grid[0], grid[1], grid[2], stream, function, packed, None, None, None, *arguments)
        except RuntimeError as error:
            raise LaunchError("the driver refused the launch", got=str(error)) from error

    return launch
