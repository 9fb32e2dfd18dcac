"""Choose the place of a kernel's test: the target of its launches, and the arrays that it works on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional

from gluon_core.errors import CapabilityError, DeviceError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Place", "place"]


@dataclass(frozen=True)
class Place:
    """Hold the place where a kernel is tried.

    Args:
        target: a `gluon_core.plugin.targets.Target`, for `target=` of launches.
        device: the torch device of its tensors, `cpu` for the simulator.
    """

    target: Any
    device: str

    @property
    def simulated(self) -> bool:
        return bool(self.target.simulated)

    def array(self, values: Any) -> Any:
        """Return a copy of a NumPy array that kernels can work on here: NumPy on the simulator, else
        torch. The narrow floats of ml_dtypes become those of torch."""
        import numpy

        values = numpy.ascontiguousarray(values).copy()
        if self.device == "cpu":
            return values
        import torch

        kind = getattr(torch, values.dtype.name)
        if values.dtype.isbuiltin != 1:  # of ml_dtypes
            values = values.view(f"i{values.itemsize}")
        return torch.from_numpy(values).to(self.device).view(kind)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an array for results, filled with zero."""
        import numpy

        return self.array(numpy.zeros(shape, dtype))

    def numpy(self, values: Any) -> Any:
        """Return the content of `array`'s result as NumPy; wait for the device."""
        if not hasattr(values, "cpu"):
            return values
        try:
            return values.cpu().numpy()
        except TypeError:  # NumPy has no such type
            return values.cpu().float().numpy()


def place(*capabilities: str) -> Place:
    """Return the place for kernels that need `capabilities`, such as "nvidia.wgmma".

    The target is `GLUON_TARGET` where that is set; else the GPU of this machine, if it has the capabilities; else the
    simulator, as the first architecture that has them.

    Raises:
        CapabilityError: `GLUON_TARGET` lacks one of them, or every architecture does.
        DeviceError: `GLUON_TARGET` is a GPU that is not in this machine.
        TargetError: `GLUON_TARGET` is unknown.
    """
    known = registry()
    target = known.target(None)
    simulator = known.simulator()
    chosen: Optional[Target] = None
    if not _missing(target, capabilities):
        chosen = target
    elif simulator is not None and not os.environ.get("GLUON_TARGET"):
        every = (Target(simulator.name, architecture) for architecture in known.architectures())
        chosen = next((other for other in every if not _missing(other, capabilities)), None)
    if chosen is None:
        raise CapabilityError(f"{target} has no {', '.join(_missing(target, capabilities))}")
    backend = known.backend(chosen.backend)
    if not backend.simulates and known.device_of(backend) != chosen:
        raise DeviceError(
            f"there is no {chosen} on this machine",
            remedy=f"Try sim:{chosen.architecture.name}." if simulator is not None else None,
        )
    device = None if backend.simulates else backend.device.tensor_device
    return Place(chosen, device or "cpu")


def _missing(target: Target, capabilities: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in capabilities if not target.has(name))
