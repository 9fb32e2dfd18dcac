"""NVIDIA's lowerings of the portable ops: declarations here, code in `lower`."""

from __future__ import annotations

from gluon_core.backend import Lowering

__all__ = ["LOWERINGS"]

_CODE = "gluon_nvidia.lower"

LOWERINGS = (
    Lowering(
        "async_copy",
        "cp.async",
        f"{_CODE}:async_copy",
        requires=("nvidia.cp_async",),
        priority=10,
        accepts=f"{_CODE}:async_copy_accepts",
        extras={"commit": f"{_CODE}:commit", "wait": f"{_CODE}:wait"},
        gives_up="cp.async does not support transfers smaller than 4 bytes",
    ),
    Lowering(
        "mma",
        "mma.sync",
        f"{_CODE}:mma",
        requires=("nvidia.mma_v2",),
        priority=10,
        accepts=f"{_CODE}:mma_accepts",
        extras={"layouts": f"{_CODE}:mma_layouts"},
    ),
)
