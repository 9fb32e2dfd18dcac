"""`gl.amd.cdna4.async_copy`."""

from gluon_amd.language.async_copy import (
    buffer_load_to_shared,
    commit_group,
    global_load_to_shared,
    load_shared_relaxed,
    wait_group,
)

__all__ = [
    "buffer_load_to_shared",
    "commit_group",
    "global_load_to_shared",
    "load_shared_relaxed",
    "wait_group",
]
