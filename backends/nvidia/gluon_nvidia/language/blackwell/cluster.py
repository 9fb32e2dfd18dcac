"""`gl.nvidia.blackwell.cluster`: Hopper's."""

from gluon_nvidia.language.hopper.cluster import *
