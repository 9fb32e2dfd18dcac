"""`gl.nvidia.rubin.tma`: Blackwell's."""

from gluon_nvidia.language.blackwell.tma import *
