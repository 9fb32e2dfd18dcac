"""Match the launches that a text describes with warps."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = ["Runs", "Warps"]

_WARP = 32


class Warps(Protocol):
    """Values by warps: arrays whose last axis is the lanes of a warp."""

    def apart(self, value: np.ndarray) -> np.ndarray: ...
    def together(self, value: np.ndarray) -> np.ndarray: ...


class Runs:
    """The runs of a frame, by warp: arrays (programs or 1, warps and their runs, lanes)."""

    def __init__(self, frame: Any):
        self.frame = frame
        threads = frame.threads()[0]
        self.count = threads.size
        self.each = int(np.argmax(threads != threads[0]))  # runs that a thread makes

    def apart(self, value: np.ndarray) -> np.ndarray:
        programs = value.shape[0]
        full = np.broadcast_to(value, (programs, self.count))
        lanes = full.reshape(programs, -1, _WARP, self.each).swapaxes(2, 3)
        return np.asarray(lanes.reshape(programs, -1, _WARP))

    def together(self, value: np.ndarray) -> np.ndarray:
        programs = value.shape[0]
        threads = value.reshape(programs, -1, self.each, _WARP).swapaxes(2, 3)
        return np.asarray(threads.reshape(programs, self.count))
