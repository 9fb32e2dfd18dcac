"""`gl.amd.gfx1250.async_copy`."""

from gluon_amd.language.async_lds import commit_group as commit_group
from gluon_amd.language.async_lds import global_to_shared as global_to_shared
from gluon_amd.language.async_lds import mbarrier_arrive as mbarrier_arrive
from gluon_amd.language.async_lds import shared_to_global as shared_to_global
from gluon_amd.language.async_lds import wait_group as wait_group
