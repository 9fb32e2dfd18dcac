"""`gl.nvidia.rubin.mbarrier`: Hopper's, with arrivals at several barriers."""

from gluon_nvidia.language.hopper.mbarrier import *
from gluon_nvidia.language.mbarrier_multicast import arrive as arrive
