"""`gl.amd.cdna5.async_copy`."""

from gluon_amd.language.async_lds import (
    commit_group,
    global_to_shared,
    mbarrier_arrive,
    shared_to_global,
    wait_group,
)

__all__ = ["commit_group", "global_to_shared", "mbarrier_arrive", "shared_to_global", "wait_group"]
