"""A matrix that a cluster reads once, split over its blocks or sent to all of them."""

from functools import partial

import numpy as np
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor
from tests.programs import Boxes, Launch

# From 3.8 on the compiler tells the cluster of new barriers.
TOLD = gl.constexpr(triton.__version__.startswith("3.7"))


@gluon.jit
def doubled(source, out, EVERYWHERE: gl.constexpr, LAYOUT: gl.constexpr):
    SIDE: gl.constexpr = source.block_shape[0]
    tile = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    there = mbarrier.allocate_mbarrier()
    mbarrier.init(there, count=1)
    if EVERYWHERE and TOLD:
        mbarrier.sync_cluster_init()
    mbarrier.expect(there, source.nbytes_per_cta)
    tma.async_load(source, [0, 0], there, tile, multicast=EVERYWHERE)
    mbarrier.wait(there, 0)
    mbarrier.invalidate(there)
    row = gl.arange(0, SIDE, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, SIDE, gl.SliceLayout(0, LAYOUT))
    gl.store(out + row[:, None] * SIDE + column[None, :], tile.load(LAYOUT) * 2)


def data(blocks, rng):
    x = rng.standard_normal((64, 64)).astype(np.float16)
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16, cga_layout=blocks)
    return [Boxes(TensorDescriptor, x, [64, 64], layout), np.zeros_like(x)], {"out": 2 * x}


LAUNCHES = [
    Launch(
        doubled,
        "sm_90",
        partial(data, blocks),
        constants={
            "EVERYWHERE": everywhere,
            "LAYOUT": gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=blocks),
            "num_ctas": 2,
        },
        since=(3, 7) if everywhere else (3, 6),
        oracle=(3, 7),
    )
    for everywhere, blocks in ((False, [[1, 0]]), (True, [[0, 0]]))
]
