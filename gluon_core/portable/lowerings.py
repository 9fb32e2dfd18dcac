"""The vendor-neutral lowerings, which every target can take, at the lowest priority.

They are a plugin like any other, which `gluon_core` registers. Importing it does not import Triton.
"""

from __future__ import annotations

from typing import Sequence

from gluon_core.plugin.hookspec import hookimpl
from gluon_core.plugin.language import Lowering

__all__ = ["LOWERINGS", "gluon_lowerings"]

_HERE = "gluon_core.portable.fallback"
_TILES = "gluon_core.portable.masked_tiles"
_SCHEDULERS = "gluon_core.portable.tile_schedulers"

LOWERINGS = (
    Lowering("load", "global_load", f"{_HERE}:load"),
    Lowering("store", "global_store", f"{_HERE}:store"),
    Lowering(
        "async_copy",
        "through_registers",
        f"{_HERE}:copy_through_registers",
        extras={"commit": f"{_HERE}:commit", "wait": f"{_HERE}:wait"},
    ),
    Lowering(
        "mma",
        "fma",
        f"{_HERE}:mma",
        accepts=f"{_HERE}:mma_accepts",
        extras={"layouts": f"{_HERE}:mma_layouts"},
    ),
    Lowering(
        "tile_copy",
        "masked_copies",
        f"{_TILES}:make",
        extras={
            name: f"{_TILES}:{name}" for name in ("layout", "begin", "fetch", "arrived", "end")
        },
    ),
    Lowering("tile_store", "masked_store", f"{_TILES}:store"),
    Lowering(
        "tile_scheduler",
        "static",
        f"{_SCHEDULERS}:begin",
        extras={"first": f"{_SCHEDULERS}:first", "next": f"{_SCHEDULERS}:following"},
    ),
)


@hookimpl
def gluon_lowerings() -> Sequence[Lowering]:
    return LOWERINGS
