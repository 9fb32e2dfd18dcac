"""`gluon_core.amd`: host code's part of AMD hardware; imports neither Triton nor a driver."""

from gluon_amd.arch import ARCHITECTURES
from gluon_amd.host import cdna5, gfx1250
from gluon_amd.layouts import AMDMFMALayout, AMDWMMALayout

__all__ = ["ARCHITECTURES", "AMDMFMALayout", "AMDWMMALayout", "cdna5", "gfx1250"]
