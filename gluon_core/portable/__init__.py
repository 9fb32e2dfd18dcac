"""Portable ops: one meaning, several implementations, chosen at trace time for the target.

`requests` says what is asked, `lowerings` and `fallback` hold the core's own vendor-neutral
implementations, `selection` chooses, and `ops` is what kernels call as `gl.portable.load` and so
on; those names resolve here on first use, because they need Triton and reading the declarations
must not.
"""

import typing as _typing

from gluon_core.plugin.language import OPS
from gluon_core.portable.requests import (
    AsyncCopyRequest,
    LoadRequest,
    MmaLayouts,
    MmaRequest,
    Request,
    StoreRequest,
    TileRequest,
    TileStoreRequest,
    WalkRequest,
)

if _typing.TYPE_CHECKING:
    from gluon_core.portable.ops import (
        accumulator,
        async_copy,
        blocked_layout,
        commit,
        count,
        descriptor,
        epilogue,
        even_tiles,
        fence,
        grouped_tiles,
        load,
        mma,
        mma_layouts,
        mma_wait,
        peer,
        pipeline,
        rank_barrier,
        read,
        row_exponentials,
        signal,
        static_walk,
        store,
        sum_parts,
        wait,
        wait_count,
        wait_signal,
        walk,
        writer,
    )

__all__ = [
    "AsyncCopyRequest",
    "LoadRequest",
    "MmaLayouts",
    "MmaRequest",
    "OPS",
    "Request",
    "StoreRequest",
    "TileRequest",
    "TileStoreRequest",
    "WalkRequest",
    "accumulator",
    "async_copy",
    "blocked_layout",
    "commit",
    "count",
    "descriptor",
    "epilogue",
    "even_tiles",
    "fence",
    "grouped_tiles",
    "load",
    "mma",
    "mma_layouts",
    "mma_wait",
    "peer",
    "pipeline",
    "rank_barrier",
    "read",
    "row_exponentials",
    "signal",
    "static_walk",
    "store",
    "sum_parts",
    "wait",
    "wait_count",
    "wait_signal",
    "walk",
    "writer",
]


def __getattr__(name: str) -> _typing.Any:
    if name in __all__:
        from gluon_core.portable import ops

        return getattr(ops, name)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gluon_core.errors import GluonError, did_you_mean

    text = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(str(GluonError(text, remedy=did_you_mean(name, __all__))))


def __dir__() -> list[str]:
    return sorted(__all__)
