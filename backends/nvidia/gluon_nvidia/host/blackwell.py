"""`gluon_core.nvidia.blackwell`: what host code needs of sm_100 and later."""

from gluon_nvidia.host.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
