"""`gluon_core.nvidia.hopper`: what host code needs of sm_90."""

from gluon_nvidia.host.descriptor import TensorDescriptor, TensorDescriptorIm2Col

__all__ = ["TensorDescriptor", "TensorDescriptorIm2Col"]
