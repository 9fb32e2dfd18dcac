"""AMD's lowerings of the portable ops: declarations here, code in `lower`."""

from __future__ import annotations

from gluon_core.plugin.language import Lowering

__all__ = ["LOWERINGS"]

_CODE = "gluon_amd.lower"
_TDM = "gluon_amd.lower_tdm"

LOWERINGS = (
    Lowering(
        "load",
        "buffer_load",
        f"{_CODE}:load",
        requires=("amd.buffer_ops",),
        priority=10,
        accepts=f"{_CODE}:load_accepts",
        expects=("buffer_load",),
    ),
    Lowering(
        "store",
        "buffer_store",
        f"{_CODE}:store",
        requires=("amd.buffer_ops",),
        priority=10,
        accepts=f"{_CODE}:store_accepts",
        expects=("buffer_store",),
    ),
    Lowering(
        "async_copy",
        "buffer_load_to_lds",
        f"{_CODE}:async_copy_to_lds",
        requires=("amd.direct_to_lds_128",),
        priority=20,
        accepts=f"{_CODE}:async_copy_to_lds_accepts",
        extras={"commit": f"{_CODE}:commit_to_lds", "wait": f"{_CODE}:wait_for_lds"},
        # Addresses or masks that are not known to be aligned; before 3.9 it only fails to translate.
        gives_up=("direct-to-LDS copy", "builtin.unrealized_conversion_cast"),
        expects=(r"buffer_load\w* lds",),
    ),
    Lowering(
        "async_copy",
        "global_load_async_to_lds",
        f"{_CODE}:async_lds_copy",
        requires=("amd.async_lds",),
        priority=20,
        accepts=f"{_CODE}:async_lds_accepts",
        extras={"commit": f"{_CODE}:commit_async_lds", "wait": f"{_CODE}:wait_for_async_lds"},
        gives_up=("async_copy_global_to_local", "builtin.unrealized_conversion_cast"),  # likewise
        expects=("global_load_async_to_lds",),
    ),
    Lowering(
        "async_copy",
        "buffer_load_through_registers",
        f"{_CODE}:async_copy",
        requires=("amd.buffer_ops",),
        priority=10,
        accepts=f"{_CODE}:async_copy_accepts",
        extras={"commit": f"{_CODE}:commit", "wait": f"{_CODE}:wait"},
        expects=("buffer_load",),
    ),
    Lowering(
        "mma",
        "mfma",
        f"{_CODE}:mma_mfma",
        requires=("amd.mfma",),
        priority=10,
        accepts=f"{_CODE}:mfma_accepts",
        extras={"layouts": f"{_CODE}:mfma_layouts"},
        expects=("v_s?mfma",),
    ),
    Lowering(
        "mma",
        "wmma",
        f"{_CODE}:mma_wmma",
        requires=("amd.wmma",),
        priority=10,
        accepts=f"{_CODE}:wmma_accepts",
        extras={"layouts": f"{_CODE}:wmma_layouts"},
        expects=("v_s?wmma",),
    ),
    Lowering(
        "tile_copy",
        "tdm",
        f"{_TDM}:make",
        requires=("amd.tdm", "amd.mbarrier"),
        priority=20,
        accepts=f"{_TDM}:accepts",
        extras={name: f"{_TDM}:{name}" for name in ("layout", "begin", "fetch", "arrived", "end")},
        expects=("tensor_",),
    ),
)
