"""Products of numbers in eight and in four bits with a scale for each run: tcgen05, scales that go
through registers to tensor memory."""

from functools import partial

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma_scaled,
    tma,
)
from gluon_core.nvidia.blackwell import TensorDescriptor
from tests import microscaling
from tests.programs import Boxes, Launch

RUN = gl.constexpr(32)  # elements of one scale


@gluon.jit
def elements(base, LAYOUT: gl.constexpr, HIGH: gl.constexpr, WIDE: gl.constexpr):
    """Pointers to the elements of a whole matrix."""
    down = gl.arange(0, HIGH, gl.SliceLayout(1, LAYOUT))
    across = gl.arange(0, WIDE, gl.SliceLayout(0, LAYOUT))
    return base + down[:, None] * WIDE + across[None, :]


@gluon.jit
def scales_of(base, COUNT: gl.constexpr, INNER: gl.constexpr):
    """The scales of `COUNT` rows, in tensor memory."""
    RUNS: gl.constexpr = INNER // RUN
    scales = allocate_tensor_memory(
        base.dtype.element_ty, [COUNT, RUNS], TensorMemoryScalesLayout()
    )
    scales.store(gl.load(elements(base, scales.get_reg_layout(), COUNT, RUNS)))
    return scales


@gluon.jit
def scaled(
    left,
    right,
    left_scales,
    right_scales,
    out,
    INNER: gl.constexpr,
    LEFT: gl.constexpr,
    RIGHT: gl.constexpr,
    num_warps: gl.constexpr,
):
    HIGH: gl.constexpr = left.block_shape[0]
    WIDE: gl.constexpr = right.block_shape[0]
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    event = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(event, count=1)
    mbarrier.expect(event, left.nbytes_per_cta + right.nbytes_per_cta)
    tma.async_load(left, [0, 0], event, a)
    tma.async_load(right, [0, 0], event, b)
    s, t = scales_of(left_scales, HIGH, INNER), scales_of(right_scales, WIDE, INNER)
    sums = allocate_tensor_memory(
        gl.float32, [HIGH, WIDE], TensorMemoryLayout([128, WIDE], col_stride=1)
    )
    mbarrier.wait(event, 0)
    tcgen05_mma_scaled(a, b.permute((1, 0)), sums, s, t, LEFT, RIGHT, use_acc=False)
    tcgen05_commit(event)
    mbarrier.wait(event, 1)
    mbarrier.invalidate(event)
    FOUND: gl.constexpr = sums.get_reg_layout()
    gl.store(elements(out, FOUND, HIGH, WIDE), sums.load(FOUND))


FORMATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, gl.float8e4nv),
    "e5m2": (ml_dtypes.float8_e5m2, gl.float8e5),
    "e2m1": (np.uint8, gl.uint8),
}


def data(left, right, inner, rng):
    boxes, scales, values = [], [], []
    for kind, rows in ((left, 128), (right, 64)):
        dtype, name = FORMATS[kind]
        if kind == "e2m1":
            x = rng.integers(0, 256, (rows, inner // 2), dtype=dtype)
            exact = microscaling.of_fp4(x)
        else:
            x = rng.standard_normal((rows, inner)).astype(dtype)
            exact = x.astype(float)
        # Next to eight bits, two of four bits take the place of two bytes.
        layout = gl.NVMMASharedLayout.get_default_for(
            list(x.shape), name, fp4_padded=kind == "e2m1" and left != right
        )
        boxes.append(Boxes(TensorDescriptor, x, list(x.shape), layout))
        scales.append(rng.integers(124, 130, (rows, inner // 32), dtype=np.uint8))
        values.append(exact * microscaling.of_scales(scales[-1]))
    return [*boxes, *scales, np.zeros((128, 64), np.float32)], {"out": values[0] @ values[1].T}


LAUNCHES = [
    Launch(
        scaled,
        "sm_100",
        partial(data, left, right, 128),
        constants={"INNER": 128, "LEFT": left, "RIGHT": right, "num_warps": 4},
        tolerance=1e-6,
        oracle=oracle,
    )
    for left, right, oracle in (
        ("e5m2", "e4m3", (3, 8)),
        ("e4m3", "e2m1", (3, 9)),  # 3.8's own describes padded operands only with a GPU for it
        ("e2m1", "e2m1", (3, 8)),
    )
]
