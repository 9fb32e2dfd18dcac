"""Launching through Triton's own HIP driver.

The driver converts a descriptor argument to the kernel's form: the 12 words of TDM's groups 0 and 1,
made from its `tensordesc_meta`, then shape (int32) and strides (int64).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

from gluon_amd.features import DESCRIPTORS_IN_TUPLES
from gluon_core.errors import DeviceError, LaunchError
from gluon_core.plugin.triton_compiler import TritonCompiler, TritonDevice
from gluon_core.values.descriptors import split_descriptor

__all__ = ["make_launcher"]


def make_launcher(compiled: Any) -> Callable[..., None]:
    """Load `compiled` on the current device; answers `launch(grid, stream, *arguments)`.

    Raises:
        DeviceError: Triton has no active HIP driver.
        LimitError: the kernel needs more than the device has.
    """
    try:
        active = TritonDevice.driver()
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
    TritonDevice.check_shared(compiled, most)
    source, as_passed = compiled.src, _as_they_are
    if not TritonCompiler.has(DESCRIPTORS_IN_TUPLES) and _descriptor_in_tuple(
        source.signature.values()
    ):
        # The driver looks for descriptors outside of tuples only.
        kinds = tuple(source.signature.values())
        flat = dict(enumerate(_leaves(kinds, kinds)))
        source = SimpleNamespace(signature=flat, constants={}, fn=source.fn)

        def as_passed(arguments: Any) -> list[Any]:
            return _leaves(kinds, arguments)

    run = active.launcher_cls(source, metadata)
    loaded = active.utils.load_binary(compiled.name, compiled.kernel, metadata.shared, device)
    compiled.module, compiled.function, compiled.n_regs, compiled.n_spills = loaded[:4]
    compiled.n_max_threads = loaded[4]
    function, packed = compiled.function, compiled.packed_metadata

    def launch(grid: Any, stream: int, *arguments: Any) -> None:
        values = as_passed(arguments)
        try:
            run(grid[0], grid[1], grid[2], stream, function, packed, None, None, None, *values)
        except RuntimeError as error:
            raise LaunchError("the driver refused the launch", got=str(error)) from error

    return launch


def _as_they_are(arguments: Any) -> Any:
    return arguments


def _descriptor_in_tuple(kinds: Any, inside: bool = False) -> bool:
    return any(
        _descriptor_in_tuple(kind, True)
        if isinstance(kind, (tuple, list))
        else inside and split_descriptor(kind) is not None
        for kind in kinds
    )


def _leaves(kinds: Any, values: Any) -> list[Any]:
    """`values`, one by one where `kinds` has a tuple."""
    leaves: list[Any] = []
    for kind, value in zip(kinds, values):
        leaves += _leaves(kind, value) if isinstance(kind, (tuple, list)) else [value]
    return leaves
