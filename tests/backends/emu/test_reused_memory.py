"""Bytes that the compiler gives to two buffers, while a multicast copy still lands there: reported by simulator and emulator."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia import hopper
from gluon_core.language.nvidia.hopper import mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import TRITON_VERSION
from gluon_emu.errors import MissingWaitError
from gluon_emu.settings import using as emulated
from gluon_sim.errors import RaceError
from gluon_sim.settings import using as simulated

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8"),
]
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]]))
COLUMNS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]]))
EVERYWHERE = gl.constexpr(
    gl.NVMMASharedLayout.get_default_for([64, 128], gl.float16, cga_layout=[[0, 0]])
)
BY_COLUMNS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0], cga_layout=[[0, 1]]))


@gluon.jit
def places(LAYOUT: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 128, gl.SliceLayout(0, LAYOUT))
    return rows[:, None] * 128 + columns[None, :]


@gluon.jit
def transposes_blocks(source, x, out, WAITS: gl.constexpr):
    """A copy for all blocks, and later stores from each block to the others in a buffer of its own."""
    values = gl.load(x + places(ROWS))
    arrived = mbarrier.allocate_mbarrier()
    mbarrier.init(arrived, count=1)
    stored = mbarrier.allocate_mbarrier()
    mbarrier.init(stored, count=1)
    gl.barrier(cluster=True)
    tile = gl.allocate_shared_memory(source.dtype, source.block_shape, source.layout)
    mbarrier.expect(arrived, source.nbytes_per_cta)
    tma.async_load(source, [0, 0], arrived, tile, multicast=True)
    if WAITS:
        mbarrier.wait(arrived, 0)
    later = gl.allocate_shared_memory(gl.float16, [64, 128], BY_COLUMNS)
    mbarrier.expect(stored, later.nbytes_per_cta)
    hopper.async_store(later, values, stored)
    mbarrier.wait(stored, 0)
    gl.store(out + places(COLUMNS), later.load(COLUMNS))
    if not WAITS:
        mbarrier.wait(arrived, 0)


def launched(target, waits):
    rng = np.random.default_rng(0)
    tensor, x = (rng.standard_normal((64, 128)).astype(np.float16) for _ in range(2))
    box, out = TensorDescriptor.from_tensor(tensor, [64, 128], EVERYWHERE.value), np.zeros_like(x)
    compiled = transposes_blocks[(1,)](box, x, out, waits, num_ctas=2, target=target)
    np.testing.assert_array_equal(out, x)
    return compiled


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["latest", "eager", "random"])
def test_a_copy_that_still_lands_in_a_peer_s_reused_bytes(schedule):
    with emulated(schedule=schedule, search=True):
        compiled = launched("emu:sm_90", True)
        # The copy's 16,384 bytes hold the 8,192 of the later buffer, too.
        assert 16384 <= compiled.metadata.shared < 16384 + 8192
        with pytest.raises(MissingWaitError, match="this write does not wait for the write by"):
            launched("emu:sm_90", False)
    with simulated(schedule=schedule, tolerated="error"):
        launched("sim:sm_90", True)
        with pytest.raises(RaceError, match="`later` may lie where `tile` was"):
            launched("sim:sm_90", False)
