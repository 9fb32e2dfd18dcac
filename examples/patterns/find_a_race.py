"""Forget a barrier and let the simulator name the race: both lines, and the fix.

    python examples/patterns/find_a_race.py

A GPU may return the right numbers for years. The simulator keeps the order that the program guarantees (a vector clock for
each warp), and reports an access that is ordered by luck alone.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.errors import RaceError

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
IN = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def fill(buffer, ready, x):
    buffer.store(gl.load(x + gl.arange(0, 128, IN)))
    gl.nvidia.hopper.mbarrier.arrive(ready)


@gluon.jit
def drain(buffer, ready, out, WAITS: gl.constexpr):
    if WAITS:
        gl.nvidia.hopper.mbarrier.wait(ready, 0)
    gl.store(out + gl.arange(0, 128, IN), buffer.load(IN))


@gluon.jit
def handover(x, out, WAITS: gl.constexpr):
    """Copy through shared memory: some warps write it, others read it."""
    zeros = gl.zeros([128], gl.float32, IN)
    buffer = gl.allocate_shared_memory(gl.float32, [128], FLAT, zeros)
    ready = gl.nvidia.hopper.mbarrier.allocate_mbarrier()
    gl.nvidia.hopper.mbarrier.init(ready, count=1)
    gl.warp_specialize(
        [(drain, (buffer, ready, out, WAITS)), (fill, (buffer, ready, x))], [4], [24]
    )


def main():
    x = np.random.default_rng(0).standard_normal(128, np.float32)
    out = np.empty_like(x)
    handover[(1,)](x, out, WAITS=True, target="sim:sm_90")
    np.testing.assert_array_equal(out, x)
    try:
        handover[(1,)](x, out, WAITS=False, target="sim:sm_90")
    except RaceError as race:
        print(f"with the wait the copy is right; without it:\n{race}")
        return
    raise AssertionError("the race was not reported")


if __name__ == "__main__":
    main()
