"""`gluon_core.nvidia`: host code's part of NVIDIA hardware; imports neither Triton nor a driver."""

from gluon_nvidia.arch import ARCHITECTURES
from gluon_nvidia.host import blackwell, hopper
from gluon_nvidia.layouts import NVMMADistributedLayout, NVMMASharedLayout

__all__ = ["ARCHITECTURES", "NVMMADistributedLayout", "NVMMASharedLayout", "blackwell", "hopper"]
