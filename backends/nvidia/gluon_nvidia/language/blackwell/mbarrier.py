"""`gl.nvidia.blackwell.mbarrier`: Hopper's."""

from gluon_nvidia.language.hopper.mbarrier import *
