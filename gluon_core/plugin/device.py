"""The facet of devices: finding them, and launching on them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Mapping, Optional

from gluon_core.errors import LimitError
from gluon_core.plugin.paths import Words
from gluon_core.plugin.targets import Target

if TYPE_CHECKING:
    from gluon_core.plugin.launcher import Compiled, Launcher

__all__ = ["Device"]


def _no_stream(index: int) -> int:
    return 0


class Device:
    """The facet of a vendor's devices. This class itself finds none; `target` and `launcher` make one.

    Attributes:
        tensor_device: the torch device type of the tensors that kernels take, such as `cpu`.
    """

    tensor_device: Optional[Words] = None

    def target(self, index: int = 0) -> Optional[Target]:
        """Return the target of device `index`, None where there is no such device. Never raises."""
        return None

    def problem(self) -> Optional[str]:
        """Return the reason why `target()` is None although the vendor's hardware may be present, or None."""
        return None

    def count(self) -> int:
        """Return the number of this vendor's devices."""
        return 1

    def current(self) -> int:
        """Return the index of the device that a launch goes to when no argument says otherwise."""
        return 0

    def scope(self, index: int) -> ContextManager[Any]:
        """Make device `index` the current one."""
        return nullcontext()

    def stream_getter(self) -> Callable[[int], int]:
        """Return a function from a device's index to its current stream, as cheap as possible."""
        return _no_stream

    def launcher(self, compiled: Compiled) -> Launcher:
        """Load `compiled` and return its launch.

        Called once per device, with that device current.

        Raises:
            CapabilityError: this backend cannot launch.
            DeviceError: there is no device.
            LaunchError: the driver refused to load the kernel.
            LimitError: the kernel needs more than the device has.
        """
        raise compiled.target.lacks("launcher")

    @staticmethod
    def check_shared(compiled: Compiled, most: int) -> None:
        """Raise LimitError unless the kernel's shared memory is at most `most` bytes, those of the device."""
        if compiled.metadata.shared > most:
            raise LimitError(
                "the kernel needs more shared memory than the device has",
                argument=compiled.name,
                expected=f"at most {most} bytes",
                got=f"{compiled.metadata.shared} bytes",
                remedy="Use smaller blocks, fewer stages or buffers, or a narrower dtype.",
            )

    def torch_properties(self, target: Target) -> Mapping[str, Any]:
        """Return torch's `get_device_properties` of such a device, for stand-ins of it.

        `name`, `major` and `minor` (the device capability), `multi_processor_count`,
        `total_memory` (bytes) and the vendor's own; `version` holds attributes of
        `torch.version`, by which host code tells vendors apart.
        """
        return {}
