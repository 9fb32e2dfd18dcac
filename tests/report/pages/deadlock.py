"""Two partitions that wait for each other: nobody says first that the buffer is empty."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier


@gluon.jit
def load(x, buffer, ready, empty, B: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    for i in range(4):
        mbarrier.wait(empty, i & 1)
        buffer.store(gl.load(x + gl.arange(0, B, L)))
        mbarrier.arrive(ready, count=1)


@gluon.jit
def use(out, buffer, ready, empty, B: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    for i in range(4):
        mbarrier.wait(ready, i & 1)
        gl.store(out + gl.arange(0, B, L), buffer.load(L))
        mbarrier.arrive(empty, count=1)


@gluon.jit
def pair(x, out, B: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.float32, [B], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.init(empty, count=1)
    gl.warp_specialize(
        [(use, (out, buffer, ready, empty, B)), (load, (x, buffer, ready, empty, B))], [4], [64]
    )


x = np.ones(128, np.float32)
pair[(1,)](x, np.zeros_like(x), 128, num_warps=4)
