"""`gl.nvidia.hopper.tma`."""

from gluon_nvidia.language.tma import async_atomic_add as async_atomic_add
from gluon_nvidia.language.tma import async_atomic_and as async_atomic_and
from gluon_nvidia.language.tma import async_atomic_max as async_atomic_max
from gluon_nvidia.language.tma import async_atomic_min as async_atomic_min
from gluon_nvidia.language.tma import async_atomic_or as async_atomic_or
from gluon_nvidia.language.tma import async_atomic_xor as async_atomic_xor
from gluon_nvidia.language.tma import async_copy_global_to_shared as async_copy_global_to_shared
from gluon_nvidia.language.tma import (
    async_copy_global_to_shared_im2col as async_copy_global_to_shared_im2col,
)
from gluon_nvidia.language.tma import async_copy_shared_to_global as async_copy_shared_to_global
from gluon_nvidia.language.tma import async_load as async_load
from gluon_nvidia.language.tma import async_load_im2col as async_load_im2col
from gluon_nvidia.language.tma import async_store as async_store
from gluon_nvidia.language.tma import make_tensor_descriptor as make_tensor_descriptor
from gluon_nvidia.language.tma import store_wait as store_wait
from gluon_nvidia.language.tma import tensor_descriptor as tensor_descriptor
from gluon_nvidia.language.tma import tensor_descriptor_im2col as tensor_descriptor_im2col
from gluon_nvidia.language.tma import tensor_descriptor_im2col_type as tensor_descriptor_im2col_type
from gluon_nvidia.language.tma import tensor_descriptor_type as tensor_descriptor_type
