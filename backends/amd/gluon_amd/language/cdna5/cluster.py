"""`gl.amd.cdna5.cluster`."""

from gluon_amd.language.cluster import arrive, wait

__all__ = ["arrive", "wait"]
