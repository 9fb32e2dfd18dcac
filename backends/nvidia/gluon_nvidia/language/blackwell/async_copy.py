"""`gl.nvidia.blackwell.async_copy`."""

from gluon_nvidia.language.async_copy import (
    async_copy_global_to_shared,
    async_load,
    commit_group,
    mbarrier_arrive,
    wait_group,
)

__all__ = [
    "async_copy_global_to_shared",
    "async_load",
    "commit_group",
    "mbarrier_arrive",
    "wait_group",
]
