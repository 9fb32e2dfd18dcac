"""`gl.amd.cdna5.mbarrier`."""

from gluon_amd.language.mbarrier import MBarrierLayout, arrive, init, wait

__all__ = ["MBarrierLayout", "arrive", "init", "wait"]
