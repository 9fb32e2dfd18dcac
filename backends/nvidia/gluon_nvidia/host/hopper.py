"""`gluon_core.nvidia.hopper`: host code's part of sm_90."""

from gluon_nvidia.host.descriptor import TensorDescriptor, TensorDescriptorIm2Col

__all__ = ["TensorDescriptor", "TensorDescriptorIm2Col"]
