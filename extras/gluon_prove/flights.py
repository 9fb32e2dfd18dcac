"""Asynchronous work during model checking."""

from __future__ import annotations

from typing import NamedTuple

from gluon_prove.events import Barrier

__all__ = ["Flight"]


class Flight(NamedTuple):
    """Work in flight, or over and not yet known to who issued it.

    Args:
        behind: groups closed since its own began.
        signals: its outstanding effects on barriers.
        bit: its place among those who know.
        mark: how many waits its task had passed, of those in `World.loose`, when it was issued.
    """

    task: int
    queue: str
    serial: int
    behind: int
    after: bool
    reads: bool
    signals: tuple[Barrier, ...]
    bit: int
    line: int
    mark: int = 0
