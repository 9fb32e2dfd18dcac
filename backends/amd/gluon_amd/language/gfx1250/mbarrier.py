"""`gl.amd.gfx1250.mbarrier`."""

from gluon_amd.language.mbarrier import MBarrierLayout, arrive, init, wait

__all__ = ["MBarrierLayout", "arrive", "init", "wait"]
