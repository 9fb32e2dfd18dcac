"""A product added to a tile that came by TMA and went from shared to tensor memory without passing registers."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tma,
)
from gluon_core.nvidia.blackwell import TensorDescriptor
from tests.programs import Boxes, Launch


@gluon.jit
def place_for(boxes):
    return gl.allocate_shared_memory(boxes.dtype, boxes.block_shape, boxes.layout)


@gluon.jit
def residual(left, right, addend, out):
    HIGH: gl.constexpr = addend.block_shape[0]
    WIDE: gl.constexpr = addend.block_shape[1]
    a, b, c = place_for(left), place_for(right), place_for(addend)
    event = mbarrier.allocate_mbarrier()
    mbarrier.init(event, count=1)
    mbarrier.expect(event, left.nbytes_per_cta + right.nbytes_per_cta + addend.nbytes_per_cta)
    tma.async_load(left, [0, 0], event, a)
    tma.async_load(right, [0, 0], event, b)
    tma.async_load(addend, [0, 0], event, c)
    mbarrier.wait(event, phase=0, deps=(a, b, c))
    sums = allocate_tensor_memory(
        gl.float32, [HIGH, WIDE], TensorMemoryLayout((HIGH, WIDE), col_stride=1)
    )
    tcgen05_copy(c, sums)
    tcgen05_mma(a, b, sums)
    tcgen05_commit(event)
    mbarrier.wait(event, phase=1)
    mbarrier.invalidate(event)
    c.store(sums.load())
    fence_async_shared()
    tma.async_store(out, [0, 0], c)
    tma.store_wait(pendings=0)


def data(wide, swizzle, rng):
    high, inner = 128, 64
    a = rng.standard_normal((high, inner)).astype(np.float16)
    b = rng.standard_normal((inner, wide)).astype(np.float16)
    c = rng.standard_normal((high, wide)).astype(np.float32)
    single = gl.NVMMASharedLayout(swizzle, 32, 2)
    half = partial(gl.NVMMASharedLayout.get_default_for, dtype=gl.float16)
    out = np.zeros_like(c)
    layouts = [(a, half([high, inner])), (b, half([inner, wide])), (c, single), (out, single)]
    arguments = [Boxes(TensorDescriptor, array, list(array.shape), kind) for array, kind in layouts]
    return arguments, {"out": a.astype(float) @ b.astype(float) + c}


LAUNCHES = [
    Launch(residual, "sm_100", partial(data, wide, swizzle), tolerance=1e-6, oracle=(3, 8))
    for wide in (64, 128)
    for swizzle in (32, 128)
]
