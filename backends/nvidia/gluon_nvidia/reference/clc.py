"""Cluster launch control (sm_100), PTX ISA 9.7.13.17 and 9.7.13.18.

The layout of an answer in memory is the hardware's own business. Here its first integer is x and
y of the program, the second z and, in bit 62, whether there was one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer, returns
from gluon_nvidia.reference.proxy import ASYNC, before_write

__all__ = ["clc_get_program_id", "clc_is_canceled", "clc_load_result", "clc_try_cancel"]

_BYTES = 16
_CANCELED = 1 << 62
_ANSWER = np.dtype([("low", np.int64), ("high", np.int64)])


@returns(claims=True)
def clc_try_cancel(machine: Machine, result: SharedBuffer, barrier: SharedBuffer) -> None:
    """Asks for a program that has not started; the answer comes later, through the other proxy."""

    def perform() -> None:
        claimed = machine.claim()
        x, y, z = (0, 0, 0) if claimed is None else claimed
        flag = 0 if claimed is None else _CANCELED
        answer = np.array([[x | y << 32, z | flag]], np.int64)
        machine.store_shared(result, answer)

    before_write(machine, result)
    machine.issue(
        "clc",
        perform,
        lambda: machine.barrier_complete(barrier, _BYTES),
        barrier=barrier,
        proxy=ASYNC,
    )


@returns(lambda src: "i128")
def clc_load_result(machine: Machine, src: SharedBuffer) -> np.ndarray:
    words = machine.load_shared(src)
    answer = np.empty(len(words), _ANSWER)
    answer["low"], answer["high"] = words[:, 0], words[:, 1]
    return answer


@returns(lambda result: "i1")
def clc_is_canceled(result: np.ndarray) -> np.ndarray:
    canceled: np.ndarray = (result["high"] & _CANCELED) != 0
    return canceled


@returns(lambda result, dim: "i32")
def clc_get_program_id(result: np.ndarray, dim: Any) -> np.ndarray:
    """Undefined where nothing was canceled: here -1, which is no program."""
    x_y, z = result["low"], result["high"]
    part = (x_y & 0xFFFFFFFF, x_y >> 32, z & 0xFFFFFFFF)[int(dim)]
    return np.where(clc_is_canceled(result), part, -1).astype(np.int32)
