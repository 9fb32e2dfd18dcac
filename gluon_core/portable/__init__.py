"""Portable ops: one meaning, several implementations, chosen at trace time for the target.

`requests` describes the ops, `lowerings` and `fallback` hold the core's own vendor-neutral
implementations, `selection` chooses, and `ops` holds the functions that kernels call as
`gl.portable.load` and so
on; those names resolve here on first use, because they need Triton and reading the declarations
must not.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_core.portable.ops import (
        accumulator,
        async_copy,
        blocked_layout,
        cluster_softmax,
        commit,
        counter_add,
        counter_wait,
        descriptor,
        epilogue,
        fence,
        load,
        mma,
        mma_layouts,
        mma_wait,
        peer,
        pipeline,
        rank_barrier,
        read,
        signal,
        split_k_reduce,
        static_tile_scheduler,
        store,
        stream_k_tiles,
        swizzled_tiles,
        tile_scheduler,
        wait,
        wait_signal,
        writer,
    )

__all__ = [
    "accumulator",
    "async_copy",
    "blocked_layout",
    "cluster_softmax",
    "commit",
    "counter_add",
    "counter_wait",
    "descriptor",
    "epilogue",
    "fence",
    "load",
    "mma",
    "mma_layouts",
    "mma_wait",
    "peer",
    "pipeline",
    "rank_barrier",
    "read",
    "signal",
    "split_k_reduce",
    "static_tile_scheduler",
    "store",
    "stream_k_tiles",
    "swizzled_tiles",
    "tile_scheduler",
    "wait",
    "wait_signal",
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
