"""Portable ops: one meaning, several implementations, chosen at trace time for the target.

`requests` says what is asked, `lowerings` holds the core's own vendor-neutral implementations,
`selection` chooses, and `ops` is what kernels call as `gl.portable`.
"""

from gluon_core.portable.requests import (
    OPS,
    AsyncCopyRequest,
    LoadRequest,
    MmaLayouts,
    MmaRequest,
    Request,
    StoreRequest,
)

__all__ = [
    "AsyncCopyRequest",
    "LoadRequest",
    "MmaLayouts",
    "MmaRequest",
    "OPS",
    "Request",
    "StoreRequest",
]
