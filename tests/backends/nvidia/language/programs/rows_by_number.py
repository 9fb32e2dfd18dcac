"""Rows of one matrix that come to other rows of another, negated: TMA gathers and scatters, whose rows and
columns may lie outside."""

from functools import partial

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.blackwell import TensorDescriptor
from tests.programs import Boxes, Launch


@gluon.jit
def moved(source, into, sources, targets, column, left, COUNT: gl.constexpr):
    NUMBERS: gl.constexpr = gl.SliceLayout(
        0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0])
    )
    WIDE: gl.constexpr = source.block_shape[1]
    REGISTERS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    rows = gl.allocate_shared_memory(source.dtype, [COUNT, WIDE], source.layout)
    there = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(there, count=1)
    mbarrier.expect(there, COUNT * source.block_type.nbytes)
    tma.async_gather(source, gl.load(sources + gl.arange(0, COUNT, NUMBERS)), column, there, rows)
    mbarrier.wait(there, phase=0)
    mbarrier.invalidate(there)
    rows.store(0 - rows.load(REGISTERS))
    fence_async_shared()
    tma.async_scatter(into, gl.load(targets + gl.arange(0, COUNT, NUMBERS)), left, rows)
    tma.store_wait(pendings=0)


def data(dtype, count, column, rng):
    wide = 64
    x = rng.integers(1, 99, (64, 96)).astype(dtype)
    out = np.zeros((50, 96), dtype)
    sources = rng.integers(-8, 80, count, dtype=np.int32)  # rows outside come as zeros
    targets = rng.permutation(60)[:count].astype(np.int32)  # and nothing goes there
    bordered = np.zeros((64 + 24, 96 + 80))
    bordered[8 : 8 + 64, 16 : 16 + 96] = x
    wanted = np.zeros((60, 96))
    wanted[targets, 32:] = -bordered[sources + 8, 16 + column :][:, :wide]
    layout = gl.NVMMASharedLayout.get_default_for([count, wide], KINDS[dtype])
    boxes = [Boxes(TensorDescriptor, array, [1, wide], layout) for array in (x, out)]
    return [*boxes, sources, targets, column, 32], {"into": wanted[:50]}


KINDS = {ml_dtypes.bfloat16: gl.bfloat16, np.float32: gl.float32}
LAUNCHES = [
    Launch(moved, "sm_100", partial(data, dtype, count, column), constants={"COUNT": count})
    for dtype, count in ((ml_dtypes.bfloat16, 32), (np.float32, 16))
    for column in (-8, 0, 48)
]
