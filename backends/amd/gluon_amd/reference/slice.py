"""Parts of a tensor in registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.plugin.reference import Machine

__all__ = [
    "extract_slice",
]


def extract_slice(machine: Machine, type: Any, source: np.ndarray, offsets: Any) -> np.ndarray:
    """Return the part of a tensor of the result's shape that starts at `offsets`."""
    full = np.broadcast_to(source, (source.shape[0], *machine.operand_types()[0].dims))
    cut = (slice(None), *(slice(o, o + n) for o, n in zip(offsets, type.dims)))
    return full[cut]
