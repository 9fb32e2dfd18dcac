"""What host code asks of the device that holds a tensor."""

from __future__ import annotations

import sys
from typing import Any, Optional

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
    if torch is None or not isinstance(x, torch.Tensor) or not x.is_cuda:
        return None
    count: int = torch.cuda.get_device_properties(x.device).multi_processor_count
    return count
