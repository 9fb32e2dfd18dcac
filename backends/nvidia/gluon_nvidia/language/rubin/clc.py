"""`gl.nvidia.rubin.clc`: Blackwell's."""

from gluon_nvidia.language.blackwell.clc import *
