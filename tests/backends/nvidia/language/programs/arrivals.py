"""Running sums of parts that come by asynchronous copies, each of which arrives at a barrier."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy, mbarrier
from tests.programs import Launch


@gluon.jit
def running(x, out, PARTS: gl.constexpr, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    slots = gl.allocate_shared_memory(gl.float32, [2, SIZE], PLAIN)
    there = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    offset = gl.arange(0, SIZE, LAYOUT)
    for part in gl.static_range(2):
        mbarrier.init(there.index(part), count=gl.num_warps() * 32)
        async_copy.async_load(slots.index(part), x + part * SIZE + offset)
        async_copy.mbarrier_arrive(there.index(part), increment_count=False)
    total = gl.zeros([SIZE], gl.float32, LAYOUT)
    for part in gl.static_range(PARTS):
        mbarrier.wait(there.index(part % 2), part // 2 % 2)
        total += slots.index(part % 2).load(LAYOUT)
        gl.store(out + part * SIZE + offset, total)
        if part + 2 < PARTS:
            gl.barrier()
            async_copy.async_load(slots.index(part % 2), x + (part + 2) * SIZE + offset)
            async_copy.mbarrier_arrive(there.index(part % 2), increment_count=False)
    for part in gl.static_range(2):
        mbarrier.invalidate(there.index(part))


def data(rng):
    x = rng.integers(-99, 99, (5, 128)).astype(np.float32)
    return [x, np.zeros_like(x)], {"out": x.cumsum(0)}


LAUNCHES = [
    Launch(
        running,
        "sm_90",
        data,
        constants={"PARTS": 5, "SIZE": 128, "LAYOUT": gl.BlockedLayout([1], [32], [4], [0])},
    )
]
