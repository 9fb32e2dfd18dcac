"""An array back to front, in layouts of one dimension."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

LAYOUTS = [
    gl.BlockedLayout(size_per_thread=[each], threads_per_warp=[32], warps_per_cta=[4], order=[0])
    for each in (1, 2, 4, 8)
]
LAYOUTS.append(  # the warps hold neighbours, the lanes what is four apart
    gl.DistributedLinearLayout(
        reg_bases=[],
        lane_bases=[[4], [8], [16], [32], [64]],
        warp_bases=[[1], [2]],
        block_bases=[],
        shape=[128],
    )
)


@gluon.jit
def mirror(x, out, count, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    there = offsets < count
    gl.store(out + (count - 1 - offsets), gl.load(x + offsets, there), there)


def data(rng):
    x = rng.standard_normal(505).astype(np.float32)
    return [x, np.zeros_like(x), x.size], {"out": x[::-1]}


LAUNCHES = [
    Launch(
        mirror,
        "sm_90",
        data,
        grid=(4,),
        constants={"BLOCK": 128, "LAYOUT": layout, "num_warps": 4},
    )
    for layout in LAYOUTS
]
