"""Total variation of rows from strip to strip: gfx1250's tensor data mover signals barriers when a box is there,
and stores the result."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.gfx1250 import mbarrier, tdm
from tests.programs import Launch

REGISTERS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.jit
def variation(x, out, rows, columns, HIGH: gl.constexpr, STRIP: gl.constexpr, SLOTS: gl.constexpr):
    PADDED: gl.constexpr = gl.PaddedSharedLayout.with_identity_for(
        [[STRIP, 4]], [HIGH, STRIP], [1, 0]
    )
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    source = tdm.make_tensor_descriptor(x, (rows, columns), (columns, 1), (HIGH, STRIP), PADDED)
    target = tdm.make_tensor_descriptor(out, (rows, STRIP), (STRIP, 1), (HIGH, STRIP), PLAIN)
    strips = gl.allocate_shared_memory(source.dtype, [SLOTS] + source.block_shape, source.layout)
    there = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    top = gl.program_id(0) * HIGH
    for box in gl.static_range(SLOTS):
        mbarrier.init(there.index(box), count=gl.num_warps())
    for box in gl.static_range(SLOTS):
        tdm.async_load(source, [top, box * STRIP], strips.index(box), mbarrier=there.index(box))

    total = gl.zeros([HIGH, STRIP], gl.float32, REGISTERS)
    before = total
    count = gl.cdiv(columns, STRIP)
    for step in range(0, count):
        slot = step % SLOTS
        mbarrier.wait(there.index(slot), step // SLOTS & 1)
        now = strips.index(slot).load(REGISTERS).to(gl.float32)
        gl.barrier()
        if step + SLOTS < count:
            ahead = (step + SLOTS) * STRIP
            tdm.async_load(source, [top, ahead], strips.index(slot), mbarrier=there.index(slot))
        total += gl.abs(now - before)
        before = now
    result = gl.allocate_shared_memory(target.dtype, target.block_shape, target.layout)
    result.store(total)
    gl.barrier()
    tdm.async_store(target, [top, 0], result)
    tdm.async_wait(0)


def data(rng):
    x = rng.standard_normal((100, 320)).astype(np.float16)
    strips = x.astype(float).reshape(100, 5, 64)
    wanted = np.abs(np.diff(strips, axis=1, prepend=0)).sum(1)
    return [x, np.zeros((100, 64), np.float32), 100, 320], {"out": wanted}


LAUNCHES = [
    Launch(
        variation,
        "gfx1250",
        data,
        grid=(4,),
        constants={"HIGH": 32, "STRIP": 64, "SLOTS": 2, "num_warps": 4},
        tolerance=1e-6,
    )
]
