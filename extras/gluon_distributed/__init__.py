"""Kernels across devices: tensors that every rank of a group can reach, and signals between ranks.

    from gluon_core import distributed

    group = distributed.group()              # of torch.distributed's process group
    x = group.empty((n,), torch.bfloat16)    # symmetric: one on each rank, all reachable
    kernel[grid](x, ...)                     # the kernel gets the pointers to all of them

`distributed.simulate(body, world=4)` runs the host code of four ranks on a CPU, and their kernels
concurrently in the simulator, which reports accesses without an order between ranks.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_distributed.process_group import Group
    from gluon_distributed.simulated import simulate
    from gluon_distributed.symmetric_memory import Multicast, Symmetric
    from gluon_distributed.with_torch import group, symmetric

__all__ = ["Group", "Multicast", "Symmetric", "group", "simulate", "symmetric"]

_MODULES = {
    "Group": "process_group",
    "Multicast": "symmetric_memory",
    "Symmetric": "symmetric_memory",
    "group": "with_torch",
    "simulate": "simulated",
    "symmetric": "with_torch",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
