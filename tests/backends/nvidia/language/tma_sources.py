"""Sources of kernels that use gl.nvidia.*.tma."""

from __future__ import annotations

SETUP = """
from GLUON.language.nvidia.hopper import tma, mbarrier
from GLUON.language.nvidia.blackwell import tma as btma
from GLUON.nvidia.hopper import TensorDescriptor
new = gl.constexpr(triton.__version__ >= "3.8" or gluon.__name__ == "gluon_core")
load = tma.async_load if new else tma.async_copy_global_to_shared
store = tma.async_store if new else tma.async_copy_shared_to_global
F16 = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
F32 = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))
FLAT = gl.constexpr(gl.NVMMASharedLayout(0, 16, 1))
CUBE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 3))
ROWS = gl.constexpr(gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0])))

def describe(dtype, shape, block, layout, **more):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorDescriptor(ptr(dtype), shape, strides, block, layout.value, **more)
"""
KERNEL = (
    SETUP
    + """
@gluon.jit
def kernel(desc, p, n):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    smem = gl.allocate_shared_memory(desc.dtype, {smem}, desc.layout)
    x = gl.arange(0, 32, ROWS)
    rows = gl.allocate_shared_memory(gl.float16, [32, 64], F16)
    {body}
ARGS = ({desc}, ptr(gl.float16), 7)
TARGET = GPUTarget("cuda", {arch}, 32)
"""
)
MADE = (
    SETUP
    + """
@gluon.jit
def kernel(p, m, n, stride, big):
    {body}  # HERE
ARGS = (ptr({dtype}), 1000, 512, 520, 2**40)
"""
)
IM2COL = (
    SETUP
    + """
from GLUON.nvidia.hopper import TensorDescriptorIm2Col
def image(shape, corners, block=(64, 64)):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorDescriptorIm2Col(
        ptr(gl.float16), shape, strides, list(block), F16.value,
        pixel_box_lower_corner=corners, pixel_box_upper_corner=corners,
    )
@gluon.jit
def kernel(desc, n, short):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    smem = gl.allocate_shared_memory(desc.dtype, desc.block_shape, desc.layout)
    {body}  # HERE
ARGS = (image({shape}, {corners}), 7, 3)
"""
)
PLAIN = "describe(gl.float16, [1024, 512], [64, 64], F16)"
ROW = "describe(gl.float16, [1024, 512], [1, 64], F16)"


def using(body, desc=PLAIN, arch=90):
    smem = "[64, 64]" if desc == ROW else "desc.block_shape"
    return KERNEL.format(body=body, desc=desc, arch=arch, smem=smem)


def reducing(kind, dtype, bits):
    layout = f"gl.constexpr(gl.NVMMASharedLayout(128, {bits}, 2))"
    desc = f"describe(gl.{dtype}, [1024, 512], [64, {1024 // bits}], {layout})"
    return using(f"tma.async_atomic_{kind}(desc, [n, 0], smem)  # HERE", desc)


def making(body, dtype="gl.float16"):
    return MADE.format(body=body, dtype=dtype)
