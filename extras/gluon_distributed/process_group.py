"""Ranks that hold symmetric memory together: the interface for host code."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from hashlib import blake2b
from importlib import metadata
from typing import Any, Sequence, Union

from gluon_core.errors import RankMismatchError
from gluon_core.plugin.hookspec import ENTRY_POINTS
from gluon_distributed.errors import RankBuildError
from gluon_distributed.symmetric_memory import Multicast, Symmetric

__all__ = ["Group", "SideStream"]


class SideStream(ABC):
    """A stream of launches that are concurrent with others; see `Group.side_stream`."""

    @abstractmethod
    def __enter__(self) -> SideStream: ...

    @abstractmethod
    def __exit__(self, *error: Any) -> None: ...

    @abstractmethod
    def join(self) -> None:
        """Make later launches of this rank wait for those of the side stream."""


class Group(ABC):
    """Several ranks, as one of them sees them. Every rank makes the same calls in the same order.

    Attributes:
        rank: of this one, from 0 on.
        world: how many there are.
        device: where tensors are made: torch's name, or "cpu".
    """

    rank: int
    world: int
    device: Any

    @abstractmethod
    def gather(self, value: Any, reason: str = "gather") -> list[Any]:
        """Return the values of all ranks, in their order. Values are pickled between processes.

        Args:
            reason: the reason, for errors.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks have come, each with the kernels over that it launched."""

    @abstractmethod
    def empty(self, shape: Union[int, Sequence[int]], dtype: Any) -> Symmetric:
        """Return a symmetric tensor, on every rank of the same shape and dtype; its signals are 0.

        Args:
            shape: of each rank's copy.
            dtype: of torch; simulated ranks take NumPy's, too, and then make arrays.

        Raises:
            RankMismatchError: ranks ask for different ones.
            SymmetricMemoryError: torch or the devices cannot.
        """

    @abstractmethod
    def symmetric(self, tensor: Any) -> Symmetric:
        """Return the kernel arguments of a tensor that `empty`, or torch, made symmetric.

        Raises:
            NotSymmetricError: it is not in symmetric memory.
        """

    @abstractmethod
    def multicast(self, x: Symmetric) -> Multicast:
        """Return the multicast address, which accesses all ranks' copies of `x` at once.

        Raises:
            SymmetricMemoryError: the devices have no multicast, or it is turned off.
        """

    @abstractmethod
    def side_stream(self) -> SideStream:
        """Return a side stream: launches inside `with` are concurrent with this rank's next ones.

            with group.side_stream() as copies:
                bring[grid](x)
            multiply[grid](x)     # at the same time
            copies.join()         # later launches wait for both

        They follow the launches before them.
        """

    def zeros(self, shape: Union[int, Sequence[int]], dtype: Any) -> Symmetric:
        """As `empty`, filled with zeros on all ranks when it returns."""
        symmetric = self.empty(shape, dtype)
        symmetric.local[...] = 0
        self.barrier()
        return symmetric

    def check(self, *kernels: Any) -> None:
        """Make sure that all ranks run the same releases, and the same source of `kernels`.

        Raises:
            RankBuildError: they do not; the message names the differences, and the ranks.
        """
        releases = self.gather({**_releases(), **{_name(k): _source(k) for k in kernels}}, "check")
        for part in {name: None for one in releases for name in one}:
            values = [one.get(part, "nothing") for one in releases]
            if len(set(values)) > 1:
                other = next(r for r, value in enumerate(values) if value != values[0])
                raise RankBuildError(
                    "ranks are of different builds",
                    argument=part,
                    expected=f"{values[0]}, as on rank 0",
                    got=f"{values[other]} on rank {other}",
                    remedy="Run one installation and one checkout on all ranks.",
                )

    def agree(self, name: str, value: Any) -> Any:
        """Return `value`, which all ranks must bring alike.

        Raises:
            RankMismatchError: one brings another.
        """
        values = self.gather(value, name)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise RankMismatchError(
                    "ranks bring different values",
                    argument=name,
                    expected=f"{values[0]}, as on rank 0",
                    got=f"{other} on rank {rank}",
                )
        return value


def _releases() -> dict[str, str]:
    """Return the releases that make code here: the core, its dependencies, and the plugins."""
    releases = {}
    plugins = {p.dist.name for p in metadata.entry_points(group=ENTRY_POINTS) if p.dist}
    for name in ("gluon-core", "triton", "torch", *sorted(plugins)):
        try:
            releases[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            releases[name] = "not installed"
    return releases


def _name(kernel: Any) -> str:
    return f"kernel {getattr(kernel, '__name__', kernel)}"


def _source(kernel: Any) -> str:
    """Return a short digest of the kernel's source and of its callees, where it is known."""
    key = getattr(kernel, "cache_key", None)
    text = key if isinstance(key, str) else inspect.getsource(getattr(kernel, "fn", kernel))
    return blake2b(text.encode(), digest_size=6).hexdigest()
