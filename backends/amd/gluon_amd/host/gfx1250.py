"""`gluon_core.amd.gfx1250`: what host code needs of gfx1250 (MI450)."""

from gluon_amd.host.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
