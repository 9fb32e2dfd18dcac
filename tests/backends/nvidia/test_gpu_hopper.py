"""Hopper's matrix unit, barriers, partitions and clusters on a real GPU."""

import pytest
import torch

from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from tests.backends.nvidia.language.hopper_programs import GEMM
from tests.backends.nvidia.language.test_hopper_compile import CLUSTER, DTYPES, PIPELINE, PRODUCT
from tests.frontend import oracle
from tests.frontend.vendor_oracle import since

DEVICE = registry().backend("nvidia").device.target()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE is None or not DEVICE.has("nvidia.wgmma"), reason="no Hopper GPU"),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)


def kernel(source):
    return oracle.load(source.replace("GLUON", "gluon_core"), oracle.OURS).kernel


def whole(*shape, dtype=torch.float16):
    """Small whole numbers, whose products and sums every type here holds exactly."""
    return torch.randint(-3, 4, shape, device="cuda").to(torch.float32).to(dtype)


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("dtype, acc, turn, types", DTYPES)
def test_products(dtype, acc, turn, types, registers):
    bits = {"float32": 32, "float16": 16, "bfloat16": 16}.get(dtype, 8)
    source = PRODUCT.replace("INSTR_K", str(256 // bits)).replace("BITS", str(bits))
    source = source.replace("TURN", str(turn)).replace("REGISTERS", str(registers))
    a, b = (whole(64, 64, dtype=getattr(torch, dtype)) for _ in "ab")
    c = torch.zeros((64, 64), dtype=getattr(torch, acc), device="cuda")
    kernel(source)[(1,)](a, b, c)
    right = b.float().T if turn else b.float()
    torch.testing.assert_close(c.float(), a.float() @ right, rtol=0, atol=0)


@pytest.mark.parametrize("warps", ["[8, 1]", "[4, 2]"])
@pytest.mark.parametrize("instruction", [8, 32, 64])
def test_more_warps_than_tiles(warps, instruction):
    """Two groups of warps on a tile that has work for one, or for each."""
    source = PRODUCT.replace("INSTR_K", "16").replace("BITS", "16").replace("TURN", "False")
    source = source.replace("REGISTERS", "False").replace(
        "[4, 1], [16, 64", f"{warps}, [16, {instruction}"
    )
    source = source.replace("[4, 8], [4, 1]", "[4, 8], [8, 1]")
    a, b = whole(64, 64), whole(64, 64)
    c = torch.zeros((64, 64), device="cuda")
    kernel(source)[(1,)](a, b, c, num_warps=8)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=0, atol=0)


def test_partitions():
    steps = 7
    a, b = whole(steps, 64, 64), whole(steps, 64, 128)
    c = torch.zeros((64, 128), device="cuda")
    kernel(PIPELINE)[(1,)](a, b, c, steps)
    torch.testing.assert_close(c, (a.float() @ b.float()).sum(0), rtol=0, atol=0)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_persistent_program(stages):
    a, b = whole(1024, 512), whole(512, 64)
    c = torch.zeros((1024, 64), dtype=torch.float16, device="cuda")
    kernel(GEMM)[(5,)](a, b, c, 1024, 512, stages)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=0, atol=0)


def test_a_cluster():
    a, b = whole(128, 64), whole(64, 64)
    c = torch.zeros((128, 64), device="cuda")
    barrier = "cluster.barrier()" if TRITON_VERSION > (3, 6) else ""
    kernel(CLUSTER.replace("STORE", barrier))[(1,)](a, b, c, num_ctas=2)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=0, atol=0)


@since(3, 8)
def test_async_store():
    store = """
    mbarrier.expect(bar, x.nbytes_per_cta)
    cluster.barrier()
    async_store(x, gl.full([128, 64], 2.0, gl.float16, L), bar)
    mbarrier.wait(bar, 0)
    fence_async_shared(cluster=True)"""
    b = whole(64, 64)
    c = torch.zeros((128, 64), device="cuda")
    kernel(CLUSTER.replace("STORE", store))[(1,)](whole(128, 64), b, c, num_ctas=2)
    torch.testing.assert_close(c, 2 * b.float().sum(0).expand(128, 64), rtol=0, atol=0)
