"""`gl.nvidia.hopper.async_copy`: Ampere's."""

from gluon_nvidia.language.ampere.async_copy import *
