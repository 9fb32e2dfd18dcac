"""A matrix in the middle of a larger one, by descriptors that the kernel makes."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma
from tests.programs import Launch


@gluon.jit
def bordered(
    x,
    out,
    rows,
    columns,
    top,
    left,
    HIGH: gl.constexpr,
    WIDE: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    source = tma.make_tensor_descriptor(
        x, shape=[rows, columns], strides=[columns, 1], block_shape=[HIGH, WIDE], layout=LAYOUT
    )
    outer = columns + 2 * left
    target = tma.make_tensor_descriptor(
        out, [rows + 2 * top, outer], [outer, 1], [HIGH, WIDE], LAYOUT
    )
    if hasattr(source, "nbytes_per_cta"):
        nbytes: gl.constexpr = source.nbytes_per_cta
    else:
        nbytes: gl.constexpr = source.block_type.nbytes
    tile = gl.allocate_shared_memory(x.dtype.element_ty, [HIGH, WIDE], LAYOUT)
    there = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(there, 1)
    phase = 0
    for row in range(0, rows, HIGH):
        for column in range(0, columns, WIDE):
            mbarrier.expect(there, nbytes)
            tma.async_load(source, [row, column], there, tile)
            mbarrier.wait(there, phase)
            phase = 1 - phase
            tma.async_store(target, [row + top, column + left], tile)
            tma.store_wait(0)
    mbarrier.invalidate(there)


def data(rng):
    x = rng.standard_normal((100, 80)).astype(np.float16)
    out = np.zeros((116, 112), np.float16)
    return [x, out, 100, 80, 8, 16], {"out": np.pad(x, ((8, 8), (16, 16)))}


LAUNCHES = [
    Launch(
        bordered,
        "sm_90",
        data,
        constants={
            "HIGH": 64,
            "WIDE": 32,
            "LAYOUT": gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16),
        },
    )
]
