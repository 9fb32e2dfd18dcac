"""A GEMM on Blackwell gets partitions: one copies, one issues products, one stores sums from tensor memory."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.explicit
import gluon_write.partitions.walk
from gluon_core import language as gl
from gluon_sim.settings import using
from gluon_write.preferred import preferred_form

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@gluon.jit(layouts="auto")
def product(a, b, bias, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Add a bias to a product; B has its columns as rows."""
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [N, K], [K, 1], [BN, BK])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [column, k])
        acc = gl.portable.mma(x, y.T, acc)
    columns = column + gl.arange(0, BN)
    more = gl.load(bias + columns, mask=columns < N, other=0.0)
    gl.portable.store(c_tiles, [row, column], (acc + more[None, :]).to(c.dtype.element_ty))


@pytest.fixture
def sources(monkeypatch, chosen_sources):
    """Collect the sources of the kernels that get layouts; a device has two multiprocessors."""
    product.forget()  # what a process has launched keeps its form
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", "2")
    return chosen_sources


def right(M, N, warps):
    """Return True if the products are those of NumPy."""
    K, BN = 160, 64
    rng = np.random.default_rng(M + N)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    bias, c = rng.standard_normal(N).astype(np.float32), np.zeros((M, N), np.float16)
    product[(-(-M // 128), -(-N // BN))](
        a, b, bias, c, M, N, K, 128, BN, 64, num_warps=warps, num_stages=3, target="sim:sm_100"
    )
    wanted = a.astype(np.float32) @ b.astype(np.float32).T + bias
    return np.abs(c - wanted).max() < 3e-2


@pytest.mark.parametrize("warps, schedule", [(4, "eager"), (8, "latest")])
def test_partitions(sources, warps, schedule):
    """Each multiprocessor has several blocks, some of which reach over the ends."""
    with using(schedule=schedule):
        assert right(300, 200, warps)
        assert right(128, 64, warps)
    for word in (
        "tcgen05_commit(tiles.empty(slot))",
        "acc = sums.wait(turn).load()",
        "product_stores",
    ):
        assert word in sources[0]
    assert "y.permute((1, 0))" in sources[0] and "program in range" in sources[0]


@pytest.mark.parametrize("warps, form", [(2, None), (4, "pipelined")])
def test_other_forms(sources, warps, form):
    """Tensor memory is read by four warps at least, and callers may ask for the other form."""
    with preferred_form(form):
        assert right(128, 128, warps)
    assert "product_stores" not in sources[0]


@gluon.jit(layouts="auto")
def summed(a, b, c, first, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Sum the products from `first` on, of tiles of descriptors."""
    a_tiles = gl.portable.descriptor(a, [BM, 128], [128, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [128, BN], [BN, 1], [BK, BN])
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(first, K, BK):
        acc = gl.portable.mma(gl.portable.load(a_tiles, [0, k]), gl.portable.load(b_tiles, [k, 0]), acc)  # fmt: skip
    m, n = gl.arange(0, BM), gl.arange(0, BN)
    gl.store(c + m[:, None] * BN + n[None, :], acc)


@gluon.jit(layouts="auto")
def summed_by_pointers(a, b, c, first, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    m, n = gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    for start in range(first, K, BK):
        k = start + gl.arange(0, BK)
        x = gl.load(a + m[:, None] * 128 + k[None, :], mask=k[None, :] < K, other=0.0)
        y = gl.load(b + k[:, None] * BN + n[None, :], mask=k[:, None] < K, other=0.0)
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + m[:, None] * BN + n[None, :], acc)


@pytest.mark.parametrize("kernel", [summed, summed_by_pointers])
def test_sums_of_no_products(chosen_sources, kernel):
    """Tensor memory holds zeros where a loop has no step."""
    kernel.forget()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((128, 128), (128, 64)))
    c = np.ones((128, 64), np.float32)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    with preferred_form("pipelined"):
        for first in (0, 128):
            kernel[(1,)](a, b, c, first, 128, 128, 64, 64, num_stages=2, target="sim:sm_100")
            assert np.allclose(c, wanted if first == 0 else 0, atol=1e-2)
    assert "gl.portable.accumulator(" in chosen_sources[0]
