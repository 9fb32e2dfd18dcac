"""`gl.nvidia.blackwell.float2`: pairs of float32."""

from gluon_nvidia.language.float2 import Float2Tensor as Float2Tensor
from gluon_nvidia.language.float2 import fma as fma
from gluon_nvidia.language.float2 import full_like as full_like
from gluon_nvidia.language.float2 import pack as pack
from gluon_nvidia.language.float2 import pack2 as pack2
from gluon_nvidia.language.float2 import unpack as unpack
from gluon_nvidia.language.float2 import unpack2 as unpack2
