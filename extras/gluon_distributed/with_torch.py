"""Ranks that are processes: torch's process groups and its symmetric memory, imported on demand."""

from __future__ import annotations

import operator
import os
import weakref
from typing import Any, Sequence, Union

from gluon_core.errors import ArgumentError, RankMismatchError
from gluon_distributed.errors import GroupError, NotSymmetricError, SymmetricMemoryError
from gluon_distributed.process_group import Group, SideStream
from gluon_distributed.symmetric_memory import Multicast, Symmetric

__all__ = ["group", "symmetric"]

_groups: dict[str, "_TorchGroup"] = {}


def group(process_group: Any = None) -> Group:
    """Return the ranks of one of torch's process groups.

    Args:
        process_group: a `torch.distributed.ProcessGroup`, or its name; the default group if None.

    Raises:
        GroupError: torch.distributed is not initialized, there is no such group, this rank is none
            of it, or it has more ranks than were started.
        SymmetricMemoryError: torch has no symmetric memory.
    """
    name, handle = _find(process_group)
    known = _groups.get(name)
    if known is None or known.made_of() is not handle:
        known = _groups[name] = _TorchGroup(name, handle)
    return known


def symmetric(tensor: Any, process_group: Any = None) -> Symmetric:
    """Return the kernel arguments of a tensor of `torch.distributed._symmetric_memory.empty`. All ranks call it.

    Args:
        tensor: contiguous; a slice of a symmetric tensor, at the same place on all ranks, is one.

    Raises:
        NotSymmetricError: it is not in symmetric memory.
        GroupError, SymmetricMemoryError: as `group`.
    """
    return group(process_group).symmetric(tensor)


def _torch() -> Any:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise SymmetricMemoryError(
            "torch is not installed", remedy="Install it, or simulate ranks."
        ) from error
    if not dist.is_available():
        raise SymmetricMemoryError("this torch is built without torch.distributed")
    return torch


def _memory() -> Any:
    torch = _torch()
    try:
        import torch.distributed._symmetric_memory as symmetric

        operator.attrgetter("rendezvous", "empty")(symmetric)
    except (ImportError, AttributeError) as error:
        raise SymmetricMemoryError(
            "this torch has no symmetric memory",
            expected="torch 2.6 or newer, built for the GPUs that are here",
            got=torch.__version__,
        ) from error
    return symmetric


def _devices() -> Any:
    """Return torch's module for the device here: streams, the current one, waiting."""
    torch = _torch()
    if not torch.accelerator.is_available():
        raise SymmetricMemoryError(
            "there is no GPU here", remedy="Simulate ranks with gluon_core.distributed.simulate."
        )
    return torch.get_device_module(torch.accelerator.current_accelerator())


def _find(wanted: Any) -> tuple[str, Any]:
    torch = _torch()
    dist = torch.distributed
    if not dist.is_initialized():
        raise GroupError(
            "torch.distributed is not initialized",
            remedy="Call torch.distributed.init_process_group first, or simulate ranks with "
            "gluon_core.distributed.simulate.",
        )
    if wanted is None:
        wanted = dist.group.WORLD
    if isinstance(wanted, str):
        try:
            wanted = torch.distributed.distributed_c10d._resolve_process_group(wanted)
        except Exception as error:
            raise GroupError("unknown group", argument="process_group", got=wanted) from error
    if wanted == dist.GroupMember.NON_GROUP_MEMBER or not isinstance(wanted, dist.ProcessGroup):
        none = wanted == dist.GroupMember.NON_GROUP_MEMBER
        raise GroupError(
            f"rank {dist.get_rank()} is not part of the group" if none else "not a group of ranks",
            argument="process_group",
            expected="a group that this rank is in" if none else "a torch.distributed.ProcessGroup",
            got=None if none else type(wanted).__name__,
        )
    return wanted.group_name, wanted


class _TorchGroup(Group):
    def __init__(self, name: str, handle: Any):
        # A group that torch destroys ends then: its threads would wait for an interpreter that is gone.
        self.name, self.made_of = name, weakref.ref(handle)
        self.rank, self.world = handle.rank(), handle.size()
        started = os.environ.get("WORLD_SIZE")
        if started and started.isdigit() and self.world > int(started):
            raise GroupError(
                "the group has more ranks than were started",
                expected=f"at most {started} (WORLD_SIZE)",
                got=self.world,
            )
        self._stream: Any = None

    @property
    def handle(self) -> Any:
        """torch's group.

        Raises:
            GroupError: it was destroyed.
        """
        handle = self.made_of()
        if handle is None:
            raise GroupError(
                f"the process group {self.name} was destroyed",
                remedy="Ask for the group again after torch.distributed.init_process_group.",
            )
        return handle

    @property
    def device(self) -> Any:
        """Return the current device of this rank."""
        torch, index = _torch(), _devices().current_device()
        return torch.device(torch.accelerator.current_accelerator().type, index)

    def gather(self, value: Any, reason: str = "gather") -> list[Any]:
        values: list[Any] = [None] * self.world
        _torch().distributed.all_gather_object(values, (reason, value), group=self.handle)
        for rank, (other, _) in enumerate(values):
            if other != reason:
                raise RankMismatchError(
                    "ranks meet for different reasons",
                    expected=f"`{reason}`, as on rank {self.rank}",
                    got=f"`{other}` on rank {rank}",
                    remedy="Every rank makes the same collective calls in the same order.",
                )
        return [value for _, value in values]

    def barrier(self) -> None:
        if _torch().accelerator.is_available():
            _devices().synchronize()
        self.gather(None, "barrier")

    def side_stream(self) -> SideStream:
        if self._stream is None:
            self._stream = _devices().Stream()
        return _SideStream(self._stream)

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any) -> Symmetric:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        memory = _memory()
        torch = _torch()
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError("not a type of torch", argument="dtype", got=dtype)
        self.agree("empty", (sizes, str(dtype)))
        try:
            tensor = memory.empty(*sizes, dtype=dtype, device=self.device)
        except RuntimeError as error:
            raise SymmetricMemoryError(
                f"the devices of this group have no symmetric memory: {_first(error)}"
            ) from error
        return self.symmetric(tensor)

    def symmetric(self, tensor: Any) -> Symmetric:
        memory, torch = _memory(), _torch()
        if not isinstance(tensor, torch.Tensor):
            raise NotSymmetricError(
                "not a tensor of torch", argument="tensor", got=type(tensor).__name__
            )
        if not tensor.is_contiguous():
            raise NotSymmetricError(
                "the tensor is not contiguous", argument="tensor", got=f"strides {tensor.stride()}"
            )
        try:
            whole = memory.rendezvous(tensor, self.handle)
        except (RuntimeError, TypeError) as error:
            raise NotSymmetricError(
                f"the tensor is not in symmetric memory: {_first(error)}",
                argument="tensor",
                remedy="Make it with group.empty(shape, dtype), or with "
                "torch.distributed._symmetric_memory.empty.",
            ) from error
        if whole is None:
            raise NotSymmetricError(
                "the tensor is not in symmetric memory",
                argument="tensor",
                remedy="Make it with group.empty(shape, dtype).",
            )
        if whole.world_size != self.world or whole.rank != self.rank:
            raise GroupError(
                "the tensor was made symmetric for another group",
                argument="tensor",
                expected=f"rank {self.rank} of {self.world}",
                got=f"rank {whole.rank} of {whole.world_size}",
            )
        shape = tuple(tensor.shape)
        first = _place(whole, tensor, shape, self.rank)
        peers = [
            tensor if r == self.rank else whole.get_buffer(r, shape, tensor.dtype, first)
            for r in range(self.world)
        ]
        words = whole.signal_pad_size // 4
        signals = [whole.get_signal_pad(r, (words,), torch.int32) for r in range(self.world)]
        shared = Symmetric(tuple(peers), tuple(signals), self.rank)
        shared.handle = whole  # type: ignore[attr-defined]  # keeps the mapping of the others' memory
        return shared

    def multicast(self, x: Symmetric) -> Multicast:
        whole = getattr(x, "handle", None)
        base = int(getattr(whole, "multicast_ptr", 0) or 0)
        if not base:
            raise SymmetricMemoryError(
                "the devices of this group have no multicast, or it is turned off",
                remedy="Reach each copy through x.peers instead.",
            )
        first = x.local.data_ptr() - int(whole.buffer_ptrs[x.rank])  # type: ignore[union-attr]
        return Multicast(_Address(base + first, x.local), x.peers)


class _Address:
    """An address that a launch takes for a pointer to elements like those of a tensor."""

    def __init__(self, address: int, like: Any):
        self._address = address
        self.dtype, self.device = like.dtype, like.device

    def data_ptr(self) -> int:
        return self._address


class _SideStream(SideStream):
    def __init__(self, stream: Any):
        self._stream = stream
        self._scope = _devices().stream(stream)

    def __enter__(self) -> SideStream:
        self._stream.wait_stream(_devices().current_stream())
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)

    def join(self) -> None:
        _devices().current_stream().wait_stream(self._stream)


def _place(whole: Any, tensor: Any, shape: tuple[int, ...], rank: int) -> int:
    """Return the start of a tensor in its rank's memory, in elements as `get_buffer` counts them: from the
    start of the allocation, or in some releases from where the tensor begins that made it."""
    distance = tensor.data_ptr() - int(whole.buffer_ptrs[rank])
    for first in (distance // tensor.element_size(), 0):
        try:
            buffer = whole.get_buffer(rank, shape, tensor.dtype, first)
        except RuntimeError:
            continue
        if buffer.data_ptr() == tensor.data_ptr():
            return first
    raise NotSymmetricError(
        "the tensor is not within the memory that was made symmetric", argument="tensor"
    )


def _first(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
