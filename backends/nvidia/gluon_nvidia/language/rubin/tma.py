"""`gl.nvidia.rubin.tma`: Blackwell's."""

from gluon_nvidia.language.blackwell import tma
from gluon_nvidia.language.blackwell.tma import *  # noqa: F403

__all__ = tma.__all__
