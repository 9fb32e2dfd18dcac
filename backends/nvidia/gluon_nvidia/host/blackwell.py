"""`gluon_core.nvidia.blackwell`: host code's part of sm_100 and later."""

from gluon_nvidia.host.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
