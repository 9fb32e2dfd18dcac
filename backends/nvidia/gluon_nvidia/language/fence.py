"""Fences between the proxies through which memory is accessed (sm_90)."""

from __future__ import annotations

from gluon_core.plugin.ops import (
    builtin,
    semantic_layer,
)
from gluon_core.plugin.typing import Const

__all__ = ["fence_async_shared"]


@builtin(requires=("nvidia.fence_async",), name="gl.nvidia.hopper.fence_async_shared")
def fence_async_shared(cluster: Const[bool] = False) -> None:
    """Make earlier writes to shared memory visible to units that read it on their own: TMA,
    `warpgroup_mma`, `tcgen05_mma`.

    Needed between ordinary stores to shared memory and such an operation that reads them or writes
    over them. After ordinary loads, before an operation that writes over what they read, the
    letter of PTX 8.9.5 (causality order) asks for one too; hardware and code in use do without,
    once a barrier says that the loads are over (the simulator asks under `proxy="strict"`). Compilers
    add the fence for accesses by the partition that issues the operation, from Triton 3.7 on before
    reads, too; no compiler adds it for accesses by other partitions.

    Args:
        cluster: compile-time boolean; of all blocks of the cluster, not only of this one.

    Raises:
        ArgumentError: `cluster` is no compile-time boolean.

    ISA: PTX 9.7.13.4, fence.proxy.async.shared::{cta, cluster}.
    """
    semantic = semantic_layer()
    semantic.builder.create_fence_async_shared(semantic.compile_time_bool(cluster, "cluster"))
