"""`gl.nvidia.blackwell.float2`: pairs of float32."""

from gluon_nvidia.language.float2 import (
    Float2Tensor,
    fma,
    full_like,
    pack,
    pack2,
    unpack,
    unpack2,
)

__all__ = ["Float2Tensor", "fma", "full_like", "pack", "pack2", "unpack", "unpack2"]
