"""Ranks without devices: host code side by side in one process, kernels in one simulation."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar, Union, cast

from gluon_core.errors import ArgumentError, CapabilityError
from gluon_core.plugin.paths import load_path
from gluon_core.registry.load import registry
from gluon_core.simulation.ranks import RankHost, Ranks
from gluon_core.simulation.unwritten import uninitialised
from gluon_distributed.errors import NotSymmetricError
from gluon_distributed.process_group import Group, SideStream
from gluon_distributed.symmetric_memory import Multicast, Symmetric

__all__ = ["SIGNALS", "simulate"]

T = TypeVar("T")

SIGNALS = 512  # 32-bit words of a signal pad, as in torch


def simulate(body: Callable[[Group], T], world: int, target: Optional[str] = None) -> list[T]:
    """Run `body(group)` once for each of `world` ranks, and all that they launch in one simulation.

    Each rank has memory of its own; kernels reach that of others through symmetric tensors alone. A
    host goes on when its launches are over, while kernels of other ranks may still run. Races,
    waits that never end, and atomics whose scope ends at their device are errors that name the
    ranks.

    Args:
        world: at least 1.
        target: a simulated one, such as "sim:hopper"; by default `GLUON_TARGET`, or the one that CPU
            tensors run on.

    Returns:
        The result of each rank's call.

    Raises:
        ArgumentError: `world` is no positive number.
        CapabilityError: the target cannot simulate ranks.
        RankMismatchError: ranks make different collective calls.
    """
    if not isinstance(world, int) or isinstance(world, bool) or world < 1:
        raise ArgumentError(
            "not a number of ranks", argument="world", expected="1 or more", got=world
        )
    known = registry()
    wanted = target or os.environ.get("GLUON_TARGET") or None
    backend = known.backend(known.target(wanted).backend) if wanted else known.simulator()
    if backend is None or backend.simulation.ranks is None:
        simulator = known.simulator()
        such = simulator and f"{simulator.name}:{known.default_architecture().name}"
        raise CapabilityError(
            "this target cannot simulate several ranks",
            got=wanted or "no simulator is installed",
            remedy=f'Name a simulated one, such as target="{such}".'
            if such
            else "Install a simulator.",
        )
    run = cast(Ranks, load_path(backend.simulation.ranks))
    with _target(wanted):
        return run([lambda host: body(_Simulated(host))] * world)


@contextmanager
def _target(wanted: Optional[str]) -> Iterator[None]:
    """Send launches inside to this target, unless they name another."""
    before = os.environ.get("GLUON_TARGET")
    if wanted is not None:
        os.environ["GLUON_TARGET"] = wanted
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("GLUON_TARGET", None)
        else:
            os.environ["GLUON_TARGET"] = before


class _Simulated(Group):
    device = "cpu"

    def __init__(self, host: RankHost):
        self.rank, self.world = host.number, host.world
        self._host = host
        self._known: dict[int, Symmetric] = {}  # by address

    def gather(self, value: Any, reason: str = "gather") -> list[Any]:
        return self._host.meet(reason, value)

    def barrier(self) -> None:
        self._host.meet("barrier")

    def side_stream(self) -> SideStream:
        return _SideStream(self._host)

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any) -> Symmetric:
        import numpy as np

        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self.agree("empty", (sizes, str(dtype)))
        signals: Any
        if type(dtype).__module__ == "torch":
            import torch

            tensor, signals = (
                torch.empty(sizes, dtype=dtype),
                torch.zeros(SIGNALS, dtype=torch.int32),
            )
        else:
            tensor, signals = np.empty(sizes, dtype), np.zeros(SIGNALS, np.int32)
        self._host.share("symmetric memory", tensor)
        self._host.share("signals", signals, pad=True)
        copies = self._host.meet("share", (tensor, signals))
        memory = Symmetric(tuple(t for t, _ in copies), tuple(s for _, s in copies), self.rank)
        self._known[_address(tensor)] = memory
        return memory

    def symmetric(self, tensor: Any) -> Symmetric:
        memory = self._known.get(_address(tensor))
        if memory is None:
            raise NotSymmetricError(
                "the tensor is not in symmetric memory",
                argument="tensor",
                remedy="Make it with group.empty(shape, dtype).",
            )
        return memory

    def multicast(self, x: Symmetric) -> Multicast:
        # An address alone: an ordinary load there reads values that nobody wrote.
        address = x.local.clone() if hasattr(x.local, "clone") else x.local.copy()
        return Multicast(uninitialised(address), x.peers)


class _SideStream(SideStream):
    def __init__(self, host: RankHost):
        self._host = host

    def __enter__(self) -> SideStream:
        self._lane = self._host.side_stream()
        return self

    def __exit__(self, *error: Any) -> None:
        self._host.back()

    def join(self) -> None:
        self._host.join(self._lane)


def _address(tensor: Any) -> int:
    pointer = getattr(tensor, "data_ptr", None)
    return int(tensor.ctypes.data if pointer is None else pointer())
