"""Descriptors and kernels that the tests of descriptors share."""

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia import NVMMASharedLayout
from gluon_core.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col

HALF = torch.zeros(64, 64, dtype=torch.float16)
BYTES = torch.zeros(64, 64, dtype=torch.uint8)
FLOAT = torch.zeros(64, 64)
L128 = NVMMASharedLayout(128, 16, 2)
IMAGES = torch.zeros(2, 16, 16, 64, dtype=torch.float16)


def describe(tensor=HALF, block=(64, 64), layout=L128, **more):
    return TensorDescriptor.from_tensor(tensor, list(block), layout, **more)


def images(tensor=IMAGES, block=(64, 64), layout=L128, **more):
    rank = tensor.dim()
    more.setdefault("pixel_box_lower_corner", [-1] * (rank - 2))
    more.setdefault("pixel_box_upper_corner", [-1] * (rank - 2))
    return TensorDescriptorIm2Col.from_tensor(tensor, list(block), layout, **more)


def offset():
    return torch.zeros(64 * 64 + 4, dtype=torch.float16)[4:].view(64, 64)


class Address:
    """The attributes of a CUDA tensor."""

    shape, device = (64, 64), torch.device("cuda:0")

    def __init__(self, dtype, address):
        self.dtype = dtype
        self.address = address

    def data_ptr(self):
        return self.address

    def stride(self):
        return (64, 1)

    def get_device(self):
        return 0


def on_gpu():
    return Address(torch.float16, 1 << 20)


@gluon.jit
def facts(d, more, out, n):
    gl.store(out, d.shape[0])
    gl.store(out + 1, d.shape[1])
    gl.store(out + 2, d.strides[0].to(gl.int32))
    gl.store(out + 3, more[1].shape[0] + n)
