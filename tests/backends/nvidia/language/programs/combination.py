"""A weighted sum of matrices whose descriptors come in a tuple."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor
from tests.programs import Boxes, Launch

SIDE = gl.constexpr(32)
TILE = gl.constexpr(gl.BlockedLayout([2, 2], [4, 8], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.jit
def combined(terms, weights, out, COUNT: gl.constexpr):
    places = gl.allocate_shared_memory(out.dtype, [COUNT] + out.block_shape, out.layout)
    there = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(there.index(i), count=1)
        mbarrier.expect(there.index(i), terms[i].block_type.nbytes)
        tma.async_load(terms[i], [0, 0], there.index(i), places.index(i))
    total = gl.zeros([SIDE, SIDE], gl.float32, TILE)
    for i in gl.static_range(COUNT):
        mbarrier.wait(there.index(i), 0)
        total += places.index(i).load(TILE) * weights[i]
    places.index(0).store(total)
    fence_async_shared()
    tma.async_store(out, [0, 0], places.index(0))
    tma.store_wait(0)


def data(rng):
    terms, weights = rng.integers(-9, 9, (3, 32, 32)).astype(np.float32), (0.5, -2.0, 3.0)
    layout = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
    *boxes, out = (
        Boxes(TensorDescriptor, array, [32, 32], layout) for array in (*terms, 0 * terms[0])
    )
    return [tuple(boxes), weights, out], {"out": np.tensordot(weights, terms, 1)}


LAUNCHES = [Launch(combined, "sm_90", data, constants={"COUNT": 3})]
