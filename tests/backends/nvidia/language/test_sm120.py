"""Blackwell without tensor memory (sm_120, sm_121): the ops that work there, and the errors of the others."""

from __future__ import annotations

import pytest

from gluon_core.errors import CapabilityError
from gluon_core.testing import TRITON_VERSION
from tests.frontend.vendor_oracle import agree, refuse, since

SETUP = """
from GLUON.language.nvidia.blackwell import {names}
TARGET = GPUTarget("cuda", {arch}, 32)
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
N = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
ACC = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]))
@gluon.jit
def kernel(p, n{parameters}):
    {body}
ARGS = (ptr(gl.float16), 3{arguments})
"""


def source(names, body, arch=120, parameters="", arguments=""):
    lines = "\n    ".join(line.strip() for line in body.strip().splitlines())
    return SETUP.format(
        names=names, body=lines, arch=arch, parameters=parameters, arguments=arguments
    )


PRODUCT = """
    a = gl.full([64, 64], 1.0, gl.float16, layout=gl.DotOperandLayout(0, ACC, 2))
    b = gl.full([64, 64], 1.0, gl.float16, layout=gl.DotOperandLayout(1, ACC, 2))
    acc = mma_v2(a, b, gl.full([64, 64], 0.0, gl.float32, layout=ACC))
    s = gl.allocate_shared_memory(gl.float32, [64, 64], gl.NVMMASharedLayout(128, 32, 2), acc)
    fence_async_shared()
    gl.store(p, gl.max(gl.max(acc, 1), 0).to(gl.float16))
"""
BARRIER = """
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, 128)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
"""
DESCRIPTOR = """
    d = tma.make_tensor_descriptor(p, [n, 64], [64, 1], [64, 64], N)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    s = gl.allocate_shared_memory(gl.float16, [64, 64], N)
    mbarrier.expect(bar, d.block_type.nbytes)
    tma.{load}(d, [0, 0], bar, s)
    mbarrier.wait(bar, 0)
    tma.{store}(d, [0, 0], s)
    tma.store_wait(0)
"""


@pytest.mark.once
@pytest.mark.parametrize("arch", [120, 121])
def test_mma_and_barriers(arch):
    assert "tt.dot" in agree(source("mma_v2, fence_async_shared", PRODUCT, arch))
    assert "ttng.wait_barrier" in agree(source("mbarrier", BARRIER, arch))


@pytest.mark.once
def test_tma():
    body = DESCRIPTOR.format(
        load="async_copy_global_to_shared", store="async_copy_shared_to_global"
    )
    if TRITON_VERSION >= (3, 9):
        body = DESCRIPTOR.format(load="async_load", store="async_store")
    agree(source("mbarrier, tma", body))


@since(3, 8)
def test_packed_arithmetic():
    body = """
    x = gl.load(p + gl.arange(0, 2048, layout=gl.BlockedLayout([16], [32], [4], [0])))
    gl.store(p + gl.arange(0, 2048, layout=gl.BlockedLayout([16], [32], [4], [0])), add2(x, x))
    """
    assert "packed_arith" in agree(source("add2", body))


MEMORY = "acc = allocate_tensor_memory(gl.float32, [128, 64], TensorMemoryLayout([128, 64], 1))"
GATHER = """
    d = tma.make_tensor_descriptor(p, [n, 64], [64, 1], [1, 64], N)
    x = gl.full([32], 0, gl.int32, layout=gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0])))
    s = gl.allocate_shared_memory(gl.float16, [32, 64], N)
    tma.async_scatter(d, x, 0, s)  # HERE
"""


@pytest.mark.once
@pytest.mark.parametrize("arch", [120, 121])
@pytest.mark.parametrize(
    "names, body, match",
    [
        (
            "allocate_tensor_memory, TensorMemoryLayout",
            f"{MEMORY}  # HERE",
            "allocate_tensor_memory needs nvidia.tcgen05 .*sm_100",
        ),
        ("tcgen05_commit", "tcgen05_commit(n)  # HERE", "tcgen05_commit needs nvidia.tcgen05"),
        ("tcgen05_mma", "tcgen05_mma(n, n, n)  # HERE", "tcgen05_mma needs nvidia.tcgen05"),
        ("tcgen05_copy", "tcgen05_copy(n, n)  # HERE", "tcgen05_copy needs nvidia.tcgen05"),
        ("mbarrier, tma", GATHER, "nvidia.tma_gather_scatter"),
    ],
)
def test_ops_that_need_tensor_memory(names, body, match, arch):
    refuse(source(names, body, arch), CapabilityError, match)


def test_hopper_s_matrix_unit_is_hopper_s():
    text = source("fence_async_shared", "x = warpgroup_mma(n, n, n)  # HERE").replace(
        "blackwell import fence_async_shared", "hopper import warpgroup_mma"
    )
    refuse(text, CapabilityError, "nvidia.wgmma .*sm_90")
