import numpy as np

import gluon_core as gluon
import gluon_core.amd
import gluon_core.nvidia
from gluon_core import language as gl

x = np.zeros((256, 64), np.float16)


# -- gluon.nvidia.hopper.TensorDescriptor: a tile of an array, which TMA copies; `gluon_core.nvidia.blackwell` has it, too
layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
tile = gluon.nvidia.hopper.TensorDescriptor.from_tensor(x, [64, 64], layout)
print(tile.shape, tile.strides, tile.block_shape)
#> (256, 64) (64, 1) [64, 64]

# -- gluon.nvidia.hopper.TensorDescriptorIm2Col: windows of an image, as a convolution wants them
images = np.zeros((2, 8, 8, 64), np.float16)
strides = [one // images.itemsize for one in images.strides]
windows = gluon.nvidia.hopper.TensorDescriptorIm2Col(
    images, images.shape, strides, [64, 64], layout,
    pixel_box_lower_corner=[-1, -1], pixel_box_upper_corner=[-1, -1],
)  # fmt: skip
print(windows.block_shape, windows.pixel_box_lower_corner)
#> [64, 64] [-1, -1]

# -- gluon.amd.gfx1250.TensorDescriptor: a tile of an array, which the tensor data mover copies
padded = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [64, 64], [1, 0])
print(gluon.amd.gfx1250.TensorDescriptor.from_tensor(x, [64, 64], padded).block_shape)
#> [64, 64]

# -- gluon.nvidia.ARCHITECTURES, gluon.amd.ARCHITECTURES: the architectures of each plugin; `gluon info` prints it
print([arch.name for arch in gluon.nvidia.ARCHITECTURES][:4])
print([arch.name for arch in gluon.amd.ARCHITECTURES][:4])
#> ['sm_75', 'sm_80', 'sm_86', 'sm_87']
#> ['gfx908', 'gfx90a', 'gfx942', 'gfx950']
