"""NVIDIA's lowerings of the portable ops: declarations here, code in `lower`."""

from __future__ import annotations

from gluon_core.plugin.language import Lowering
from gluon_nvidia.features import CLC

__all__ = ["LOWERINGS"]

_CODE = "gluon_nvidia.lower"
_TMA = "gluon_nvidia.lower_tma"
_WGMMA, _TCGEN05 = "gluon_nvidia.lower_wgmma", "gluon_nvidia.lower_tcgen05"
_SCHEDULER = "gluon_nvidia.language.clc_scheduler"
_FENCE = {"fence": "gluon_nvidia.lower:fence"}
_PIPELINE = ("layout", "begin", "fetch", "arrived", "end")
_ASYNCHRONOUS = ("layouts", "accumulator", "mma_wait", "read")

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
        expects=("LDGSTS",),
    ),
    Lowering(
        "mma",
        "mma.sync",
        f"{_CODE}:mma",
        requires=("nvidia.mma_v2",),
        priority=10,
        accepts=f"{_CODE}:mma_accepts",
        extras={"layouts": f"{_CODE}:mma_layouts"},
        expects=(r"[BDHIOQ]MMA",),
    ),
    Lowering(
        "mma",
        "wgmma",
        f"{_WGMMA}:mma",
        requires=("nvidia.wgmma",),
        priority=20,
        accepts=f"{_WGMMA}:accepts",
        extras={**{name: f"{_WGMMA}:{name}" for name in _ASYNCHRONOUS}, **_FENCE},
        expects=(r"[BHIQ]GMMA",),
    ),
    Lowering(
        "mma",
        "tcgen05",
        f"{_TCGEN05}:mma",
        requires=("nvidia.tcgen05",),
        priority=30,
        accepts=f"{_TCGEN05}:accepts",
        extras={**{name: f"{_TCGEN05}:{name}" for name in _ASYNCHRONOUS}, **_FENCE},
        expects=(r"UTC\w*MMA",),
    ),
    Lowering(
        "tile_copy",
        "tma",
        f"{_TMA}:make",
        requires=("nvidia.tma",),
        priority=20,
        accepts=f"{_TMA}:accepts",
        extras={name: f"{_TMA}:{name}" for name in _PIPELINE},
        expects=("UTMALDG", "UTMASTG"),
    ),
    Lowering(
        "tile_store",
        "tma_store",
        f"{_TMA}:store",
        requires=("nvidia.tma",),
        priority=20,
        accepts=f"{_TMA}:store_accepts",
        extras={"open": f"{_TMA}:opened", "put": f"{_TMA}:put", "close": f"{_TMA}:close"},
        expects=("UTMASTG",),
    ),
    Lowering(
        "tile_scheduler",
        "launch_control",
        f"{_SCHEDULER}:begin",
        requires=("nvidia.clc",),
        priority=20,
        min_triton=CLC.since,
        accepts=f"{_SCHEDULER}:accepts",
        extras={"first": f"{_SCHEDULER}:first", "next": f"{_SCHEDULER}:following"},
    ),
)
