"""`gl.amd.cdna4.async_copy`."""

from gluon_amd.language.async_copy import buffer_load_to_shared as buffer_load_to_shared
from gluon_amd.language.async_copy import commit_group as commit_group
from gluon_amd.language.async_copy import global_load_to_shared as global_load_to_shared
from gluon_amd.language.async_copy import load_shared_relaxed as load_shared_relaxed
from gluon_amd.language.async_copy import wait_group as wait_group
