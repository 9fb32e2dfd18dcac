"""`gl.nvidia.blackwell.tma`: Hopper's, and copies of chosen rows."""

from gluon_nvidia.language.hopper.tma import *
from gluon_nvidia.language.tma import async_gather as async_gather
from gluon_nvidia.language.tma import async_scatter as async_scatter
