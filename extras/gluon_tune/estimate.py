"""Estimate the time of a launch from the simulator's counts and from the resources of its code."""

from __future__ import annotations

from math import ceil
from typing import Any, Mapping

__all__ = ["estimate"]

_LATENCY = 600e-9  # seconds of a load from global memory on an idle device; all of them are close
_CLOCK = 1.5e9  # where the peaks do not tell it
_INSTRUCTIONS = 3  # for each request of a warp: its address, its mask, the access
_ISSUED = 4  # instructions that a multiprocessor starts per clock


def estimate(
    counted: Mapping[str, Any], code: Mapping[str, Any], peaks: Mapping[str, float]
) -> float:
    """Estimate the seconds of one launch: its roofline, the latency that its warps do not hide, and its requests.

    The roofline alone is the same for all vector widths and occupancies. Loads of one program are
    taken to wait for each other, those of resident programs to overlap. It compares configurations
    of one kernel; it is no prediction of a measurement.

    Args:
        counted: `seconds`, `programs`, `loads` and `requests`, as `bench.roofline` returns them.
        code: `occupancy` and `num_warps` of the compiled kernel.
        peaks: `Architecture.peaks`.
    """
    seconds = float(counted["seconds"])
    units, programs = peaks.get("units"), counted["programs"]
    if not units or not programs:
        return seconds
    resident = max(1, (code.get("occupancy") or 0) // max(1, code["num_warps"]))
    waves = ceil(programs / (units * resident))
    waiting: float = waves * counted["loads"] / programs * _LATENCY
    clock = peaks["shared"] / (128 * units) if "shared" in peaks else _CLOCK
    issuing: float = counted["requests"] * _INSTRUCTIONS / (_ISSUED * units * clock)
    return max(seconds, waiting) + issuing
