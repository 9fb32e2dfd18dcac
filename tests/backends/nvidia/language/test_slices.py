"""Views of tensor memory that take a part of a dimension, and loads of it that reduce."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler import compile
from gluon_core.errors import CapabilityError
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma_scaled,
)
from gluon_core.testing import MockTensor, bind
from tests.frontend import oracle
from tests.frontend.vendor_oracle import agree, since

pytestmark = pytest.mark.once

KERNEL = """
@gluon.jit
def kernel(p):
    blackwell: gl.constexpr = gl.nvidia.blackwell
    A: gl.constexpr = blackwell.TensorMemoryLayout((128, 64), col_stride=1)
    acc = blackwell.allocate_tensor_memory(gl.float32, [128, 64], A)
    copies = blackwell.allocate_tensor_memory(gl.float32, [2, 128, 64], A)
    scales = blackwell.allocate_tensor_memory(gl.uint8, [256, 8], blackwell.TensorMemoryScalesLayout())
    {line}
ARGS = (ptr(gl.float32),)
TARGET = GPUTarget("cuda", {arch}, 32)
"""


@since(3, 9)
@pytest.mark.parametrize(
    "line",
    [
        "scales.slice(0, 4)",
        "scales.slice(4, 4)",
        "scales.slice(0, 128, dim=0)",
        "scales.slice(128, 128, dim=0).slice(4, 4)",
        "gl.static_assert(scales.slice(0, 4).layout == scales.layout)",
        "copies.slice(0, 32, dim=2)",
        "copies.slice(16, 32, dim=2)",
        "copies.index(1).slice(32, 32)",
        "copies.slice(1, 1, dim=0).index(0)",
    ],
)
def test_slices(line):
    agree(KERNEL.format(line=line, arch=100))


@since(3, 9)
@pytest.mark.parametrize("arch", [100, 103, 107])
@pytest.mark.parametrize("line", ["v, r = acc.load_max()", "v, r = acc.load_min(abs=True)"])
def test_reductions_find_their_layout(line, arch):
    store = "gl.store(p + gl.full(r.shape, 0, gl.int32, r.type.layout), r)  # HERE"
    agree(KERNEL.format(line=f"{line}; {store}", arch=arch))


@since(3, 7)
def test_a_reduction_is_refused_where_the_assembler_has_none():
    layout = "blackwell.get_tmem_reg_layout(gl.float32, [128, 64], A, 4)"
    source = KERNEL.format(line=f"acc.load_max({layout})  # HERE", arch=100)
    module = oracle.load(source, oracle.OURS)
    bound, _ = bind(module.kernel, (MockTensor(torch.float32),), {})
    for target in ("nvidia:sm_100", "sim:sm_100"):
        with pytest.raises(CapabilityError, match="nvidia.tcgen05_ld_red") as caught:
            compile(bound, target=target)
        assert "HERE" in caught.value.span.text


ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def scaled(a, scales, out, START: gl.constexpr):
    S: gl.constexpr = TensorMemoryScalesLayout()
    TILE: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    i = gl.arange(0, 128, gl.SliceLayout(1, ROWS))
    j = gl.arange(0, 128, gl.SliceLayout(0, ROWS))
    offsets = i[:, None] * 128 + j[None, :]
    tile = gl.allocate_shared_memory(
        gl.float8e5, [128, 128], TILE, gl.load(a + offsets).to(gl.float8e5)
    )
    acc = allocate_tensor_memory(gl.float32, [128, 128], TensorMemoryLayout((128, 128), 1))
    of_a = allocate_tensor_memory(gl.uint8, [128, 8], S)
    R: gl.constexpr = of_a.get_reg_layout()
    row = gl.arange(0, 128, gl.SliceLayout(1, R))
    column = gl.arange(0, 8, gl.SliceLayout(0, R))
    of_a.store(gl.load(scales + row[:, None] * 8 + column[None, :]))
    ones = allocate_tensor_memory(gl.uint8, [128, 4], S)
    ones.store(gl.full([128, 4], 127, gl.uint8, ones.get_reg_layout()))
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    part = of_a.slice(START, 4)
    tcgen05_mma_scaled(tile, tile.permute((1, 0)), acc, part, ones, "e5m2", "e5m2", use_acc=False)
    tcgen05_commit(done)
    mbarrier.wait(done, 0)
    gl.store(out + offsets, gl.convert_layout(acc.load(), ROWS))


@since(3, 9)
@pytest.mark.parametrize("start", [0, 4])
def test_a_product_takes_a_slice_of_scales(start):
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (128, 128)).astype(np.float32)
    scales = random.integers(125, 130, (128, 8)).astype(np.uint8)
    out = np.zeros((128, 128), np.float32)
    scaled[(1,)](a, scales, out, start, target="sim:sm_100")
    powers = 2.0 ** (scales[:, start : start + 4].astype(np.float32) - 127)
    np.testing.assert_array_equal(out, (a * powers.repeat(32, axis=1)) @ a.T)
