"""`gl.nvidia.hopper.cluster`."""

from gluon_nvidia.language.cluster import arrive as arrive
from gluon_nvidia.language.cluster import barrier as barrier
from gluon_nvidia.language.cluster import wait as wait
