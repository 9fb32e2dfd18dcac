"""`gl.nvidia.ampere.async_copy`."""

from gluon_nvidia.language.async_copy import (
    async_copy_global_to_shared as async_copy_global_to_shared,
)
from gluon_nvidia.language.async_copy import async_load as async_load
from gluon_nvidia.language.async_copy import commit_group as commit_group
from gluon_nvidia.language.async_copy import mbarrier_arrive as mbarrier_arrive
from gluon_nvidia.language.async_copy import wait_group as wait_group
