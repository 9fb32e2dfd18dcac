"""What host code asks of the device that holds a tensor."""

from __future__ import annotations

import sys
from typing import Any, Optional

from gluon_core.registry.load import registry

__all__ = ["multiprocessors"]


def multiprocessors(x: Any) -> Optional[int]:
    """How many multiprocessors (compute units) the device that holds `x` has, or None for an array in
    host memory, where kernels are simulated: what the grid of a persistent kernel is made of.

        programs = gluon.multiprocessors(x) or 3
        kernel[(min(tiles, programs),)](x, ...)

    Args:
        x: a tensor of torch, or an array.
    """
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    for kind in {backend.device.tensor_device for backend in registry().backends.values()} - {
        None,
        "cpu",
    }:
        if getattr(x, f"is_{kind}", False):
            known = getattr(torch, str(kind)).get_device_properties(x.device)
            count: int = known.multi_processor_count
            return count
    return None
