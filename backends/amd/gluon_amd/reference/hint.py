"""Hints to the scheduler: no meaning."""

from __future__ import annotations

from typing import Any

from gluon_core.plugin.reference import Machine

__all__ = [
    "amd_sched_barrier",
    "warp_pipeline_border",
]


def amd_sched_barrier(machine: Machine, mask: int) -> None:
    """Keep the compiler's scheduler from moving instructions."""


def warp_pipeline_border(machine: Machine, *marks: Any) -> None:
    """Mark a stage of a software pipeline."""
