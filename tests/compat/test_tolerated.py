"""Upstream's official code that hardware tolerates runs, with a warning; checked, it is an error."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import gluon_core as gluon  # noqa: E402
from gluon_core import errors  # noqa: E402
from gluon_core import language as gl  # noqa: E402
from gluon_core.nvidia.hopper import TensorDescriptor  # noqa: E402
from gluon_sim.errors import (  # noqa: E402
    LeakError,
    RaceError,
    SimulatorWarning,
    UninitialisedError,
)
from gluon_sim.settings import using  # noqa: E402

pytestmark = pytest.mark.once
hopper, async_copy = gl.nvidia.hopper, gl.nvidia.ampere.async_copy
ROW = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))


@gluon.jit
def copy_is_left(x, out):
    offsets = gl.arange(0, 128, ROW)
    async_copy.async_copy_global_to_shared(
        gl.allocate_shared_memory(gl.float32, [128], FLAT), x + offsets
    )
    async_copy.commit_group()
    gl.store(out + offsets, 1.0)


@gluon.jit
def unwritten_is_copied(x, out):
    offsets = gl.arange(0, 128, ROW)
    gl.store(out + offsets, gl.allocate_shared_memory(gl.float32, [128], FLAT).load(ROW))


@gluon.jit
def unwritten_is_used(x, out):
    offsets = gl.arange(0, 128, ROW)
    gl.store(out + offsets, gl.allocate_shared_memory(gl.float32, [128], FLAT).load(ROW) + 1)


@gluon.jit
def read_is_not_masked(x, out):
    gl.store(out + gl.arange(0, 128, ROW), gl.load(x + 1 + gl.arange(0, 128, ROW)))


@gluon.jit
def stores_after_a_read(x, out):
    box: gl.constexpr = x.block_shape
    tile = gl.allocate_shared_memory(x.dtype, box, x.layout, gl.full(box, 1, x.dtype, TILE))
    hopper.fence_async_shared()
    hopper.tma.async_copy_shared_to_global(x, [0, 0], tile)
    hopper.tma.store_wait(0)
    hopper.tma.async_copy_shared_to_global(x, [0, 0], tile)
    hopper.tma.store_wait(0)


def _box():
    layout = gl.NVMMASharedLayout(128, 32, 2)
    return TensorDescriptor.from_tensor(torch.zeros(32, 32), [32, 32], layout)


@pytest.mark.parametrize(
    "kernel, error",
    [(copy_is_left, LeakError), (unwritten_is_copied, UninitialisedError),
     (stores_after_a_read, RaceError)],
)  # fmt: skip
def test_a_warning_and_checked_an_error(kernel, error):
    x = _box() if kernel is stores_after_a_read else torch.zeros(128)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        kernel[(1,)](x, torch.zeros(128), target="sim:sm_90")
    assert len([w for w in warned if w.category is SimulatorWarning]) == 1
    with using(checks=True), pytest.raises(error):
        kernel[(1,)](x, torch.zeros(128), target="sim:sm_90")


@pytest.mark.parametrize("kernel", [unwritten_is_used, read_is_not_masked])
def test_an_error(kernel):
    with pytest.raises(errors.GluonError):
        kernel[(1,)](torch.zeros(128), torch.zeros(128), target="sim:sm_90")
