"""`gluon_core.amd.cdna5`: gfx1250 (MI450) by the name of its generation."""

from gluon_amd.host.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
