"""Barriers in LDS (gfx1250)."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np

from gluon_core.plugin.reference import Machine, SharedBuffer, returns

__all__ = [
    "lds_barrier_arrive",
    "lds_barrier_init",
    "lds_barrier_wait",
]


def lds_barrier_init(machine: Machine, barrier: SharedBuffer, count: int) -> None:
    machine.barrier_init(barrier, count)


@returns(lambda barrier, count: "i32")
def lds_barrier_arrive(machine: Machine, barrier: SharedBuffer, count: int) -> np.ndarray:
    """Arrive `count` times for each lane; return the parity of the phase before."""
    before = machine.barrier_phase(barrier)
    machine.barrier_arrive(barrier, machine.num_warps * machine.target.warp_size * count)
    return before


def lds_barrier_wait(machine: Machine, barrier: SharedBuffer, phase: np.ndarray) -> Iterator[Any]:
    yield from machine.barrier_wait(barrier, phase)
