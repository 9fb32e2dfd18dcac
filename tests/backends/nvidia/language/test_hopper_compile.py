"""Kernels of gl.nvidia.hopper down to a cubin for sm_90a: the instructions behind their builtins."""

from __future__ import annotations

import re

import pytest

from gluon_core.compiler import compile
from gluon_core.testing import TRITON_VERSION, MockTensor, bind
from tests.backends.nvidia.language.hopper_programs import GEMM
from tests.frontend import oracle
from tests.frontend.vendor_oracle import since

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SETUP = """
from gluon_core.language.nvidia.hopper import (
    cluster, fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)
if triton.__version__ >= "3.8":
    from gluon_core.language.nvidia.hopper import async_store
@gluon.jit
def offsets(ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return rows[:, None] * COLUMNS + columns[None, :]
"""
# b is stored as [N, K] where TURN says so.
PRODUCT = (
    SETUP
    + """
M, N, K = gl.constexpr(64), gl.constexpr(64), gl.constexpr(64)
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, INSTR_K]))
T = gl.constexpr(gl.NVMMASharedLayout(min(128, 64 * BITS // 8), BITS, 2))
L = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0]))
@gluon.jit
def kernel(a, b, c):
    at = offsets(64, 64, L)
    x = gl.allocate_shared_memory(a.dtype.element_ty, [64, 64], T, gl.load(a + at))
    y = gl.allocate_shared_memory(b.dtype.element_ty, [64, 64], T, gl.load(b + at))
    if TURN:
        y = y.permute((1, 0))
    fence_async_shared()
    acc = gl.zeros([64, 64], c.dtype.element_ty, ACC)
    if REGISTERS:
        acc = warpgroup_mma(x.load(gl.DotOperandLayout(0, ACC, 32 // BITS)), y, acc)
    else:
        acc = warpgroup_mma(x, y, acc)
    gl.store(c + offsets(64, 64, ACC), acc)
"""
)
DTYPES = [
    ("float16", "float32", False, "f32.f16.f16"),
    ("float16", "float16", True, "f16.f16.f16"),
    ("bfloat16", "float32", False, "f32.bf16.bf16"),
    ("float32", "float32", True, "f32.tf32.tf32"),
    ("int8", "int32", True, "s32.s8.s8"),
    ("float8_e5m2", "float32", True, "f32.e5m2.e5m2"),
    ("float8_e4m3fn", "float32", True, "f32.e4m3.e4m3"),
]


def compiled(source, *arguments, **options):
    module = oracle.load(source, oracle.OURS)
    bound, _ = bind(module.kernel, arguments, {})
    kernel = compile(bound, target="nvidia:sm_90", options=options)
    assert kernel.asm["cubin"]
    return kernel.asm["ptx"]


def tensor(name):
    import torch

    return MockTensor(getattr(torch, name))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("dtype, acc, turn, types", DTYPES)
def test_products(dtype, acc, turn, types, registers):
    bits = {"float32": 32, "float16": 16, "bfloat16": 16}.get(dtype, 8)
    source = PRODUCT.replace("INSTR_K", str(256 // bits)).replace("BITS", str(bits))
    source = source.replace("TURN", str(turn)).replace("REGISTERS", str(registers))
    ptx = compiled(source, tensor(dtype), tensor(dtype), tensor(acc))
    matches = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n64k(\d+)\.(\S+)", ptx)
    assert matches == [(str(256 // bits), types)] * (64 * bits // 256)
    assert "fence.proxy.async.shared::cta" in ptx and "wgmma.wait_group" in ptx


NARROW = PRODUCT.replace("acc = warpgroup_mma(x, y, acc)", """acc = warpgroup_mma(x, y, acc, columns=56)
        if n > 0:
            acc = warpgroup_mma(x, y, acc, columns=64)
        for _ in range(n):
            acc = warpgroup_mma(x, y, acc, columns=56)""")  # fmt: skip
NARROW = NARROW.replace("def kernel(a, b, c)", "def kernel(a, b, c, n)")


def test_fewer_columns():
    """Instructions next to those of all columns, and in a loop."""
    source = NARROW.replace("INSTR_K", "16").replace("BITS", "16")
    source = source.replace("TURN", "False").replace("REGISTERS", "False")
    ptx = compiled(source, tensor("bfloat16"), tensor("bfloat16"), tensor("float32"), 3)
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\S* \{([^}]*)\}", ptx)
    assert [n for n, _ in products] == ["56"] * 4 + ["64"] * 4 + ["56"] * 4
    assert all(len(sums.split(",")) == int(n) // 2 for n, sums in products)


PIPELINE = (
    SETUP
    + """
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
T = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
L1 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0]))
@gluon.jit
def fill(full, empty, x, y, a, b, n):
    for i in range(n):
        mbarrier.wait(empty.index(i % 2), (i // 2 & 1) ^ 1)
        x.index(i % 2).store(gl.load(a + i * 4096 + offsets(64, 64, L1)))
        y.index(i % 2).store(gl.load(b + i * 8192 + offsets(64, 128, L1)))
        fence_async_shared()
        mbarrier.arrive(full.index(i % 2))
@gluon.jit
def multiply(full, empty, x, y, c, n):
    acc = gl.zeros([64, 128], gl.float32, ACC)
    for i in range(n):
        mbarrier.wait(full.index(i % 2), i // 2 & 1)
        acc = warpgroup_mma(x.index(i % 2), y.index(i % 2), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        if i > 0:
            mbarrier.arrive(empty.index((i - 1) % 2))
    acc = warpgroup_mma_wait(deps=(acc,))
    gl.store(c + offsets(64, 128, ACC), acc)
@gluon.jit
def kernel(a, b, c, n):
    x = gl.allocate_shared_memory(gl.float16, [2, 64, 64], T)
    y = gl.allocate_shared_memory(gl.float16, [2, 64, 128], T)
    full = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize([(multiply, (full, empty, x, y, c, n)), (fill, (full, empty, x, y, a, b, n))],
                       [1], [40])
    for i in gl.static_range(2):
        mbarrier.invalidate(full.index(i))
        mbarrier.invalidate(empty.index(i))
"""
)


def test_partitions_and_barriers():
    half = tensor("float16")
    ptx = compiled(PIPELINE, half, half, tensor("float32"), 7)
    for pattern in (
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.f16\.f16",
        r"wgmma\.wait_group\.sync\.aligned\s+1",
        r"wgmma\.wait_group\.sync\.aligned\s+0",
        r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40",
        r"mbarrier\.arrive\.shared::cta",
        r"mbarrier\.(try|test)_wait",
        r"mbarrier\.inval",
    ):
        assert re.search(pattern, ptx), pattern


CLUSTER = (
    SETUP
    + """
ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16], cga_layout=[[1, 0]]))
A = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[1, 0]]))
B = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 0]]))
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=[[1, 0]]))
K = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0], cga_layout=[[0, 0]]))
@gluon.jit
def kernel(a, b, c):
    x = gl.allocate_shared_memory(gl.float16, [128, 64], A, gl.load(a + offsets(128, 64, L)))
    y = gl.allocate_shared_memory(gl.float16, [64, 64], B, gl.load(b + offsets(64, 64, K)))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    fence_async_shared(cluster=True)
    STORE
    acc = warpgroup_mma(x, y, gl.zeros([128, 64], gl.float32, ACC))
    gl.store(c + offsets(128, 64, ACC), acc)
"""
)


def test_a_cluster():
    half = tensor("float16")
    barrier = "cluster.barrier()" if TRITON_VERSION > (3, 6) else ""
    source = CLUSTER.replace("STORE", barrier)
    ptx = compiled(source, half, half, tensor("float32"), num_ctas=2)
    assert ".reqnctapercluster 2" in ptx or ".explicitcluster" in ptx
    assert "fence.proxy.async.shared::cluster" in ptx
    if barrier:
        assert "barrier.cluster.arrive" in ptx and "barrier.cluster.wait" in ptx


@since(3, 8)
def test_async_store():
    half = tensor("float16")
    store = """
    mbarrier.expect(bar, x.nbytes_per_cta)
    cluster.barrier()
    async_store(x, gl.zeros([128, 64], gl.float16, L), bar)
    mbarrier.wait(bar, 0)"""
    ptx = compiled(CLUSTER.replace("STORE", store), half, half, tensor("float32"), num_ctas=2)
    assert "st.async" in ptx and "mbarrier::complete_tx::bytes" in ptx
    assert "mbarrier.arrive.expect_tx" in ptx


def test_a_whole_program():
    half = tensor("float16")
    ptx = compiled(GEMM.replace("GLUON", "gluon_core"), half, half, half, 256, 192, 3)
    for pattern in (
        r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global",
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta",
        r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.f16\.f16",
        r"setmaxnreg\.dec\.sync\.aligned\.u32\s+24",
        r"mbarrier\.arrive\.expect_tx",
    ):
        assert re.search(pattern, ptx), pattern
