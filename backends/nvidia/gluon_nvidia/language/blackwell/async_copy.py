"""`gl.nvidia.blackwell.async_copy`: Ampere's."""

from gluon_nvidia.language.ampere.async_copy import *
