"""Reasons for which a search ends, or begins again."""

from __future__ import annotations

from typing import Optional

from gluon_sim.tracing.ir import Location

__all__ = ["Found", "Overtaken", "Waited", "Widened"]


class Found(Exception):
    """A mistake in an abstract run.

    Args:
        report: the name the simulator has for it.
    """

    def __init__(self, report: str, text: str, loc: Optional[Location]):
        super().__init__(text)
        self.report = report
        self.text = text
        self.loc = loc


class Waited(Exception):
    """A queue is waited for that was thought not to be: begin again."""

    def __init__(self, queue: str):
        super().__init__(queue)
        self.queue = queue


class Widened(Exception):
    """A barrier has more writers than were known: begin again."""


class Overtaken(Exception):
    """A barrier's phase comes again before somebody has seen it: begin again, with all schedules."""
