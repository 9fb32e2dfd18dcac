"""`gl.amd.gfx1250.cluster`."""

from gluon_amd.language.cluster import arrive, wait

__all__ = ["arrive", "wait"]
