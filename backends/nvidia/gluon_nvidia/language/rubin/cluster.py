"""`gl.nvidia.rubin.cluster`."""

from gluon_nvidia.language.cluster import arrive, barrier, wait

__all__ = ["arrive", "barrier", "wait"]
