"""Several ranks in one simulation: the interface between a simulator and `gluon_distributed`."""

from __future__ import annotations

from typing import Any, Callable, Protocol, Sequence

__all__ = ["RankHost", "Ranks"]


class RankHost(Protocol):
    """One of several simulated ranks, to its host code.

    Attributes:
        number: of it, from 0 on.
        world: how many there are.
    """

    @property
    def number(self) -> int: ...
    @property
    def world(self) -> int: ...

    def meet(self, event: str, value: Any = None) -> list[Any]:
        """Wait until all ranks have come for `event`; return the value of each, in their order.

        Raises:
            RankMismatchError: another rank comes for something else.
        """

    def share(self, name: str, value: Any, pad: bool = False) -> None:
        """Let the kernels of all ranks reach the storage of a tensor or array of this one.

        Args:
            pad: it holds signals, which must all be 0 when the ranks are through.
        """

    def side_stream(self) -> int:
        """Start a lane: until `back`, launches are concurrent with this rank's others, and follow the
        earlier ones. Return the number of the lane."""

    def back(self) -> None:
        """End the lane."""

    def join(self, lane: int) -> None:
        """Order all later work of this rank after the launches of `lane`."""


class Ranks(Protocol):
    """Run the host code of several ranks at once, their kernels in one simulation."""

    def __call__(self, bodies: Sequence[Callable[[RankHost], Any]]) -> list[Any]:
        """Run the host code of each rank and return the results.

        Raises:
            RankMismatchError: ranks meet for different reasons.
        """
