"""The calls that order asynchronous work of NVIDIA's hardware, for the reports of the simulator."""

from __future__ import annotations

from gluon_core.plugin.reference import Remedies
from gluon_nvidia.reference.proxy import ASYNC

__all__ = ["REMEDIES"]

_COPY = "gl.nvidia.ampere.async_copy"

REMEDIES = Remedies(
    waits={
        "cp.async": (f"{_COPY}.wait_group({{pending}})", "gl.portable.wait({pending})"),
        "bulk stores": ("gl.nvidia.hopper.tma.store_wait({pending})",),
        "wgmma": (
            "gl.nvidia.hopper.warpgroup_mma_wait({pending}, deps=[{result}])",
            "gl.portable.mma_wait({result}, {pending})",
        ),
    },
    finishes={"bulk stores": ("gl.nvidia.hopper.tma.store_wait({pending}, read_only=False)",)},
    commits={"cp.async": (f"{_COPY}.commit_group()", "gl.portable.commit()")},
    signals={
        "cp.async": (f"{_COPY}.mbarrier_arrive({{barrier}})",),
        "tcgen05": ("gl.nvidia.blackwell.tcgen05_commit({barrier})",),
    },
    fences={ASYNC: ("gl.nvidia.hopper.fence_async_shared()", "gl.portable.fence()")},
    barrier_waits=("gl.nvidia.ampere.mbarrier.wait({barrier}, phase)",),
    barrier_arrives=("gl.nvidia.ampere.mbarrier.arrive({barrier})",),
)
