"""Every mistake about kernels across devices that the core does not know, one class each."""

from __future__ import annotations

from gluon_core.errors import DistributedError, RankMismatchError

__all__ = [
    "GroupError",
    "NotSymmetricError",
    "RankBuildError",
    "SymmetricMemoryError",
]


class GroupError(DistributedError, ValueError):
    """There is no such group of ranks, or this rank is none of it."""


class NotSymmetricError(DistributedError, ValueError):
    """A tensor is not in memory that the other ranks can reach."""


class SymmetricMemoryError(DistributedError, RuntimeError):
    """The installed torch, or these devices, have no symmetric memory."""


class RankBuildError(RankMismatchError):
    """Ranks run different releases, or different source."""
