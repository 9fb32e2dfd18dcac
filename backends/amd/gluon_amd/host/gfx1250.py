"""`gluon_core.amd.gfx1250`: host code's part of gfx1250 (MI450)."""

from gluon_amd.host.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
