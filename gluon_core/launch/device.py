"""Facts of devices that host code asks for."""

from __future__ import annotations

import sys
from typing import Any, Optional

from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["device_target", "multiprocessors"]


def device_target() -> Optional[Target]:
    """Return the target of the device that is plugged in and that torch can put tensors on, None without one."""
    for backend in registry().backends.values():
        target = None if backend.simulates else backend.device.target()
        if target is not None:
            try:
                import torch

                torch.empty(1, device=backend.device.tensor_device)
            except (ImportError, RuntimeError, AssertionError):
                continue
            return target
    return None


def multiprocessors(x: Any) -> Optional[int]:
    """Return the number of multiprocessors (compute units) of the device that holds `x`, None for an array in
    host memory, where kernels are simulated. The grid of a persistent kernel is made of it.

        programs = gluon.multiprocessors(x) or 3
        kernel[(min(tiles, programs),)](x, ...)

    Args:
        x: a tensor of torch, or an array.
    """
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    kinds = {backend.device.tensor_device for backend in registry().backends.values()}
    for kind in kinds - {None, "cpu"}:
        if getattr(x, f"is_{kind}", False):
            known = getattr(torch, str(kind)).get_device_properties(x.device)
            count: int = known.multi_processor_count
            return count
    return None
